package origin

import (
	"context"
	"errors"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/lookup"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/routed"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// throughRouters is a cluster of two shards that refuse direct reads, with database d on the first of them. Its
// collection c is on both.
type throughRouters struct {
	*routed.Bed
	db bed
	s  *Streamed
}

func newRouted(t *testing.T) throughRouters {
	t.Helper()
	b := routed.New(t, sharded.Options{Options: lab.Options{Topology: "sharded:2x1"}, Routers: 1, RefuseDirect: true})
	r := throughRouters{b, bed{t, b.C.Client.Database("d")}, &Streamed{Cluster: b.C}}
	r.OK(b.Lab.CreateDatabase(t.Context(), "d", "s0"))
	r.OK(b.Lab.ShardCollection(t.Context(), "d.c", sharded.Sharding{Key: kit.D("k", 1)}))
	r.OK(b.Lab.Split(t.Context(), "d.c", kit.D("k", 10)))
	r.OK(b.Lab.MoveChunk(t.Context(), "d.c", kit.D("k", 10), "s1"))
	for _, id := range []int{1, 11} {
		r.db.insert("c", id)
	}
	r.db.insert("plain", 5)
	return r
}

func (r throughRouters) names() []schema.Name {
	r.Helper()
	return []schema.Name{{NS: "d.c", UUID: r.db.uuid("c")}, {NS: "d.plain", UUID: r.db.uuid("plain")}}
}

// read returns the events of d between a position and all that is written now.
func (r throughRouters) read(from stream.Position, names []schema.Name) (events []stream.Event) {
	r.Helper()
	end, err := r.s.Newest(r.Context(), "d.c")
	r.OK(err)
	o := oplog.Options{Keep: func(ns string) bool { return scopeOf("d").NS(ns) }}
	enough := errors.New("enough")
	src := r.s.Changes(o, func() []schema.Name { return names }, mongo.OpTime{})
	err = src.Run(r.Context(), from, func(_ context.Context, b *stream.Batch) error {
		for _, ev := range b.Events {
			if db, _ := mongo.SplitNS(ev.NS); db == "d" {
				events = append(events, ev)
			}
		}
		if b.Partial || b.End.Before(end) {
			return nil
		}
		return enough
	})
	if !errors.Is(err, enough) {
		r.Fatal(err)
	}
	if st := src.Stats(); st.Events < int64(len(events)) || st.Newest.Before(end) {
		r.Errorf("%+v of %d events up to %s", st, len(events), end)
	}
	return events
}

// changes are the kinds and names of the schema changes among events.
func changes(events []stream.Event) (all []string) {
	for _, ev := range events {
		if ev.Kind == stream.SchemaChange {
			all = append(all, string(ev.Change.Kind)+" "+ev.NS)
		}
	}
	return all
}

func (r throughRouters) find(id bson.Binary, at mongo.OpTime, ids ...any) ([]bson.Raw, error) {
	q := lookup.Question{At: at}
	for _, id := range ids {
		q.IDs = append(q.IDs, kit.Value(id))
	}
	return r.s.Find(r.Context(), lookup.Collection{DB: "d", UUID: id}, q)
}

// TestRouted reads a cluster by its routers alone: its catalog, each change once, documents of all shards, and
// collections wherever their database moves.
func TestRouted(t *testing.T) {
	t.Parallel()
	r := newRouted(t)
	ctx := t.Context()
	names := r.names()
	c, plain := names[0].UUID, names[1].UUID
	snap, from, err := r.s.Snapshot(ctx, scopeOf("d"))
	r.OK(err)
	if len(snap.Collections) != 2 || from.At != snap.At || from.Mark == "" {
		t.Errorf("%v at %s, to go on from %+v", snap.Collections, snap.At, from)
	}
	if first, err := r.s.ReadFrom(from); err != nil || first != from.At || r.s.StartAt(from.At).At != from.At {
		t.Errorf("reads from %s, %v", first, err)
	}
	for _, id := range []int{2, 12, 6} {
		r.db.insert([]string{"c", "plain"}[id/6%2], id)
	}
	_, err = r.db.db.Collection("c").Indexes().CreateOne(ctx, indexOn("n"))
	r.OK(err)
	at, err := r.s.Newest(ctx, "d.c")
	r.OK(err)
	if p, err := r.s.Reached(ctx, at); err != nil || p.Majority.TS != at.TS || p.Last.Before(at) {
		t.Errorf("reached %s: %+v, %v", at, p, err)
	}
	if p, err := r.s.Recent(ctx); err != nil || p.Last.Before(at) || p.Last != p.Majority {
		t.Errorf("%+v before %s, %v", p, at, err)
	}
	if w, err := r.s.Window(ctx); err != nil || !w.Oldest.IsZero() {
		t.Errorf("how far back streams begin is unknown, not %+v, %v", w, err)
	}
	events := r.read(from, names)
	var ids []int32
	for _, ev := range events {
		if ev.Kind == stream.Insert {
			ids = append(ids, ev.Doc.Lookup("_id").Int32())
		}
	}
	if !slices.Equal(ids, []int32{2, 12, 6}) {
		t.Errorf("inserts of %d", ids)
	}
	if got := changes(events); !slices.Equal(got, []string{"createIndexes d.c"}) { // both shards report it
		t.Errorf("changes %q", got)
	}
	docs, err := r.find(c, at, 12, 3, 1)
	if r.OK(err); docs[0] == nil || docs[1] != nil || docs[2] == nil {
		t.Errorf("of two shards %v", docs)
	}
	if coll, found, err := r.s.ListOne(ctx, "d", c); err != nil || !found || coll.NS != "d.c" {
		t.Errorf("%v, %t, %v", coll.NS, found, err)
	}
	if _, err = r.find(uuid(9), at, 1); !mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
		t.Errorf("of no collection: %v", err)
	}
	var seen []string
	r.OK(r.s.Look(ctx, []string{"d.plain"}, oplog.Span{After: from.At, Until: at}, func(ev *stream.Event) error {
		if ev.Kind == stream.Insert {
			seen = append(seen, ev.NS)
		}
		return nil
	}))
	if !slices.Equal(seen, []string{"d.plain"}) {
		t.Errorf("looked at %q", seen)
	}
	r.opens()
	r.moves(plain, at)
	if err := r.s.Holds(ctx, at); err != nil {
		t.Error(err)
	}
}

