package sharded_test

import (
	"os"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/verify"
	"github.com/millrace/millrace/test/load"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// TestShardedSeries: a time series whose buckets are on several shards, and move in the
// copy and in the changes, arrives bucket by bucket.
func TestShardedSeries(t *testing.T) {
	lab.Nightly(t)
	if os.Getenv("MILLRACE_TEST_VERSION") != "" {
		t.Skip("servers before 5.1 do not shard time series")
	}
	b := newBed(t)
	ctx := t.Context()
	b.ok(b.lab.CreateDatabase(ctx, "d", b.lab.ShardNames()[0]))
	b.ok(b.lab.ShardCollection(ctx, "d.series",
		sharded.Sharding{Key: bson.D{{Key: "of", Value: 1}}, Series: sharded.SeriesFields{Time: "at", Meta: "of"}}))
	const buckets = "d.system.buckets.series"
	meta := func(of int) bson.D { return bson.D{{Key: "meta", Value: of}} }
	b.ok(b.lab.Split(ctx, buckets, meta(10), meta(20), meta(30)))
	began, n := time.Now().Truncate(time.Second), 0
	measure := func() {
		t.Helper()
		for of := range 40 {
			n++
			b.ok(load.Measure(ctx, b.lab, "d.series", of, bson.D{{Key: "_id", Value: n},
				{Key: "at", Value: began.Add(time.Duration(n) * time.Second)}, {Key: "of", Value: of}, {Key: "v", Value: n * n}}))
		}
	}
	move := func(of, to int) {
		t.Helper()
		b.ok(b.lab.MoveChunk(ctx, buckets, meta(of), b.lab.ShardNames()[to]))
	}
	measure()
	move(10, 1)
	move(30, 1)
	measure()
	j, done := b.start(b.spec())
	measure()
	move(20, 1)
	b.following(j, done)
	measure()
	move(10, 0)
	move(0, 1)
	measure()
	for _, s := range b.lab.Shards() { // as a mongos has each do it
		_, err := b.client(s.URI()).Database("d").Collection("series").Indexes().
			CreateOne(ctx, driver.IndexModel{Keys: bson.D{{Key: "of", Value: 1}, {Key: "v", Value: 1}}})
		b.ok(err)
	}
	measure()
	b.ok(j.Finalize(ctx, true))
	b.ok(<-done)
	if st := j.Status(); st.Phase != job.PhaseFinalized || len(st.Differences) > 0 {
		t.Errorf("%s: %v", st.Phase, st.Differences)
	}
	b.sameDocuments("system.buckets.series")
	if got, err := b.target.Database("d").Collection("series").CountDocuments(ctx, bson.D{}); err != nil ||
		got != int64(n) {
		t.Errorf("%d measurements on the target, want %d: %v", got, n, err)
	}
	if r := b.verify(verify.Spec{Source: b.sourceURI, Target: b.targetURI}); !r.Same || len(r.Collections) != 1 {
		t.Errorf("%+v", r)
	}
}
