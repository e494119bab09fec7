package origin

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/lookup"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/router"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// bed is a source of collections d.c and d.other, with what has come of their documents.
type bed struct {
	*testing.T
	db *driver.Database
}

func (b bed) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b bed) insert(coll string, id int) {
	b.Helper()
	_, err := b.db.Collection(coll).InsertOne(b.Context(), kit.D("_id", id, "k", id))
	b.ok(err)
}

func (b bed) uuid(coll string) bson.Binary {
	b.Helper()
	specs, err := b.db.ListCollectionSpecifications(b.Context(), kit.D("name", coll))
	b.ok(err)
	return *specs[0].UUID
}

func scopeOf(db string) schema.Scope {
	return schema.Scope{NS: func(ns string) bool { return strings.HasPrefix(ns, db+".") },
		DB: func(name string) bool { return name == db }}
}

// TestSet reads a replica set: its catalog, its changes from there on, and single documents.
func TestSet(t *testing.T) {
	t.Parallel()
	lab.NeedServers(t)
	l := lab.ForTest(t, lab.Options{})
	b := bed{t, kit.Client(t, l.URI()).Database("originset")}
	c := dial.Cluster(t, l.URI(), mongo.Options{})
	s := Set{Cluster: c, Spool: oplog.NewSpooler(c, oplog.SpoolOptions{})}
	b.insert("c", 1)
	snap, from, err := s.Snapshot(t.Context(), scopeOf("originset"))
	b.ok(err)
	if len(snap.Collections) != 1 || snap.Collections[0].NS != "originset.c" || from.At != snap.At {
		t.Errorf("%v at %v, to go on from %v", snap.Collections, snap.At, from)
	}
	b.insert("c", 2)
	b.insert("other", 3)
	newest, err := s.Newest(t.Context(), "originset.c")
	b.ok(err)
	if readFrom, err := s.ReadFrom(from); err != nil || readFrom != snap.At {
		t.Errorf("reads from %v: %v", readFrom, err)
	}
	if w, err := s.Window(t.Context()); err != nil || snap.At.Before(w.Oldest) || w.Newest.Before(newest) || w.Full() {
		t.Errorf("%+v: %v", w, err)
	}
	if err := s.Holds(t.Context(), newest); err != nil {
		t.Error(err)
	}
	var looked []string
	span := oplog.Span{After: snap.At, Until: newest}
	b.ok(s.Look(t.Context(), []string{"originset.c"}, span, func(ev *stream.Event) error {
		if ev.Kind == stream.Insert || ev.Change.NS == "originset.other" {
			looked = append(looked, ev.NS)
		}
		return nil
	}))
	if !slices.Equal(looked, []string{"originset.c", "originset.other"}) { // the insert, and that one is made
		t.Errorf("looked at %v", looked)
	}
	enough := errors.New("enough")
	var ids []int32
	changes := s.Changes(oplog.Options{Keep: func(ns string) bool { return strings.HasPrefix(ns, "originset.") }}, nil,
		mongo.OpTime{})
	err = changes.Run(t.Context(), from, func(_ context.Context, batch *stream.Batch) error {
		for _, ev := range batch.Events {
			if ev.Kind == stream.Insert {
				ids = append(ids, ev.Doc.Lookup("_id").Int32())
			}
		}
		if batch.End.Before(newest) {
			return nil
		}
		return enough
	})
	if !errors.Is(err, enough) || !slices.Equal(ids, []int32{2, 3}) {
		t.Errorf("%v of %v", err, ids)
	}
	id := b.uuid("c")
	if coll, found, err := s.ListOne(t.Context(), "originset", id); err != nil || !found || coll.NS != "originset.c" {
		t.Errorf("%v, %t, %v", coll.NS, found, err)
	}
	docs, err := s.Find(t.Context(), lookup.Collection{DB: "originset", UUID: id},
		lookup.Question{IDs: []bson.RawValue{kit.Value(2), kit.Value(3)}, At: newest})
	if err != nil || docs[0] == nil || docs[1] != nil {
		t.Errorf("%v, %v", docs, err)
	}
	rules, err := transform.New(transform.Config{Include: []string{"originset.*"}})
	b.ok(err)
	colls, err := s.Building(t.Context(), rules)
	b.ok(err)
	if building, err := schema.BuildingNames(colls, rules); err != nil || len(building) != 0 {
		t.Errorf("builds %v: %v", building, err)
	}
	b.ok(b.db.Collection("c").Drop(t.Context()))
	if gone, err := s.Vanished(t.Context(), "originset", id); err != nil || !gone {
		t.Errorf("gone %t, %v", gone, err)
	}
}

