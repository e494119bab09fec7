package sharded_test

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/verify"
	"github.com/millrace/millrace/test/load"
	"github.com/millrace/millrace/workshop/lab"
)

// TestShardLeavesWhileStopped: a shard is emptied and removed while the job is stopped, with
// changes that the job has not read. Its servers run on: the job reads them to their end, by
// the hosts in the checkpoint, or by an address that it is given.
func TestShardLeavesWhileStopped(t *testing.T) {
	lab.Nightly(t)
	b := newBedOf(t, 4, false)
	b.collections()
	b.fill(100)
	end := func() func() {
		ctx, cancel := context.WithCancel(t.Context())
		var g errgroup.Group
		g.Go(func() error { return load.Run(ctx, b.source, "d", b.seed) })
		return func() { t.Helper(); cancel(); b.ok(g.Wait()) }
	}()
	spec := b.spec()
	j, done, breakOff := b.begin(spec)
	b.following(j, done)
	leave := func(name string) {
		t.Helper()
		b.applies(j, done, j.Status().Follow.Operations+300)
		breakOff()
		if !b.reads(name) {
			t.Errorf("the position does not name %s", name)
		}
		b.emptied(name)
	}
	passes := func(name string) {
		t.Helper()
		j, done, breakOff = b.begin(spec)
		b.following(j, done)
		b.applies(j, done, 300)
		b.until(done, func() bool { return !b.reads(name) })
	}
	third, fourth := b.lab.ShardNames()[2], b.lab.ShardNames()[3]
	leaving := b.lab.Shards()[3].Members()[0]
	leave(fourth)
	b.ok(leaving.Stop())
	j, done, breakOff = b.begin(spec)
	b.until(done, func() bool { return strings.Contains(j.Status().Waiting, "shard "+fourth+" has left") })
	b.ok(leaving.Start(t.Context()))
	b.following(j, done)
	breakOff()
	passes(fourth)

	// A checkpoint of an older version has no hosts.
	address := b.lab.Shards()[2].URI()
	leave(third)
	jobs := b.target.Database(mongo.StateDB).Collection("jobs")
	var stored struct{ Mark string }
	b.ok(jobs.FindOne(t.Context(), bson.D{}).Decode(&stored))
	old := regexp.MustCompile(`,"hosts":\{[^}]*\}`).ReplaceAllString(stored.Mark, "")
	_, err := jobs.UpdateOne(t.Context(), bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "mark", Value: old}}}})
	b.ok(err)
	_, done, breakOff = b.begin(spec)
	if err := <-done; err == nil || !strings.Contains(err.Error(), "shard "+third+" has left") ||
		!strings.Contains(mongo.HintOf(err), "--source-shard "+third+"=") {
		t.Errorf("%v, %s", err, mongo.HintOf(err))
	}
	breakOff()
	spec.SourceShards = map[string]string{third: address, "typo": address}
	_, done, breakOff = b.begin(spec)
	if err := <-done; err == nil || !strings.Contains(err.Error(), `no shard "typo"`) {
		t.Errorf("%v", err)
	}
	breakOff()
	spec.SourceShards = map[string]string{third: address}
	passes(third)
	end()
	b.finish(j, done)
	r, err := verify.Clusters(t.Context(), verify.Spec{Source: spec.Source, Target: spec.Target,
		SourceShards: spec.SourceShards, ShardsLeft: true, Rules: spec.Rules})
	if b.ok(err); !r.Same {
		t.Errorf("%+v", r)
	}
}

// emptied moves the chunks of a shard away and removes it.
func (b *bed) emptied(name string) {
	b.Helper()
	for _, ns := range []string{"d.ranged", "d.hashed"} { // the balancer takes its time
		chunks, err := b.lab.Chunks(b.Context(), ns)
		b.ok(err)
		for _, c := range chunks {
			if c.Shard == name {
				b.ok(b.lab.MoveChunk(b.Context(), ns, c.Min, b.lab.ShardNames()[0]))
			}
		}
	}
	b.ok(b.lab.RemoveShard(b.Context(), name))
}
