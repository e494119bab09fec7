package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// cluster is one side, of whatever kind.
type cluster interface {
	URI() string
	Stop() error
}

// startCluster starts a replica set, or a sharded cluster with two routers, and
// connects to it.
func (d *demo) startCluster(ctx context.Context, name, topology string) (c cluster, client *mongo.Client, err error) {
	o := lab.Options{
		Name: name, Topology: topology, Version: mongodVersion,
		ElectionTimeout: 30 * time.Second, // no primary is to change because the machine is busy
		// Expired documents go within a second, not a minute, as the demo is short.
		SetParameters: map[string]string{"ttlMonitorSleepSecs": "1"}}
	if sharded.Is(topology) {
		// A chunk comes back only to a shard that has cleaned up after it.
		o.SetParameters["orphanCleanupDelaySecs"] = "0"
		o.LeanJournal, o.CacheGB = true, 0.25 // there are many of them
		c, err = sharded.Start(ctx, sharded.Options{Options: o, Routers: 2})
	} else {
		c, err = lab.Start(ctx, o)
	}
	if err != nil {
		return nil, nil, err
	}
	// Writes do not wait for the majority, so that the oplog has an end that is not
	// yet committed, as it is in the worst case.
	client, err = mongo.Connect(options.Client().ApplyURI(c.URI()).SetWriteConcern(writeconcern.W1()))
	return c, client, err
}

// keys are how collections are sharded. The others stay on their database's primary
// shard.
func keys() map[string]string {
	return map[string]string{
		"shop.users": `{"_id": "hashed"}`, "shop.orders": `{"_id": 1}`, "shop.mixed": `{"_id": "hashed"}`, "shop.sessions": `{"_id": "hashed"}`,
	}
}

// shardCollections shards what is to be, before it is loaded.
func (d *demo) shardCollections(ctx context.Context) error {
	admin := d.sourceDB.Database("admin")
	if err := run(ctx, admin, `{"enableSharding": "shop"}`); err != nil {
		return err
	}
	for ns, key := range keys() {
		if err := run(ctx, admin, `{"shardCollection": %q, "key": %s}`, ns, key); err != nil {
			return fmt.Errorf("shard %s: %w", ns, err)
		}
	}
	for i := range 8 { // of orders that are loaded, and of those that writers make
		for _, form := range []string{"order-%08d", "new-%08d"} {
			at := fmt.Sprintf(form, i*d.docs/32)
			if err := run(ctx, admin, `{"split": "shop.orders", "middle": {"_id": %q}}`, at); err != nil {
				return fmt.Errorf("split orders at %s: %w", at, err)
			}
		}
	}
	return nil
}

// moves moves chunks by force, one after the other, with the balancer on, until stop.
type moves struct {
	cluster *sharded.Cluster
	quit    context.CancelFunc
	running errgroup.Group
	mu      sync.Mutex
	done    int
}

// startMoves begins; of a replica set there is nothing to move.
func startMoves(ctx context.Context, of cluster) (*moves, error) {
	m := &moves{quit: func() {}}
	c, ok := of.(*sharded.Cluster)
	if !ok {
		return m, nil
	}
	if err := c.Balancer(ctx, true); err != nil {
		return nil, err
	}
	m.cluster = c
	ctx = context.WithoutCancel(ctx) // a move under way is finished
	quit, cancel := context.WithCancel(ctx)
	m.quit = cancel
	m.running.Go(func() error {
		random := rand.New(rand.NewPCG(1, 3))
		for quit.Err() == nil {
			if err := m.move(ctx, random); err != nil {
				return fmt.Errorf("move a chunk: %w", err)
			}
			select {
			case <-quit.Done():
			case <-time.After(20 * pause):
			}
		}
		return nil
	})
	return m, nil
}

// move moves any chunk to any other shard.
func (m *moves) move(ctx context.Context, random *rand.Rand) error {
	names := m.cluster.ShardNames()
	ns := []string{"shop.users", "shop.orders", "shop.mixed"}[random.IntN(3)]
	chunks, err := m.cluster.Chunks(ctx, ns)
	if err != nil {
		return err
	}
	chunk, to := chunks[random.IntN(len(chunks))], names[random.IntN(len(names))]
	if chunk.Shard == to {
		return nil
	}
	err = m.cluster.MoveChunk(ctx, ns, chunk.Min, to)
	if _, refused := errors.AsType[mongo.CommandError](err); refused {
		return nil // a schema change came in between, say: the chunk stays
	}
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done++
	return nil
}

// stop waits for the move under way.
func (m *moves) stop() error {
	m.quit()
	return m.running.Wait()
}

func (m *moves) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.done
}
