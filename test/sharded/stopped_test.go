package sharded_test

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/workshop/lab"
)

// TestStoppedServersAreNamed: the status names what a job waits for, whichever server of
// two sharded clusters stops to answer.
func TestStoppedServersAreNamed(t *testing.T) {
	lab.Nightly(t)
	lab.Nightly(t)
	b := newBedTo(t, "2x1", true)
	servers := map[string]*lab.Cluster{"source's config server": b.lab.Config(), "target's config server": b.to.Config()}
	for i := range b.lab.Shards() {
		servers["source's shard "+b.lab.ShardNames()[i]] = b.lab.Shards()[i]
		servers["target's shard "+b.to.ShardNames()[i]] = b.to.Shards()[i]
	}
	stopEach := func(j *job.Job) {
		t.Helper()
		for name, set := range servers {
			test.StopServer(t, name, set.Members()[0].Pid(), j.Status)
		}
	}
	var docs []any
	for i := range 1000 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}, {Key: "pad", Value: make([]byte, 4000)}})
	}
	for _, name := range []string{"hashed", "plain"} {
		for n := range 15 {
			for i := range docs {
				docs[i].(bson.D)[0].Value = n*len(docs) + i
			}
			_, err := b.source.Database("d").Collection(name).InsertMany(t.Context(), docs)
			b.ok(err)
		}
	}
	spec := b.spec()
	spec.Limits.Bytes = 1 << 20
	j, done := b.start(spec)
	b.until(done, func() bool { return j.Status().Copy.Docs > 0 })
	stopEach(j)
	j.SetLimits(t.Context(), pace.Rates{})
	b.following(j, done)
	writing, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for n := 0; writing.Err() == nil; n++ {
			one, enough := context.WithTimeout(writing, 2*time.Second)
			// of a server that is stopped it fails
			_, _ = b.source.Database("d").Collection("hashed").InsertOne(one, bson.D{{Key: "_id", Value: -n}})
			enough()
			pause(20)
		}
	}()
	stopEach(j)
	end()
	<-ended
	b.finish(j, done, "hashed", "plain")
}
