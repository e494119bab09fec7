// Package routed gives tests a sharded cluster that they read through its routers.
package routed

import (
	"context"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// Bed is a sharded cluster with a connection to its routers.
type Bed struct {
	*testing.T
	Lab *sharded.Cluster
	C   *mongo.Cluster
}

// New starts a cluster of the tests' version. Its shards delete at once what has moved.
func New(t *testing.T, o sharded.Options) *Bed {
	t.Helper()
	lab.NeedServers(t)
	o.Version, o.SetParameters = os.Getenv("MILLRACE_TEST_VERSION"), map[string]string{"orphanCleanupDelaySecs": "0"}
	l := sharded.ForTest(t, o)
	return &Bed{T: t, Lab: l, C: dial.Cluster(t, l.URI(), mongo.Options{})}
}

// In is the bed for a subtest.
func (b *Bed) In(t *testing.T) *Bed { return &Bed{T: t, Lab: b.Lab, C: b.C} }

// OK ends the test at an error.
func (b *Bed) OK(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// Moving moves random chunks of a collection to random shards until it is ended, which returns how many moved.
func (b *Bed) Moving(rnd *rand.Rand, ns string) (end func() int) {
	ctx, cancel := context.WithCancel(b.Context())
	names, moved := b.Lab.ShardNames(), 0
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			chunks, err := b.Lab.Chunks(ctx, ns)
			if err == nil {
				to := names[rnd.IntN(len(names))]
				err = b.Lab.MoveChunk(ctx, ns, chunks[rnd.IntN(len(chunks))].Min, to)
			}
			if err == nil {
				moved++
			}
		}
	})
	return func() int {
		cancel()
		wg.Wait()
		return moved
	}
}