// moves moves the database with its unsharded collection to the other shard, which gives that another UUID.
func (r throughRouters) moves(plain bson.Binary, at mongo.OpTime) {
	ctx, names := r.Context(), r.names()
	r.read(stream.Position{At: at}, names) // the names of a run are known
	r.OK(r.Lab.MovePrimary(ctx, "d", "s1"))
	now := r.db.uuid("plain")
	if now.Equal(plain) {
		r.Skip("the server has kept the UUID")
	}
	if docs, err := r.find(plain, at, 5); err != nil || docs[0] == nil {
		r.Errorf("not found where it has moved: %v, %v", docs, err)
	}
	if gone, err := r.s.Vanished(ctx, "d", plain); err != nil || gone {
		r.Errorf("gone %t, %v", gone, err)
	}
	r.db.insert("plain", 7)
	moved := []string{"identity d.plain"}
	if got := changes(r.read(stream.Position{At: at}, names)); !slices.Equal(got, moved) {
		r.Errorf("a move shows as %q", got)
	}
	// A run that begins between the creation of the copy and the drop of the original has not seen the copy.
	var made mongo.OpTime
	newest, err := r.s.Newest(ctx, "d.c")
	r.OK(err)
	r.OK(r.s.Look(ctx, nil, oplog.Span{After: at, Until: newest}, func(ev *stream.Event) error {
		if ch := ev.Change; ch != nil && ch.Kind == stream.ChangeCreate && ch.UUID.Equal(now) {
			made = ev.At
		}
		return nil
	}))
	if made.IsZero() {
		r.Fatal("the stream shows no copy")
	}
	if got := changes(r.read(stream.Position{At: made}, names)); !slices.Equal(got, moved) {
		r.Errorf("a move that has begun shows as %q", got)
	}
	// Two more moves that no run has seen.
	r.read(stream.Position{At: newest}, []schema.Name{names[0], {NS: "d.plain", UUID: now}})
	for _, to := range []string{"s0", "s1"} {
		r.OK(r.Lab.MovePrimary(ctx, "d", to))
	}
	if docs, err := r.find(now, at, 7); err != nil || docs[0] == nil {
		r.Errorf("not found where it has moved twice: %v, %v", docs, err)
	}
	last := r.db.uuid("plain")
	newest, err = r.s.Newest(ctx, "d.c")
	r.OK(err)
	r.read(stream.Position{At: at}, names)
	// Dropped and made again, it is another collection.
	r.OK(r.db.db.Collection("plain").Drop(ctx))
	r.db.insert("plain", 8)
	for _, id := range []bson.Binary{plain, now, last} {
		if gone, err := r.s.Vanished(ctx, "d", id); err != nil || !gone {
			r.Errorf("%x is gone: %t, %v", id.Data, gone, err)
		}
	}
	names[1].UUID = last
	want := []string{"drop d.plain", "create d.plain"}
	if got := changes(r.read(stream.Position{At: newest}, names)); !slices.Equal(got, want) {
		r.Errorf("changes %q, want %q", got, want)
	}
}

// opens opens shards: those that refuse direct reads are left to the routers, unless they are asked for.
func (r throughRouters) opens() {
	ctx, o := r.Context(), shards.Options{URI: r.Lab.URI()}
	named := o
	named.Shards = map[string]string{"s0": r.Lab.Shard("s0").URI()}
	for name, tc := range map[string]struct {
		via        Via
		o          shards.Options
		why, fails bool
	}{
		"auto":                        {ViaAuto, o, true, false},
		"auto, with addresses":        {ViaAuto, named, false, true},
		"shards":                      {ViaShards, o, false, true},
		"routers":                     {ViaRouters, o, false, false},
		"routers, and yet an address": {ViaRouters, named, false, true},
	} {
		of, why, err := OpenShards(ctx, r.s.Cluster, tc.via, tc.o)
		if of != nil || (why != nil) != tc.why || (err != nil) != tc.fails {
			r.Errorf("%s: shards %t, because of %v, %v", name, of != nil, why, err)
		}
		if err != nil && mongo.HintOf(err) == "" {
			r.Errorf("%s: no hint in %v", name, err)
		}
	}
}
