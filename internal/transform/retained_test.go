package transform

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
)

// kept is a collection a.c that has been a.d since a position, up to another.
type kept struct {
	since, until  mongo.OpTime
	reused, mixed bool
	absent        string
}

func (k kept) Retained(ns string, at mongo.OpTime) (Retained, bool) {
	return Retained{NS: "a.c", Since: k.since, Reused: k.reused, Mixed: k.mixed},
		ns == "a.d" && k.since.Before(at) && !k.until.Before(at)
}

func (k kept) Retains(ns string, at mongo.OpTime) bool { return ns == "a.c" && !k.until.Before(at) }

func (k kept) Absent(ns string) bool { return ns == k.absent }

// TestRetained: what happens under the new name of a collection goes to the old one up to the
// end of its copy, but for documents that another collection of the old name has replaced.
func TestRetained(t *testing.T) {
	at := func(second uint32) mongo.OpTime { return mongo.OpTime{TS: bson.Timestamp{T: second}} }
	event := func(ns string, id int32, second uint32) stream.Event {
		doc := kit.Raw(kit.D("_id", id))
		return stream.Event{Kind: stream.Update, NS: ns, At: at(second), Key: stream.Key{ID: bsonraw.IDOf(doc)}, Doc: doc}
	}
	after := kept{since: at(3), until: at(8)}
	reused, mixed, gone := after, after, after
	reused.reused, mixed.mixed, gone.absent = true, true, "a.c"
	before := NewStage(mustNew(t, Config{Skip: []string{"a.*=rename"}}), stream.Position{}, nil, nil)
	before.Retain(reused, Taken{})
	if _, err := before.Batch(t.Context(), &stream.Batch{Events: []stream.Event{event("a.c", 1, 5)}}); err != nil {
		t.Fatal(err)
	}
	stored, version := before.Taken()
	if version == 0 || stored.Incomplete || len(stored.Documents) != 1 {
		t.Fatalf("stored %+v", stored)
	}
	for name, c := range map[string]struct {
		copies kept
		stored Taken
		events []stream.Event
		want   string // "" is an error
	}{
		"within the copy": {after, Taken{}, []stream.Event{event("a.c", 1, 2), event("a.d", 1, 4), event("a.d", 2, 8),
			event("a.d", 1, 9)}, "c1 c1 c2 d1"},
		"replaced": {reused, Taken{}, []stream.Event{event("a.d", 1, 4), event("a.c", 1, 5), event("a.d", 1, 6),
			event("a.d", 2, 7)}, "c1 c1 c2"},
		"restarted":                 {reused, stored, []stream.Event{event("a.d", 1, 6), event("a.d", 2, 7)}, "c2"},
		"too many":                  {reused, Taken{Incomplete: true}, []stream.Event{event("a.d", 1, 5)}, ""},
		"too many, but not reused":  {after, Taken{Incomplete: true}, []stream.Event{event("a.d", 1, 5)}, "c1"},
		"joined":                    {mixed, Taken{}, []stream.Event{event("a.d", 1, 5)}, ""},
		"joined, and the copy over": {mixed, Taken{}, []stream.Event{event("a.d", 1, 9)}, "d1"},
		"another one is left out":   {gone, Taken{}, []stream.Event{event("a.c", 1, 5), event("a.d", 1, 6)}, "c1"},
	} {
		st := NewStage(mustNew(t, Config{Skip: []string{"a.*=rename"}}), stream.Position{}, nil, nil)
		st.Retain(c.copies, c.stored)
		b := &stream.Batch{Events: c.events}
		_, err := st.Batch(t.Context(), b)
		if (err != nil) != (c.want == "") || err != nil && (mongo.HintOf(err) == "" ||
			!strings.Contains(err.Error(), "a.d, _id")) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		var got []string
		for _, ev := range b.Events {
			id := bsonraw.RawValue(ev.Key.ID).Int32()
			got = append(got, fmt.Sprintf("%s%d", strings.TrimPrefix(ev.Route.Source, "a."), id))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestTakenBounded: a checkpoint has so many documents. With more it says that it is incomplete.
func TestTakenBounded(t *testing.T) {
	st := NewStage(mustNew(t, Config{Skip: []string{"a.*=rename"}}), stream.Position{}, nil, nil)
	at := mongo.OpTime{TS: bson.Timestamp{T: 5}}
	st.Retain(kept{until: at, reused: true}, Taken{})
	for id := range int32(mostStored + 1) {
		doc := kit.Raw(kit.D("_id", id))
		ev := stream.Event{Kind: stream.Update, NS: "a.c", At: at, Key: stream.Key{ID: bsonraw.IDOf(doc)}, Doc: doc}
		if _, err := st.Batch(t.Context(), &stream.Batch{Events: []stream.Event{ev}}); err != nil {
			t.Fatal(err)
		}
		if got, _ := st.Taken(); got.Incomplete != (id >= mostStored) {
			t.Fatalf("incomplete %v with %d", got.Incomplete, id+1)
		}
	}
	_, before := st.Taken()
	st.ForgetRetained()
	if got, version := st.Taken(); got.Incomplete || len(got.Documents) > 0 || version == before {
		t.Errorf("%+v is left", got)
	}
}

// TestFollowed: where renames are skipped, the events of all that a rename may bring about are read.
func TestFollowed(t *testing.T) {
	for skip, want := range map[string]bool{"a.c=rename": true, "a.c=drop": false} {
		f := mustNew(t, Config{Include: []string{"a.c"}, Skip: []string{skip}}).Followed()
		if !f("a.c") || f("a.x") != want || f("b.c") {
			t.Errorf("%s: %v %v %v", skip, f("a.c"), f("a.x"), f("b.c"))
		}
	}
}

// TestPrefixes: what a job follows has one of the prefixes, whatever the patterns are.
func TestPrefixes(t *testing.T) {
	for include, want := range map[string][]string{
		"": nil, "*.c": nil, "a": {"a."}, "a.*": {"a."}, "a.c": {"a.c", "a.system.", "a.tmp"}, "a*.c": {"a"},
		`a.c\*d*e`: {"a.c*d", "a.system.", "a.tmp"}, "a.c,b": {"a.c", "a.system.", "a.tmp", "b."},
		"a.c,a.?": {"a.", "a.c", "a.system.", "a.tmp"},
	} {
		c := Config{}
		if include != "" {
			c.Include = strings.Split(include, ",")
		}
		if got := mustNew(t, c).Prefixes(); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", include, got, want)
		}
	}
	testseed.Each(t, func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 0))
		name := func(pieces ...string) string {
			var b strings.Builder
			for range 1 + rng.IntN(4) {
				b.WriteString(pieces[rng.IntN(len(pieces))])
			}
			return b.String()
		}
		matched := 0
		for range 20_000 {
			c := Config{Include: []string{name("a", "b", "*", "?") + "." + name("a", "b", "\U0010ffff", "*", "?", ".", `\*`)}}
			if rng.IntN(4) == 0 {
				c.Skip = []string{"*=rename"}
			}
			s := mustNew(t, c)
			ns := name("a", "b") + "." + []string{"", "", "system.buckets.", "tmp.agg_out.", "tmpabcde.convertToCapped.",
				"tmpabcde.renameCollection"}[rng.IntN(6)] + name("a", "b", "\U0010ffff", "*", ".")
			p := s.Prefixes()
			if p == nil || !s.Followed()(ns) {
				continue
			}
			matched++
			if !slices.ContainsFunc(p, func(p string) bool { return strings.HasPrefix(ns, p) }) {
				t.Fatalf("%q with %+v: prefixes %q", ns, c, p)
			}
		}
		if matched < 300 {
			t.Errorf("only %d names were followed", matched)
		}
	})
}
