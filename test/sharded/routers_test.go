package sharded_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/changestream"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// newRoutersBed has a source whose shards refuse to be read directly, and two routers.
func newRoutersBed(t *testing.T) *bed { return newRoutersBedOf(t, lab.Options{}) }

func newRoutersBedOf(t *testing.T, o lab.Options) *bed {
	t.Helper()
	lab.NeedServers(t)
	b := &bed{T: t, seed: testseed.Of(t)}
	o.Topology, o.SetParameters = "sharded:2x1", map[string]string{"orphanCleanupDelaySecs": "0"}
	b.lab = sharded.ForTest(t, sharded.Options{Routers: 2, RefuseDirect: true, Options: o})
	b.sourceURI, b.targetURI = b.lab.URI(), lab.ForTest(t, lab.Options{}).URI()
	b.source, b.target = b.client(b.sourceURI), b.client(b.targetURI)
	return b
}

// TestRoutersMovePrimary: unsharded collections move to another shard while a job follows by change streams, and
// while it is stopped. A collection that is dropped and made again is another one.
func TestRoutersMovePrimary(t *testing.T) {
	b := newRoutersBed(t)
	ctx, names := t.Context(), b.lab.ShardNames()
	b.ok(b.lab.CreateDatabase(ctx, "d", names[0]))
	db := b.source.Database("d")
	b.ok(db.CreateCollection(ctx, "capped", options.CreateCollection().SetCapped(true).SetSizeInBytes(8192)))
	b.ok(db.CreateCollection(ctx, "folded",
		options.CreateCollection().SetCollation(&options.Collation{Locale: "en", Strength: 1})))
	n := 0
	fill := func() {
		t.Helper()
		for range 50 {
			n++
			for _, name := range []string{"capped", "folded", "again"} {
				_, err := db.Collection(name).InsertOne(ctx, bson.D{{Key: "_id", Value: n}, {Key: "n", Value: n}})
				b.ok(err)
			}
		}
	}
	fill()
	first, ended, breakOff := b.begin(b.spec())
	b.following(first, ended)
	fill()
	b.ok(b.lab.MovePrimary(ctx, "d", names[1]))
	fill()
	b.applies(first, ended, 200)
	breakOff()
	b.ok(b.lab.MovePrimary(ctx, "d", names[0]))
	b.ok(db.Collection("again").Drop(ctx))
	fill()
	j, done := b.start(b.spec())
	b.following(j, done)
	b.ok(b.lab.MovePrimary(ctx, "d", names[1]))
	fill()
	b.finish(j, done, "capped", "folded", "again")
}

// TestRouters: a cluster whose shards refuse direct reads arrives completely through its routers, while its chunks
// move. A job that is broken off goes on as it began.
func TestRouters(t *testing.T) {
	b := newRoutersBed(t)
	b.collections()
	b.fill(20)
	end := b.writing()
	first, ended, breakOff := b.begin(b.spec())
	b.following(first, ended)
	b.applies(first, ended, 100)
	breakOff()
	spec := b.spec()
	spec.Capture = job.CaptureStreams
	j, done := b.start(spec)
	b.following(j, done)
	b.applies(j, done, 500)
	end()
	b.finish(j, done)
}

// TestRoutersToShards: the same to a sharded cluster, which gets the shard keys of the source.
func TestRoutersToShards(t *testing.T) {
	lab.Nightly(t)
	b := newRoutersBed(t)
	b.collections()
	b.fill(20)
	b.to = sharded.ForTest(t, sharded.Options{Options: lab.Options{Topology: "sharded:2x1"}, Routers: 1})
	b.targetURI = b.to.URI()
	b.target = b.client(b.targetURI)
	end := b.writing()
	spec := b.spec()
	spec.Via = job.ViaRouters
	j, done := b.start(spec)
	b.following(j, done)
	b.applies(j, done, 200)
	end()
	b.finish(j, done)
}

// TestRoutersForget: a shard that has overwritten what a stopped job reads next ends it with a remedy. The target stays
// as it is.
func TestRoutersForget(t *testing.T) {
	lab.Nightly(t)
	b := newRoutersBedOf(t, lab.Options{OplogMB: 8, Args: []string{"--syncdelay", "1"}})
	b.collections()
	b.fill(20)
	j, ended, breakOff := b.begin(b.spec())
	b.following(j, ended)
	breakOff()
	oplog := b.client(b.lab.Shards()[0].URI()).Database("local").Collection("oplog.rs")
	entry := func(order int) (ts bson.Timestamp) {
		t.Helper()
		raw, err := oplog.FindOne(t.Context(), bson.D{},
			options.FindOne().SetSort(bson.D{{Key: "$natural", Value: order}})).Raw()
		b.ok(err)
		ts.T, ts.I = raw.Lookup("ts").Timestamp()
		return ts
	}
	b.ok(b.lab.CreateDatabase(t.Context(), "beside", b.lab.ShardNames()[0]))
	newest := entry(-1)
	kit.Until(t, "the oplog of a shard begins anew", func() bool {
		_, err := b.source.Database("beside").Collection("c").InsertOne(t.Context(),
			bson.D{{Key: "pad", Value: make([]byte, 1<<20)}})
		b.ok(err)
		return newest.Before(entry(1))
	})
	hash := func() string {
		t.Helper()
		raw, err := b.target.Database("d").RunCommand(t.Context(), bson.D{{Key: "dbHash", Value: 1}}).Raw()
		b.ok(err)
		return raw.Lookup("md5").StringValue()
	}
	was := hash()
	_, done := b.start(b.spec())
	if err := <-done; !changestream.Lost(err) || !strings.Contains(mongo.HintOf(err), "--restart") {
		t.Errorf("%v, hint %q", err, mongo.HintOf(err))
	}
	if is := hash(); is != was {
		t.Errorf("the target was %s and is %s", was, is)
	}
}

// TestRoutersReshard: the same as TestReshard, through routers alone. Finalize names the index that resharding makes.
func TestRoutersReshard(t *testing.T) {
	lab.Nightly(t)
	t.Setenv("MILLRACE_VIA", "routers")
	TestReshard(t)
}

// TestRoutersSchema: the same as TestSchemaWhileAllMoves, through routers alone.
func TestRoutersSchema(t *testing.T) {
	lab.Nightly(t)
	t.Setenv("MILLRACE_VIA", "routers")
	TestSchemaWhileAllMoves(t)
}
