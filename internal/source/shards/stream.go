package shards

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/merge"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
)

// Stream is the users' changes of a cluster as one stream.Source. Run must not be called concurrently;
// other methods may.
type Stream struct {
	*merge.Source
	cluster     *Cluster
	collections func() []Collection
	notedAt     mongo.OpTime
}

// Stream merges the shards' oplogs in the order of cluster time. It omits moves of chunks and databases,
// and passes each schema change once. collections returns those at the position where a run begins, or
// after a later schema change, at noted, that was stored before it was applied.
func (c *Cluster) Stream(each oplog.Options, all merge.Options, collections func() []Collection,
	noted mongo.OpTime) *Stream {
	return &Stream{Source: c.Source(each, all), cluster: c, collections: collections, notedAt: noted}
}

// Run implements stream.Source. It resumes from the position's token, which may be of an earlier time,
// and omits what it reads again. Shards that joined later are read from their beginning.
func (s *Stream) Run(ctx context.Context, pos stream.Position, emit emitFunc) error {
	uuids, from, err := s.cluster.resume(pos, s.notedAt, s.collections())
	if err == nil {
		from, err = s.cluster.addJoined(ctx, from)
	}
	if err != nil {
		return err
	}
	before := pos // end of the previous batch
	if !hasToken(before) {
		before = s.cluster.WithCopies(before, nil)
	}
	note := func(ev *stream.Event, copies []Copy) (err error) {
		ev.Change.Mark, err = tokenWithCopies(before, ev.At, copies)
		return err
	}
	out := func(ctx context.Context, b *stream.Batch) error {
		hadEvents := len(b.Events) > 0
		copies, err := uuids.filter(ctx, b, note)
		if err != nil {
			return err
		}
		topology := s.cluster.topology
		if gone, remaining := s.cluster.left.leftBy(b.End.TS); len(gone) > 0 {
			if b.Mark, err = merge.Without(b.Mark, gone); err != nil {
				return err
			}
			topology = remaining
		}
		b.Mark = newToken(b.Mark, b.End, copies, topology, s.cluster.hosts)
		before = b.Resume()
		skipApplied(b, pos.At, hadEvents)
		return emit(ctx, b)
	}
	return s.Source.Run(ctx, from, new(txnOrder).wrap(out))
}

func skipApplied(b *stream.Batch, applied mongo.OpTime, hadEvents bool) {
	if !b.Start.Before(applied) {
		return
	}
	b.Events = slices.DeleteFunc(b.Events, func(ev stream.Event) bool { return !applied.Before(ev.At) })
	b.Start, b.End = applied, mongo.MaxOpTime(b.End, applied)
	if hadEvents && len(b.Events) == 0 {
		b.Partial = false
	}
}

// Source makes one source of the shards' oplogs, in the order of cluster time.
func (c *Cluster) Source(each oplog.Options, all merge.Options) *merge.Source {
	each.SkipMigrated, each.CommitTimes = true, true
	parts := make([]merge.Part, len(c.Shards))
	filter := c.ownerFilter()
	for i, s := range c.Shards {
		source := labelledSource{filter(s, oplog.New(s.Cluster, each)), s.Name}
		parts[i] = merge.Part{Name: s.Name, Source: source, Advance: c.advance(s)}
	}
	return merge.New(parts, all)
}

// labelledSource is a shard's source that sets the shard of its schema changes.
type labelledSource struct {
	stream.Source
	shard string
}

func (s labelledSource) Run(ctx context.Context, pos stream.Position, emit emitFunc) error {
	return s.Source.Run(ctx, pos, func(ctx context.Context, b *stream.Batch) error {
		for i := range b.Events {
			if ch := b.Events[i].Change; ch != nil {
				ch.Shard = s.shard
			}
		}
		return emit(ctx, b)
	})
}

