package sharded_test

import (
	"context"
	"os"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/lookup"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/router"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// movedAndKept has movePrimary move the database d from a shard to another, and the first
// one keep its collections, until drop is called.
func (b *bed) movedAndKept(from, to int) (drop func()) {
	b.Helper()
	names := b.lab.ShardNames()
	donor := b.client(b.lab.Shards()[from].URI()).Database("admin")
	set := func(mode string) {
		b.Helper()
		b.ok(donor.RunCommand(context.WithoutCancel(b.Context()),
			bson.D{{Key: "configureFailPoint", Value: "hangInCleanStaleDataStage"}, {Key: "mode", Value: mode}}).Err())
	}
	set("alwaysOn")
	moved := make(chan error, 1)
	go func() { moved <- b.lab.MovePrimary(context.WithoutCancel(b.Context()), "d", names[to]) }()
	drop = sync.OnceFunc(func() {
		b.Helper()
		set("off")
		b.ok(<-moved)
	})
	b.Cleanup(drop)
	b.until(moved, func() bool {
		now, err := b.lab.Primary(b.Context(), "d")
		b.ok(err)
		return now == names[to]
	})
	return drop
}

// asks has an origin that knows the collections of d as they are.
func (b *bed) asks() (of *origin.Sharded, there schema.Snapshot) {
	b.Helper()
	c := dial.Cluster(b, b.sourceURI, mongo.Options{})
	found, err := shards.Open(b.Context(), c, shards.Options{URI: b.sourceURI, Data: true})
	b.ok(err)
	b.Cleanup(found.Close)
	of = origin.NewSharded(found)
	there, from, err := of.Snapshot(b.Context(),
		schema.Scope{DB: func(db string) bool { return db == "d" }, NS: func(string) bool { return true }})
	b.ok(err)
	var names []schema.Name
	for _, c := range there.Collections {
		names = append(names, schema.Name{NS: c.NS, UUID: c.UUID})
	}
	b.ok(of.Begin(from, names))
	return of, there
}

// TestMovedAndKept: movePrimary has moved collections that are copied, and one that has
// just come among those that are kept, and the first shard has not dropped them yet.
func TestMovedAndKept(t *testing.T) {
	lab.NeedServers(t)
	b := &bed{T: t}
	b.lab = sharded.ForTest(t,
		sharded.Options{Options: lab.Options{Topology: "sharded:2x1", Version: os.Getenv("MILLRACE_TEST_VERSION"),
			TestCommands: true}})
	r, err := router.Start(t.Context(), router.Options{ConfigURI: b.lab.ConfigURI()})
	b.ok(err)
	t.Cleanup(func() { b.ok(r.Close()) })
	b.sourceURI, b.targetURI = r.URI(), lab.ForTest(t, lab.Options{}).URI()
	b.source, b.target = b.client(b.sourceURI), b.client(b.targetURI)
	b.ok(b.lab.CreateDatabase(t.Context(), "d", b.lab.ShardNames()[0]))
	db := b.source.Database("d")
	b.ok(db.CreateCollection(t.Context(), "capped", options.CreateCollection().SetCapped(true).SetSizeInBytes(16<<20)))
	const all = 300
	for _, name := range []string{"u", "outside", "capped"} {
		docs := make([]any, all)
		for i := range docs {
			docs[i] = bson.D{{Key: "_id", Value: i}, {Key: "pad", Value: make([]byte, 20_000)}}
		}
		_, err := db.Collection(name).InsertMany(t.Context(), docs)
		b.ok(err)
	}
	of, there := b.asks()
	spec := b.spec()
	spec.Rules.Exclude, spec.AllowMissing = []string{"d.outside"}, true
	spec.Limits.Bytes = 1 << 20
	first, ended, breakOff := b.begin(spec)
	b.until(ended, func() bool { return first.Status().Copy.Docs > 10 })
	b.ok(b.source.Database("admin").RunCommand(t.Context(),
		bson.D{{Key: "renameCollection", Value: "d.outside"}, {Key: "to", Value: "d.inside"}}).Err())
	drop := b.movedAndKept(0, 1)
	breakOff()
	for _, name := range []string{"u", "capped"} {
		if n, err := b.target.Database("d").Collection(name).EstimatedDocumentCount(t.Context()); err != nil || n >= all {
			t.Fatalf("%d documents of %s are copied already, %v", n, name, err)
		}
	}
	change := func(id string) {
		t.Helper()
		for _, name := range []string{"u", "inside", "capped"} {
			_, err := db.Collection(name).InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}})
			b.ok(err)
		}
	}
	change("kept")
	for _, c := range there.Collections {
		docs, err := of.Find(t.Context(), lookup.Collection{DB: "d", UUID: c.UUID},
			lookup.Question{IDs: []bson.RawValue{{Type: bson.TypeString, Value: bsoncore.AppendString(nil, "kept")}}})
		if err != nil || len(docs) != 1 || docs[0] == nil {
			t.Errorf("%s: %v, %v", c.NS, docs, err)
		}
	}
	spec.Limits = pace.Rates{}
	j, done := b.start(spec)
	b.following(j, done)
	change("last")
	names := []string{"u", "inside", "capped"}
	if os.Getenv("MILLRACE_TEST_VERSION") == "4.4" { // newer servers refuse that, or wait
		b.ok(b.source.Database("admin").RunCommand(t.Context(),
			bson.D{{Key: "renameCollection", Value: "d.u"}, {Key: "to", Value: "d.v"}}).Err())
		b.ok(db.CreateCollection(t.Context(), "u", options.CreateCollection().SetCollation(&options.Collation{Locale: "en"})))
		change("again")
		names = append(names, "v")
	}
	drop()
	b.finish(j, done, names...)
}
