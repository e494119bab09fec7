package origin

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/merge"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/stream"
)

// Sharded is a sharded cluster, with the shards that it had at the last Refresh. It is
// safe for concurrent use.
type Sharded struct {
	now atomic.Pointer[shards.Cluster]
}

// NewSharded takes over an open cluster.
func NewSharded(c *shards.Cluster) *Sharded {
	s := &Sharded{}
	s.now.Store(c)
	return s
}

// Cluster is the cluster of now. Whoever does several things with its shards does them
// with one.
func (c *Sharded) Cluster() *shards.Cluster { return c.now.Load() }

// Refreshed are the names of shards that a Refresh opened or left out.
type Refreshed struct {
	Joined, Left []string
	Unread       []string // have left, and are open for what a position lacks of them
}

// Refresh opens the shards that have joined and those that have left and of which a position
// lacks something. It leaves out the others that have left. One goroutine calls it.
func (c *Sharded) Refresh(ctx context.Context, pos stream.Position) (r Refreshed, err error) {
	was := c.Cluster()
	now, err := was.Refresh(ctx, pos)
	if err != nil {
		return r, err
	}
	c.now.Store(now)
	r.Left = missing(was.Shards, now.Shards)
	for _, name := range missing(now.Shards, was.Shards) {
		if now.HasLeft(name) {
			r.Unread = append(r.Unread, name)
		} else {
			r.Joined = append(r.Joined, name)
		}
	}
	return r, nil
}

// missing are the names of those that the others lack.
func missing(all, others []shards.Shard) (names []string) {
	for _, s := range all {
		if !slices.ContainsFunc(others, func(o shards.Shard) bool { return o.Name == s.Name }) {
			names = append(names, s.Name)
		}
	}
	return names
}

// Close closes the shards.
func (c *Sharded) Close() { c.Cluster().Close() }

func (c *Sharded) router() *mongo.Cluster { return c.Cluster().Router }

// Changes is what users do there, all shards together. The names are those at the
// position of a run, or after the schema change that was noted.
func (c *Sharded) Changes(o oplog.Options, names func() []schema.Name, noted mongo.OpTime) stream.Source {
	of := c.Cluster()
	n := int64(len(of.Shards))
	o.ReadAheadBytes, o.TxnBufferBytes = max(o.ReadAheadBytes/n, 1), max(o.TxnBufferBytes/n, 1)
	return of.Stream(o, merge.Options{AheadBytes: o.ReadAheadBytes, BatchBytes: int64(o.BatchBytes)},
		func() []shards.Collection { return known(names()) }, noted)
}

// Begin has collections be found again that move while no Stream runs. The names are
// those at the position.
func (c *Sharded) Begin(pos stream.Position, names []schema.Name) error {
	return c.Cluster().SetCollections(pos, known(names))
}

func known(names []schema.Name) (there []shards.Collection) {
	for _, one := range names {
		there = append(there, shards.Collection{NS: one.NS, UUID: one.UUID})
	}
	return there
}

// ReadFrom is the first change that whoever stands at a position needs of any shard.
func (c *Sharded) ReadFrom(p stream.Position) (mongo.OpTime, error) { return shards.ReadFrom(p) }
