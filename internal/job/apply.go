package job

import (
	"cmp"
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/follow"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

const (
	// DefaultApplyBuffer is Spec.ApplyBuffer where it is 0.
	DefaultApplyBuffer = 256 << 20
	// LeastApplyBuffer is the least Spec.ApplyBuffer: smaller parts are not worth an exchange.
	LeastApplyBuffer = 8_000_000
)

// applyBuffer gives each stage a part of its own, so that none waits for a later one.
type applyBuffer struct {
	readAhead    int64 // replies of the source
	batch        int   // entries on their way from the source to the sink
	transactions int64 // of open transactions
	inFlight     int64 // events that the sink was given
	writes       int   // of those, in one partition's batch of writes
	kept         int   // what one partition keeps back to fold, as Sizes.Coalesce
}

// newApplyBuffer keeps most bytes back: what folds grows with their square.
func newApplyBuffer(bytes int64, partitions int) applyBuffer {
	const (
		parts     = 8
		batches   = 8       // under way at once
		mostBatch = 4 << 20 // more at once is no faster
	)
	bytes, partitions = cmp.Or(bytes, DefaultApplyBuffer), cmp.Or(partitions, mongosink.DefaultPartitions)
	part := bytes / parts
	b := applyBuffer{readAhead: part, transactions: part, inFlight: part,
		batch: int(min(part/batches, mostBatch)), writes: int(min(max(part/int64(partitions), 1), mostBatch))}
	kept := bytes - 3*part - int64(b.batch)
	b.kept = int(max(kept/int64(partitions*fold.MostKept), 1))
	return b
}

// OpenSink is sink for package follow.
func (s *session) OpenSink(pos stream.Position, o mongosink.Options) follow.Sink {
	return s.sink(pos, o)
}

func (s *session) sink(pos stream.Position, o mongosink.Options) *mongosink.Engine {
	partitions := partitionsFor(s.spec.Partitions, s.dst.Pool.RoundTripTime())
	b := newApplyBuffer(s.spec.ApplyBuffer, partitions)
	o.Sizes = mongosink.Sizes{Partitions: partitions, InFlight: b.inFlight, BatchBytes: b.writes, Coalesce: b.kept}
	o.Targets = targets{s.source.Names, s.dst, s.cat, s.rules, s.counters, s.spec.Mode == ModeIncremental}
	o.LeavesOut = s.source.Leaves != nil
	o.Policy = mongosink.Policy{Overwrite: s.spec.OnExisting == ExistingMerge, OnConflict: s.spec.OnConflict,
		Letters: s.letters}
	o.Source = mongosink.Source{Reread: s.source.Reread, Has: s.source.OnSource}
	if s.source.shards != nil {
		o.Source.Whole = s.source.shards.Whole
	}
	o.Write.Transactions, o.Write.SameTerm, o.Write.Gate = s.txn, s.store.SameTerm, s.dstGate
	o.Write.Others = s.spec.OnExisting == ExistingMerge
	o.Log, o.Limit = s.log, s.limit
	return mongosink.New(s.dst, pos, o)
}

// partitionsFor grows with the round trip, in which a partition waits.
func partitionsFor(asked int, away time.Duration) int {
	const (
		near, most = 8, 16
		doubling   = 40 * time.Millisecond // the round trip for which there are twice as many
	)
	if asked > 0 {
		return asked
	}
	return min(near+int(min(float64(near)*float64(away)/float64(doubling), most)), most)
}

type targets struct {
	*schema.Names
	dst      *mongo.Cluster
	cat      *schema.Target
	rules    *transform.Set
	counters *transform.Counters
	foreign  bool // expiries that the target had by itself count
}

// Absent is false for the old name of a retained collection. Package transform filters its events.
func (t targets) Absent(ns string) bool { return t.Names.Absent(ns) && len(t.Retentions(ns)) == 0 }

// Traits returns what restricts events of a target collection.
func (t targets) Traits(ctx context.Context, ns string) (mongosink.Traits, error) {
	c, _, err := collection(ctx, t.dst, ns)
	if err != nil {
		return mongosink.Traits{}, err
	}
	keys, err := schema.ShardKeys(ctx, t.dst, []string{ns})
	return mongosink.Traits{Capped: c.Capped(), Collated: c.Collated(), Key: docwrite.KeyOf(keys[ns], c.Collated())}, err
}

// Expiry returns how documents expire that stay on the target, and what counts them, at the applied
// position. In mode incremental the target had the settings before.
func (t targets) Expiry(ctx context.Context, r *stream.Route) (expiry.Settings, func(n int64), error) {
	c, _, err := collection(ctx, t.dst, r.Target)
	if err != nil {
		return nil, nil, err
	}
	s, err := t.cat.Deferred.Expiry(ctx, r.Target, c.Collated(), t.foreign)
	return s, t.counters.Expired(t.rules.Route(r.Source)), err
}

func collection(ctx context.Context, c *mongo.Cluster, ns string) (coll schema.Collection, found bool, err error) {
	db, name := mongo.SplitNS(ns)
	specs, err := c.Client.Database(db).ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: name}})
	if err != nil || len(specs) == 0 {
		return coll, false, err
	}
	coll = schema.Collection{NS: ns, Options: specs[0].Options}
	if uuid := specs[0].UUID; uuid != nil {
		coll.UUID = *uuid
	}
	return coll, true, nil
}