// advance returns a function that makes the shard's oplog pass a time.
func (c *Cluster) advance(s Shard) func(context.Context, mongo.OpTime) error {
	var mayNot atomic.Bool // write notes
	return func(ctx context.Context, at mongo.OpTime) error {
		ctx, end, err := c.withClusterTime(ctx, s.Cluster, at)
		if err != nil {
			return err
		}
		defer end()
		if !mayNot.Load() {
			err = writeNote(ctx, s)
			if err == nil || ctx.Err() != nil {
				return err
			}
			// Busy servers fail, too: 4.4 waits a millisecond for its lock.
			mayNot.Store(mongo.IsCode(err, mongo.CodeUnauthorized))
		}
		return readAfter(ctx, s, at)
	}
}

// Pass waits until a shard has committed everything up to a time and has a later entry, so that all
// its later writes have later times.
func (c *Cluster) Pass(ctx context.Context, s Shard, at mongo.OpTime) error {
	ctx, end, err := c.withClusterTime(ctx, s.Cluster, at)
	if err != nil {
		return err
	}
	defer end()
	return readAfter(ctx, s, at)
}

// CommittedSeen is mongo.Cluster.CommittedSeen of a shard. A shard may have no write as new as the
// cluster time that it knows; CommittedSeen makes it write an entry.
func (c *Cluster) CommittedSeen(ctx context.Context, s Shard) (mongo.OpTime, error) {
	newest, err := s.ClusterTime(ctx)
	if err == nil {
		err = c.Pass(ctx, s, newest)
	}
	if err != nil {
		return mongo.OpTime{}, err
	}
	return s.Committed(ctx)
}

// withClusterTime returns a context whose commands send a cluster time at or after at.
func (c *Cluster) withClusterTime(ctx context.Context, s *mongo.Cluster,
	at mongo.OpTime) (_ context.Context, end func(), err error) {
	clock, err := c.clusterTime(ctx, at)
	if err != nil {
		return ctx, nil, err
	}
	sess, err := s.Client.StartSession()
	if err != nil {
		return ctx, nil, fmt.Errorf("start session: %w", err)
	}
	if err := sess.AdvanceClusterTime(clock); err != nil {
		return ctx, nil, fmt.Errorf("advance the cluster's time: %w", err)
	}
	return driver.NewSessionContext(ctx, sess), func() { sess.EndSession(ctx) }, nil
}

// clusterTime returns a $clusterTime at or after a time that some shard has reached.
func (c *Cluster) clusterTime(ctx context.Context, at mongo.OpTime) (bson.Raw, error) {
	for _, s := range c.Shards {
		sess, err := s.Client.StartSession()
		if err != nil {
			return nil, fmt.Errorf("start session: %w", err)
		}
		session := driver.NewSessionContext(ctx, sess)
		err = s.Client.Database("admin").RunCommand(session, bson.D{{Key: "ping", Value: 1}}).Err()
		clock := sess.ClusterTime()
		sess.EndSession(ctx)
		if err != nil {
			return nil, fmt.Errorf("time of shard %s: %w", s.Name, err)
		}
		t, i, ok := clock.Lookup("$clusterTime", "clusterTime").TimestampOK()
		if ok && at.TS.Compare(bson.Timestamp{T: t, I: i}) <= 0 {
			return clock, nil
		}
	}
	return nil, mongo.Retry(fmt.Sprintf("no shard has reached %s", at), nil, "")
}

// writeNote makes the shard write a no-op entry, which is the fastest way. It needs the privilege
// appendOplogNote of backup and clusterManager.
func writeNote(ctx context.Context, s Shard) error {
	err := s.Client.Database("admin").RunCommand(ctx, bson.D{{Key: "appendOplogNote", Value: 1},
		{Key: "data", Value: bson.D{{Key: "millrace", Value: "moves on"}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}}).Err()
	return mongo.Wrap(err, "write a note to the oplog")
}

// readAfter reads nothing after a time, for which the shard writes a no-op entry by itself (seen on
// 6.0.5: within 100 ms). It needs only the privilege to read.
func readAfter(ctx context.Context, s Shard, at mongo.OpTime) error {
	err := s.Client.Database("config").RunCommand(ctx, bson.D{{Key: "find", Value: "millrace.nothing"},
		{Key: "limit", Value: 1},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"},
			{Key: "afterClusterTime", Value: at.TS}}}}).Err()
	return mongo.Wrap(err, "read after %s", at)
}
