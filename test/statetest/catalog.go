package statetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
)

func slicesKept(t T, s Setup) {
	b, other := begun(t, s), begun(t, s)
	b.ok(other.SaveSlices(t.Context(), []state.Slice{{ID: "aa/0", State: doc("other")}}))
	b.ok(b.SaveSlices(t.Context(), []state.Slice{{ID: "aa/0", State: doc("0")}, {ID: "aa/1", State: doc("1")},
		{ID: "aaa/0", State: doc("a")}, {ID: "b/aa/0", State: doc("b")}}))
	b.ok(b.SaveSlices(t.Context(), []state.Slice{{ID: "aa/1", State: doc("2")}}))
	b.hasSlices("0", "2", "a", "b")
	b.ok(b.DropSlices(t.Context(), "aa/"))
	b.hasSlices("a", "b")
	other.hasSlices("other")
}

func (b bench) hasSlices(want ...string) {
	b.Helper()
	raws, err := b.reopened().LoadSlices(b.Context())
	b.ok(err)
	var got []string
	for _, raw := range raws {
		got = append(got, raw.Lookup("v").StringValue())
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		b.Errorf("slices %v, want %v", got, want)
	}
}

func named(ns, target string) state.Mapped {
	return state.Mapped{Target: target, Collection: schema.Collection{NS: ns, Type: schema.TypeCollection,
		Options: doc(ns),
		UUID:    bson.Binary{Subtype: 4, Data: append([]byte(ns), make([]byte, 16)...)[:16]}}}
}

func catalogKept(t T, s Setup) {
	b := begun(t, s)
	b.ok(b.SaveCatalog(t.Context(), []state.Mapped{named("d.old", "d.old")}))
	colls := []state.Mapped{named("d.b", "e.b"), named("d.a", "e.a"), named("a.c", "e.c")}
	for i := range 120 { // more than one command
		colls = append(colls, named(fmt.Sprintf("z.%d", 500-i), "y"))
	}
	colls[1].Type = schema.TypeView
	colls[0].Options = kit.Raw(bson.D{{Key: "validator",
		Value: bson.D{{Key: "$or", Value: bson.A{bson.D{{Key: "a.b", Value: bson.D{{Key: "$gt", Value: 1}}}}}}}}})
	colls[0].Indexes = []stream.Index{{Name: "a_1",
		Spec: kit.Raw(bson.D{{Key: "key", Value: bson.D{{Key: "$**", Value: 1}}},
			{Key: "partialFilterExpression", Value: bson.D{{Key: "a", Value: bson.D{{Key: "$exists", Value: true}}}}}})}}
	b.ok(b.SaveCatalog(t.Context(), colls))
	got, err := b.reopened().LoadCatalog(t.Context())
	if err != nil || len(got) != len(colls) {
		t.Fatalf("%d names, want %d, %v", len(got), len(colls), err)
	}
	for i, want := range colls {
		if g := got[i]; g.NS != want.NS || g.Target != want.Target || g.Type != want.Type || g.Gone ||
			!g.UUID.Equal(want.UUID) || g.Options.String() != want.Options.String() ||
			fmt.Sprint(g.Indexes) != fmt.Sprint(want.Indexes) {
			t.Errorf("%d: %+v, want %+v", i, g, want)
		}
	}
}

func namesKept(t T, s Setup) {
	b := begun(t, s)
	b.ok(b.SaveCatalog(t.Context(), []state.Mapped{named("d.a", "e.a"), named("d.b", "e.b")}))
	rename := schema.NameChange{Put: []schema.Name{{NS: "d.c", Target: "e.c", Type: schema.TypeCollection}},
		Removed: []string{"d.a"}}
	for range 2 { // once more after a crash
		b.ok(b.NoteNames(t.Context(), rename))
	}
	byName := func() []string {
		catalog, err := b.reopened().LoadCatalog(t.Context())
		b.ok(err)
		var got []string
		for _, m := range catalog {
			got = append(got, fmt.Sprintf("%s=%s,%t", m.NS, m.Target, m.Gone))
		}
		slices.Sort(got)
		return got
	}
	if got := byName(); !slices.Equal(got, []string{"d.b=e.b,false", "d.c=e.c,false"}) {
		t.Errorf("after a rename: %v", got)
	}
	// Renamed onto itself, and never come to the target.
	has := schema.Presence{Gone: true, Left: true, Copied: at(7),
		Retention: schema.Retention{Was: "d.a", Since: at(5), Until: at(6), Mixed: true}}
	b.ok(b.NoteNames(t.Context(), schema.NameChange{Put: []schema.Name{{NS: "d.b", Target: "e.b2",
		Type: schema.TypeCollection, Presence: has}}, Removed: []string{"d.b"}}))
	if got := byName(); !slices.Equal(got, []string{"d.b=e.b2,true", "d.c=e.c,false"}) {
		t.Errorf("after a name was put anew: %v", got)
	}
	catalog, err := b.reopened().LoadCatalog(t.Context())
	b.ok(err)
	if one, ok := state.Names(catalog).Source("d.b"); !ok || one.Presence != has || one.Target != "e.b2" {
		t.Errorf("the names say %+v, %v", one, ok)
	}
}