// TestSharded reads a sharded cluster: what is where, all shards together, and single documents
// wherever their collections have gone.
func TestSharded(t *testing.T) {
	t.Parallel()
	lab.NeedServers(t)
	l := sharded.ForTest(t, sharded.Options{Options: lab.Options{Topology: "sharded:2x1"}})
	r, err := router.Start(t.Context(), router.Options{ConfigURI: l.ConfigURI()})
	b := bed{T: t}
	b.ok(err)
	t.Cleanup(func() { b.ok(r.Close()) })
	b.db = kit.Client(t, r.URI()).Database("d")
	found, err := shards.Open(t.Context(), dial.Cluster(t, r.URI(), mongo.Options{}), shards.Options{URI: r.URI()})
	b.ok(err)
	s := NewSharded(found)
	t.Cleanup(s.Close)
	b.ok(l.CreateDatabase(t.Context(), "d", "s0"))
	b.ok(l.ShardCollection(t.Context(), "d.c", sharded.Sharding{Key: kit.D("k", 1)}))
	b.ok(l.Split(t.Context(), "d.c", kit.D("k", 10)))
	b.ok(l.MoveChunk(t.Context(), "d.c", kit.D("k", 10), "s1"))
	for _, id := range []int{1, 11} {
		b.insert("c", id)
	}
	b.insert("plain", 5)
	c, plain := b.uuid("c"), b.uuid("plain")
	at, err := s.Newest(t.Context(), "d.c")
	b.ok(err)
	if p, err := s.Reached(t.Context(), at); err != nil || p.Majority.TS != at.TS || p.Last.Before(p.Majority) {
		t.Errorf("%+v, %v", p, err)
	}
	snap, from, err := s.Snapshot(t.Context(), scopeOf("d"))
	b.ok(err)
	if len(snap.Collections) != 2 || from.At != snap.At || snap.At.TS.Before(at.TS) {
		t.Errorf("%v at %v", snap.Collections, snap.At)
	}
	w, err := s.Window(t.Context())
	if err != nil || !w.Oldest.Before(w.Newest) || len(w.Shards) != 2 || w.Left(w.Newest) < 24*time.Hour {
		t.Errorf("%+v: %v", w, err)
	}
	places, err := s.Places(t.Context())
	b.ok(err)
	if primary, _ := places.Primary("d"); !places.Sharded(c) || places.Sharded(plain) || primary != "s0" {
		t.Errorf("%+v", places)
	}
	table, err := s.Table(t.Context(), c)
	b.ok(err)
	if !slices.Equal(table.Owners(), []string{"s0", "s1"}) || len(table.Chunks) != 2 {
		t.Errorf("%+v", table)
	}
	if _, err = s.Table(t.Context(), plain); !mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
		t.Errorf("of a collection that is not sharded: %v", err)
	}
	stands, err := s.Stands(t.Context(), at, []bson.Binary{c, plain})
	if err != nil || len(stands) != 1 {
		t.Errorf("%v, %v", stands, err)
	}
	find := func(db string, id bson.Binary, ids ...any) []bson.Raw {
		t.Helper()
		q := lookup.Question{At: at}
		for _, id := range ids {
			q.IDs = append(q.IDs, kit.Value(id))
		}
		docs, err := s.Find(t.Context(), lookup.Collection{DB: db, UUID: id}, q)
		b.ok(err)
		return docs
	}
	if docs := find("d", c, 11, 2, 1); docs[0] == nil || docs[1] != nil || docs[2] == nil {
		t.Errorf("of several shards %v", docs)
	}
	exact := lookup.Question{IDs: []bson.RawValue{kit.Value(5)}, At: snap.At, Exact: true}
	_, err = s.Find(t.Context(), lookup.Collection{DB: "d", UUID: plain}, exact)
	if !errors.Is(err, lookup.ErrForgotten) { // nobody knows which shard owned what then
		t.Errorf("as of a position: %v", err)
	}
	b.ok(s.Begin(from, []schema.Name{{NS: "d.c", UUID: c}, {NS: "d.plain", UUID: plain}}))
	b.ok(l.MovePrimary(t.Context(), "d", "s1"))
	if docs := find("d", plain, 5); docs[0] == nil {
		t.Error("not found where it has moved")
	}
	was := schema.Collection{NS: "d.plain", UUID: plain}
	now, shard, there, err := s.Present(t.Context(), was)
	if err != nil || !there || shard != "s1" {
		t.Errorf("%x on %q, %t: %v", now.Data, shard, there, err)
	}
	if coll, found, err := s.ListOne(t.Context(), "d", plain); err != nil || !found || !coll.UUID.Equal(now) {
		t.Errorf("%v, %t, %v", coll, found, err)
	}
	if gone, err := s.Vanished(t.Context(), "d", plain); err != nil || gone && now.Equal(plain) {
		t.Errorf("gone %t, %v", gone, err)
	}
	of := []schema.Collection{{NS: "d.c", UUID: c}, {NS: "d.plain", UUID: now}, {NS: "d.lost", UUID: uuid(9)}}
	if lost, err := s.Missing(t.Context(), of); err != nil || !slices.Equal(lost, []int{2}) {
		t.Errorf("missing %v, %v", lost, err)
	}
	b.ok(b.db.Collection("plain").Drop(t.Context()))
	if gone, err := s.Vanished(t.Context(), "d", now); err != nil || !gone {
		t.Errorf("gone %t, %v", gone, err)
	}
	if _, _, there, err = s.Present(t.Context(), was); there || err != nil {
		t.Errorf("there %t, %v", there, err)
	}
	b.ok(s.Whole(t.Context()))
	b.ok(s.Holds(t.Context(), w.Newest))
	if refreshed, err := s.Refresh(t.Context(), from); err != nil ||
		len(refreshed.Joined)+len(refreshed.Left)+len(refreshed.Unread) > 0 {
		t.Errorf("%+v, %v", refreshed, err)
	}
}
