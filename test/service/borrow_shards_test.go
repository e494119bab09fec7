package service

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/test/load"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// TestBorrowersOfShardsDie is TestBorrowersDie between sharded clusters: chunks of the
// source move all the time, and what is written changes shard keys.
func TestBorrowersOfShardsDie(t *testing.T) {
	lab.Nightly(t) // two sharded clusters whose chunks move, and leases of 8 seconds, need most of a machine
	t.Parallel()
	cluster := func(routers int) *sharded.Cluster {
		return sharded.ForTest(t, sharded.Options{Options: lab.Options{Topology: "sharded:2x1",
			SetParameters: map[string]string{"orphanCleanupDelaySecs": "0"}}, Routers: routers})
	}
	source, target := cluster(1), cluster(2)
	b := newBedBetween(t, source.URI(), target.URI())
	b.loadShards(source)
	seed := testseed.Of(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var g errgroup.Group
	var moves atomic.Int32
	g.Go(func() error { return load.Run(ctx, b.sc, "d", seed) })
	g.Go(func() error {
		r := rand.New(rand.NewPCG(seed, 77))
		names := source.ShardNames()
		for ctx.Err() == nil {
			if source.MoveChunk(ctx, "d.ranged", bson.D{{Key: "k", Value: 100 * r.IntN(6)}}, names[r.IntN(len(names))]) == nil {
				moves.Add(1)
			}
		}
		return nil
	})
	b.die("['d.*']", func() {
		db := b.sc.Database("d")
		for _, coll := range []string{"ranged", "plain"} {
			if _, err := db.Collection(coll).DeleteMany(t.Context(),
				bson.D{{Key: "_id", Value: bson.D{{Key: "$mod", Value: bson.A{11, 1}}}},
					{Key: "pad", Value: bson.D{{Key: "$exists", Value: true}}}}); err != nil {
				t.Error(err)
			}
		}
	})
	stop()
	if err := g.Wait(); err != nil {
		t.Errorf("seed %d: %v", seed, err)
	}
	b.phase(false, job.PhaseFollowing)
	b.finalize()
	t.Logf("seed %d, %d chunks moved, %+v", seed, moves.Load(), b.job().Report.Status.Copy.Workers)
	for _, coll := range []string{"ranged", "hashed", "plain"} {
		want, got := b.documents(b.sc, coll), b.documents(b.dc, coll)
		for id, doc := range want {
			if !bytes.Equal(got[id], doc) {
				t.Errorf("seed %d: %s %s differs", seed, coll, id)
			}
		}
		for id := range got {
			if want[id] == nil {
				t.Errorf("seed %d: %s has %s, which the source has not", seed, coll, id)
			}
		}
		t.Logf("%s: %d documents", coll, len(want))
	}
}

// loadShards makes the collections of load.Run, each of 80 MB.
func (b *bed) loadShards(source *sharded.Cluster) {
	b.Helper()
	ctx, names := b.Context(), source.ShardNames()
	ok := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	ok(source.CreateDatabase(ctx, "d", names[0]))
	ok(source.ShardCollection(ctx, "d.ranged", sharded.Sharding{Key: bson.D{{Key: "k", Value: 1}}}))
	for k := 100; k < load.Keys; k += 100 {
		ok(source.Split(ctx, "d.ranged", bson.D{{Key: "k", Value: k}}))
	}
	for k := 300; k < load.Keys; k += 100 {
		ok(source.MoveChunk(ctx, "d.ranged", bson.D{{Key: "k", Value: k}}, names[1]))
	}
	ok(source.ShardCollection(ctx, "d.hashed", sharded.Sharding{Key: bson.D{{Key: "_id", Value: "hashed"}}, Chunks: 6}))
	pad := bytes.Repeat([]byte("x"), 20_000)
	quick := options.Collection().SetWriteConcern(writeconcern.W1()) // a move waits for a majority
	for _, coll := range []string{"ranged", "hashed", "plain"} {
		for from := range 80 {
			docs := make([]any, 50)
			for i := range docs {
				id := 200_000 + from*50 + i
				docs[i] = bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id % load.Keys}, {Key: "pad", Value: pad}}
			}
			_, err := b.sc.Database("d").Collection(coll, quick).InsertMany(ctx, docs)
			ok(err)
		}
	}
}

// documents are those of a collection, by _id. None may be there twice.
func (b *bed) documents(c *mongo.Client, coll string) map[string]bson.Raw {
	b.Helper()
	cur, err := c.Database("d").Collection(coll).Find(b.Context(), bson.D{})
	var docs []bson.Raw
	if err == nil {
		err = cur.All(b.Context(), &docs)
	}
	if err != nil {
		b.Fatal(err)
	}
	all := map[string]bson.Raw{}
	for _, doc := range docs {
		id := doc.Lookup("_id").String()
		if all[id] != nil {
			b.Errorf("%s has %s twice", coll, id)
		}
		all[id] = doc
	}
	return all
}
