package job

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/follow"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/lookup"
	"github.com/millrace/millrace/internal/source/merge"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/stream"
)

// origin is the source as a job needs it, whatever its shape.
type origin interface {
	follow.Origin
	// Snapshot lists the catalog as it stood at a position to follow from.
	Snapshot(ctx context.Context, scope schema.Scope) (schema.Snapshot, stream.Position, error)
	// Changes is what happens there. The names are those at the position of a run.
	Changes(o oplog.Options, names func() []schema.Name) stream.Source
	// ReadFrom is the first change that whoever stands at a position needs.
	ReadFrom(stream.Position) (mongo.OpTime, error)
	// Window is the oldest and the newest position that can be read.
	Window(ctx context.Context) (oldest, newest mongo.OpTime, err error)
	// Full reports that there are oplogs that forget.
	Full(ctx context.Context) bool
}

// ofSet is a replica set, or a standalone, which has no changes.
type ofSet struct {
	*mongo.Cluster
	spool *oplog.Spooler
}

func (s ofSet) Snapshot(ctx context.Context, scope schema.Scope) (schema.Snapshot, stream.Position, error) {
	snap, err := schema.TakeSnapshot(ctx, s.Cluster, scope, oplog.Changes(s.Cluster))
	return snap, oplog.Position(snap.At, snap.At), err
}

func (s ofSet) Changes(o oplog.Options, _ func() []schema.Name) stream.Source {
	o.Spool = s.spool
	return oplog.New(s.Cluster, o)
}

func (s ofSet) ReadFrom(p stream.Position) (mongo.OpTime, error) { return oplog.ReadFrom(p) }

func (s ofSet) Window(ctx context.Context) (oldest, newest mongo.OpTime, err error) {
	return oplog.Window(ctx, s.Cluster)
}

func (s ofSet) Full(ctx context.Context) bool { return oplog.Full(ctx, s.Cluster) }

func (s ofSet) ListOne(ctx context.Context, db string, uuid bson.Binary) (schema.Collection, bool, error) {
	return schema.ListOne(ctx, s.Cluster, db, uuid)
}

func (s ofSet) Find(ctx context.Context, of lookup.Collection, ids []bson.RawValue, at mongo.OpTime, onlyIDs bool) ([]bson.Raw, error) {
	return lookup.Find(ctx, s.Cluster, of, ids, at, onlyIDs)
}

func (s ofSet) Look(ctx context.Context, collections []string, span oplog.Span, fn func(*stream.Event) error) error {
	look := oplog.Look{Cluster: s.Cluster, Spool: s.spool, Collections: collections}
	return look.Each(ctx, span, fn)
}

// ofShards is a sharded cluster.
type ofShards struct{ *shards.Cluster }

func (s ofShards) Changes(o oplog.Options, names func() []schema.Name) stream.Source {
	n := int64(len(s.Shards))
	o.ReadAheadBytes, o.TxnBufferBytes = max(o.ReadAheadBytes/n, 1), max(o.TxnBufferBytes/n, 1)
	return s.Stream(o, merge.Options{AheadBytes: o.ReadAheadBytes, BatchBytes: int64(o.BatchBytes)}, func() (there []shards.Collection) {
		for _, one := range names() {
			there = append(there, shards.Collection{NS: one.NS, UUID: one.UUID})
		}
		return there
	})
}

func (s ofShards) ReadFrom(p stream.Position) (mongo.OpTime, error) { return shards.ReadFrom(p) }