// skips are more than one document takes in parts.
func skips() (many []stream.Place) {
	long := strings.Repeat("x", 1<<20)
	for i := range 10 {
		many = append(many, stream.Place{Origin: stream.Origin{NS: "d.c", Source: "s.c"},
			ID: doc(fmt.Sprint(i, long)).Lookup("v"), At: at(uint32(i))})
	}
	return many
}

func (b bench) hasSkips(want []stream.Place) (got []stream.Place) {
	b.Helper()
	got, err := b.reopened().LoadSkipped(b.Context())
	b.ok(err)
	for _, want := range want {
		if !slices.ContainsFunc(got, func(d stream.Place) bool {
			return d.NS == want.NS && d.ID.Equal(want.ID) && d.At == want.At && d.Source == want.Source
		}) {
			b.Errorf("the document at %s is lost", want.At)
		}
	}
	return got
}

func skippedKept(t T, s Setup) {
	b, many := begun(t, s), skips()
	for n, list := range [][]stream.Place{many, many[:2], nil, many[3:4]} {
		b.ok(b.SaveSkipped(t.Context(), list))
		b.ok(b.Save(t.Context(), bson.D{{Key: "applied", Value: at(uint32(100 + n))}}))
		if got := b.hasSkips(list); b.stored().Applied != at(uint32(100+n)) || len(got) != len(list) {
			t.Errorf("%d documents at %s, want %d", len(got), b.stored().Applied, len(list))
		}
	}
}

// skippedBroken: a save that an election ends after its first write leaves what the
// list before has in common with it, in whatever order they are.
func skippedBroken(t T, s Setup) {
	b, many := begun(t, s), skips()
	b.ok(b.SaveSkipped(t.Context(), many))
	b.refused(b.SameTerm(1<<40), "a write of another term")
	slices.Reverse(many)
	_ = b.SaveSkipped(t.Context(), many) // a store that stores it at once may do so
	b.hasSkips(many)
	_, err := b.Begin(t.Context())
	b.ok(err)
	b.ok(b.SaveSkipped(t.Context(), many[:1]))
	if got := b.hasSkips(many[:1]); len(got) != 1 {
		t.Errorf("%d documents after the next save, want 1", len(got))
	}
}

// provenFirst: while data written before cannot become durable, nothing that
// speaks of them is stored.
func provenFirst(t T, s Setup) {
	b := begun(t, s)
	release := s.Hold()
	for what, save := range map[string]func(context.Context) error{
		"save":         func(ctx context.Context) error { return b.Save(ctx, phase("untrue")) },
		"durable save": func(ctx context.Context) error { return b.SaveDurably(ctx, phase("untrue")) },
		"slices": func(ctx context.Context) error {
			return b.SaveSlices(ctx,
				[]state.Slice{{ID: "a/0", State: doc(1)}})
		},
	} {
		b.ok(b.SameTerm(-1)) // a write was answered
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := save(ctx)
		cancel()
		if err == nil {
			t.Errorf("%s: what was written before is not durable, and no error", what)
		}
		job, found, err := b.Reload(t.Context())
		slices, err2 := b.LoadSlices(t.Context())
		if err = errors.Join(err, err2); err != nil || !found || job.Phase == "untrue" || len(slices) != 0 {
			t.Errorf("%s: stored before it was proven: phase %q, %d slices, %v", what, job.Phase, len(slices), err)
		}
	}
	release()
	b.ok(b.Save(t.Context(), phase("true")))
	if got := b.stored().Phase; got != "true" {
		t.Errorf("afterwards the phase is %q", got)
	}
}
