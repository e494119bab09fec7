package transform

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
)

// kept is a collection a.c that has been a.d since a position, up to another.
type kept struct {
	copyEnd
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
	reused, restarted := after, after
	reused.reused, restarted.reused = true, true
	mixed := after
	mixed.mixed = true
	gone := after
	gone.absent = "a.c"
	for name, c := range map[string]struct {
		copies kept
		from   uint32
		events []stream.Event
		want   string // "" is an error
	}{
		"within the copy": {after, 1, []stream.Event{event("a.c", 1, 2), event("a.d", 1, 4), event("a.d", 2, 8),
			event("a.d", 1, 9)}, "c1 c1 c2 d1"},
		"replaced": {reused, 1, []stream.Event{event("a.d", 1, 4), event("a.c", 1, 5), event("a.d", 1, 6),
			event("a.d", 2, 7)}, "c1 c1 c2"},
		"restarted":                 {restarted, 4, []stream.Event{event("a.d", 1, 5)}, ""},
		"restarted, but not reused": {after, 4, []stream.Event{event("a.d", 1, 5)}, "c1"},
		"joined":                    {mixed, 1, []stream.Event{event("a.d", 1, 5)}, ""},
		"joined, and the copy over": {mixed, 1, []stream.Event{event("a.d", 1, 9)}, "d1"},
		"another one is left out":   {gone, 1, []stream.Event{event("a.c", 1, 5), event("a.d", 1, 6)}, "c1"},
	} {
		st := NewStage(mustNew(t, Config{Skip: []string{"a.*=rename"}}), stream.Position{At: at(c.from)}, nil, nil)
		st.Copies(c.copies)
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

// TestRetainedFull: what is remembered is bounded. Beyond that a document is unknown where another
// collection has the old name, and only there.
func TestRetainedFull(t *testing.T) {
	at := func(second uint32) mongo.OpTime { return mongo.OpTime{TS: bson.Timestamp{T: second}} }
	k := kept{since: at(3), until: at(8)}
	for _, reused := range []bool{false, true} {
		k.reused = reused
		st := NewStage(mustNew(t, Config{Skip: []string{"a.*=rename"}}), stream.Position{}, nil, nil)
		st.Copies(k)
		st.retainer.full = true
		doc := kit.Raw(kit.D("_id", 1))
		b := &stream.Batch{Events: []stream.Event{{Kind: stream.Update, NS: "a.d", At: at(5),
			Key: stream.Key{ID: bsonraw.IDOf(doc)}, Doc: doc}}}
		if _, err := st.Batch(t.Context(), b); (err != nil) != reused {
			t.Errorf("reused %v: %v", reused, err)
		}
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
