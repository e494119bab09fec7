// Package origin is the source of a job, whatever its shape: a replica set, the shards of a cluster, or
// any deployment by change streams. It returns the catalog as of a position, the changes from there,
// single documents, and which shard of a cluster owns what.
package origin

import (
	"context"
	"slices"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/lookup"
	"github.com/millrace/millrace/internal/source/merge"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// Set is a replica set, or a standalone, which has no changes. Spool may have some of them. Shared may be nil.
type Set struct {
	*mongo.Cluster
	Spool  *oplog.Spooler
	Shared *oplog.Shared
}

// Snapshot lists the catalog as of a position to follow from.
func (s Set) Snapshot(ctx context.Context, scope schema.Scope) (schema.Snapshot, stream.Position, error) {
	snap, err := schema.TakeSnapshot(ctx, s.Cluster, scope, oplog.Changes(s.Cluster))
	return snap, oplog.Position(snap.At, snap.At), err
}

// Changes returns the changes of the set.
func (s Set) Changes(o oplog.Options, _ func() []schema.Name, _ mongo.OpTime) stream.Source {
	o.Spool = s.Spool
	return oplog.New(s.Cluster, o)
}

// StartAt returns the position of a consumer that has applied everything up to at.
func (s Set) StartAt(at mongo.OpTime) stream.Position { return oplog.Position(at, at) }

// ReadFrom returns the first change needed from a position on.
func (s Set) ReadFrom(p stream.Position) (mongo.OpTime, error) { return oplog.ReadFrom(p) }

// Window reads what the oplog holds.
func (s Set) Window(ctx context.Context) (oplog.Window, error) {
	return s.Shared.Window(ctx, s.Cluster)
}

// Recent returns the positions of at most a second ago.
func (s Set) Recent(ctx context.Context) (mongo.Positions, error) {
	return s.Shared.Positions(ctx, s.Cluster)
}

// ListOne finds a collection by its UUID, as schema.ListOne does.
func (s Set) ListOne(ctx context.Context, db string, uuid bson.Binary) (schema.Collection, bool, error) {
	return schema.ListOne(ctx, s.Cluster, db, uuid)
}

// Building lists the index builds under way, as schema.Building does.
func (s Set) Building(ctx context.Context, rules *transform.Set) ([]schema.Collection, error) {
	return schema.Building(ctx, s.Cluster, rules)
}

// Find reads documents by their _ids, as lookup.Find does.
func (s Set) Find(ctx context.Context, of lookup.Collection, q lookup.Question) ([]bson.Raw, error) {
	return lookup.Find(ctx, s.Cluster, of, q)
}

// Look calls fn for the events of collections within a span and for all schema changes.
func (s Set) Look(ctx context.Context, collections []string, span oplog.Span, fn func(*stream.Event) error) error {
	look := oplog.Look{Cluster: s.Cluster, Spool: s.Spool, Collections: collections}
	return look.Each(ctx, span, fn)
}

// Holds returns nil: a set's one oplog has everything.
func (s Set) Holds(context.Context, mongo.OpTime) error { return nil }

// Sharded is a sharded cluster, with the shards of the last Refresh. It is safe for concurrent use.
type Sharded struct {
	now atomic.Pointer[shards.Cluster]
}

// NewSharded takes over an open cluster.
func NewSharded(c *shards.Cluster) *Sharded {
	s := &Sharded{}
	s.now.Store(c)
	return s
}

// Cluster returns the present cluster. Several actions on its shards need the same one.
func (c *Sharded) Cluster() *shards.Cluster { return c.now.Load() }

// Part is a deployment, or a part of one, with its name in words.
type Part struct {
	Name string
	*mongo.Cluster
}

// Parts returns the replica sets of a source that are read: itself, or the shards and the config
// servers behind a router.
func Parts(source *mongo.Cluster, of *Sharded) []Part {
	if of == nil {
		return []Part{{"the source", source}}
	}
	var parts []Part
	for _, s := range of.Cluster().Shards {
		parts = append(parts, Part{"the source's shard " + s.Name, s.Cluster})
	}
	if config := of.Cluster().Config(); config != nil {
		parts = append(parts, Part{"the source's config servers", config})
	}
	return parts
}

// Refreshed names shards that a Refresh opened or left out.
type Refreshed struct {
	Joined, Left []string
	Unread       []string // have left, and are open for what a position lacks of them
}

// Refresh opens the shards that joined, and those that left if a position lacks something of them.
// It leaves out others that left. One goroutine calls it.
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

func missing(all, others []shards.Shard) (names []string) {
	for _, s := range all {
		if !slices.ContainsFunc(others, func(o shards.Shard) bool { return o.Name == s.Name }) {
			names = append(names, s.Name)
		}
	}
	return names
}

func (c *Sharded) Close() { c.Cluster().Close() }

func (c *Sharded) router() *mongo.Cluster { return c.Cluster().Router }

// Changes returns what users do, on all shards. The names are as of the position of a run, or after
// the noted schema change.
func (c *Sharded) Changes(o oplog.Options, names func() []schema.Name, noted mongo.OpTime) stream.Source {
	of := c.Cluster()
	n := int64(len(of.Shards))
	o.ReadAheadBytes, o.TxnBufferBytes = max(o.ReadAheadBytes/n, 1), max(o.TxnBufferBytes/n, 1)
	return of.Stream(o, merge.Options{AheadBytes: o.ReadAheadBytes, BatchBytes: int64(o.BatchBytes)},
		func() []shards.Collection { return known(names()) }, noted)
}

// Begin tracks collections that move while no Stream runs. The names are as of the position.
func (c *Sharded) Begin(pos stream.Position, names []schema.Name) error {
	return c.Cluster().SetCollections(pos, known(names))
}

func known(names []schema.Name) (there []shards.Collection) {
	for _, one := range names {
		there = append(there, shards.Collection{NS: one.NS, UUID: one.UUID})
	}
	return there
}

// StartAt returns the position of a consumer that has applied everything up to at.
func (c *Sharded) StartAt(at mongo.OpTime) stream.Position { return oplog.Position(at, at) }

// ReadFrom returns the first change of any shard that is needed from a position on.
func (c *Sharded) ReadFrom(p stream.Position) (mongo.OpTime, error) { return shards.ReadFrom(p) }
