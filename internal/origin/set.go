// Package origin is the source of a job as the job reads it, whatever its shape: a
// replica set or the shards of a cluster. It gives the catalog as it stood at a position,
// the changes from there, single documents beside them, and of a cluster which shard
// owns what.
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

// Set is a replica set, or a standalone, which has no changes. What Spool has of its
// changes counts too.
type Set struct {
	*mongo.Cluster
	Spool *oplog.Spooler
}

// Snapshot lists the catalog as it stood at a position to follow from.
func (s Set) Snapshot(ctx context.Context, scope schema.Scope) (schema.Snapshot, stream.Position, error) {
	snap, err := schema.TakeSnapshot(ctx, s.Cluster, scope, oplog.Changes(s.Cluster))
	return snap, oplog.Position(snap.At, snap.At), err
}

// Changes is what happens there.
func (s Set) Changes(o oplog.Options, _ func() []schema.Name, _ mongo.OpTime) stream.Source {
	o.Spool = s.Spool
	return oplog.New(s.Cluster, o)
}

// ReadFrom is the first change that whoever stands at a position needs.
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

// Holds is true of a set: its one oplog has all.
func (s Set) Holds(context.Context, mongo.OpTime) error { return nil }
