// Package origin is the source of a job, whatever its shape: a replica set or the shards of a
// cluster. It returns the catalog as of a position, the changes from there, single documents, and
// which shard of a cluster owns what.
package origin

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/lookup"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// Set is a replica set, or a standalone, which has no changes. Spool may have some of them.
type Set struct {
	*mongo.Cluster
	Spool *oplog.Spooler
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

// ReadFrom returns the first change needed from a position on.
func (s Set) ReadFrom(p stream.Position) (mongo.OpTime, error) { return oplog.ReadFrom(p) }

// Window reads what the oplog holds.
func (s Set) Window(ctx context.Context) (oplog.Window, error) {
	return oplog.ReadWindow(ctx, s.Cluster)
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
