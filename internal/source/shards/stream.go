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

// Stream is what users did to a cluster, as one source. It implements stream.Source.
// Run is called by one goroutine at a time; the other methods by any.
type Stream struct {
	*merge.Source
	cluster *Cluster
	there   func() []Collection
	noted   mongo.OpTime
}

// Stream makes one source of the shards' oplogs: in the order of cluster time, without
// what chunks and databases do when they move, each schema change once. The collections
// are those at the position where a run begins, or after a later schema change that was noted
// before it was applied: nobody knows whether it was.
func (c *Cluster) Stream(each oplog.Options, all merge.Options, there func() []Collection, noted mongo.OpTime) *Stream {
	return &Stream{Source: c.Source(each, all), cluster: c, there: there, noted: noted}
}

// Run implements stream.Source. It reads on from where the position's mark is of, which
// may be before the position. What it reads again is left out. Shards that have joined
// after that go on from their beginning.
func (s *Stream) Run(ctx context.Context, pos stream.Position, emit func(context.Context, *stream.Batch) error) error {
	known, from, err := s.cluster.begin(pos, s.noted, s.there())
	if err != nil {
		return err
	}
	if from, err = s.cluster.join(ctx, from); err != nil {
		return err
	}
	before := pos // of the batch before, from which the shards are read again for whoever is amid this one
	if !marked(before) {
		before = s.cluster.WithCopies(before, nil)
	}
	note := func(ev *stream.Event, copies []Copy) (err error) {
		ev.Change.Mark, err = knowing(before, ev.At, copies)
		return err
	}
	out := func(ctx context.Context, b *stream.Batch) error {
		brought := len(b.Events) > 0
		copies, err := known.filter(ctx, b, note)
		if err != nil {
			return err
		}
		there := s.cluster.topology
		if gone, left := s.cluster.left.by(b.End.TS); len(gone) > 0 {
			if b.Mark, err = merge.Without(b.Mark, gone); err != nil {
				return err
			}
			there = left
		}
		b.Mark = newMark(b.Mark, b.End, copies, there, s.cluster.hosts)
		before = b.Resume()
		passOver(b, pos.At, brought)
		return emit(ctx, b)
	}
	return s.Source.Run(ctx, from, new(commits).through(out))
}

// passOver leaves out of a batch, which has brought events, what is at or before a position.
func passOver(b *stream.Batch, done mongo.OpTime, brought bool) {
	if !b.Start.Before(done) {
		return
	}
	b.Events = slices.DeleteFunc(b.Events, func(ev stream.Event) bool { return !done.Before(ev.At) })
	b.Start, b.End = done, mongo.MaxOpTime(b.End, done)
	if brought && len(b.Events) == 0 { // what it had of a later position was done
		b.Partial = false
	}
}

// Source makes one source of the shards' oplogs, in the order of cluster time.
func (c *Cluster) Source(each oplog.Options, all merge.Options) *merge.Source {
	each.SkipMigrated, each.CommitTimes = true, true
	parts := make([]merge.Part, len(c.Shards))
	owned := c.owned()
	for i, s := range c.Shards {
		parts[i] = merge.Part{Name: s.Name, Source: teller{owned(s, oplog.New(s.Cluster, each)), s.Name}, Advance: c.mover(s)}
	}
	return merge.New(parts, all)
}

// mover has the shard's oplog pass a time.
func (c *Cluster) mover(s Shard) func(context.Context, mongo.OpTime) error {
	var mayNot atomic.Bool // write notes
	return func(ctx context.Context, at mongo.OpTime) error {
		ctx, end, err := c.aware(ctx, s.Cluster, at)
		if err != nil {
			return err
		}
		defer end()
		if !mayNot.Load() {
			err = note(ctx, s)
			if err == nil || ctx.Err() != nil {
				return err
			}
			// A server that is busy refuses, too: 4.4 waits a millisecond for its lock.
			mayNot.Store(mongo.IsCode(err, mongo.CodeUnauthorized))
		}
		return wait(ctx, s, at)
	}
}

// Pass waits until a shard has committed all up to a time and has an entry after it, so
// that whatever it writes later has a later time.
func (c *Cluster) Pass(ctx context.Context, s Shard, at mongo.OpTime) error {
	ctx, end, err := c.aware(ctx, s.Cluster, at)
	if err != nil {
		return err
	}
	defer end()
	return wait(ctx, s, at)
}

// CommittedSeen is mongo.Cluster.CommittedSeen of a shard. Other servers of the cluster give
// out times as well, so that a shard may have no write as new as what it has heard of: it
// is had to write an entry.
func (c *Cluster) CommittedSeen(ctx context.Context, s Shard) (mongo.OpTime, error) {
	shown, err := s.Shown(ctx)
	if err == nil {
		err = c.Pass(ctx, s, shown)
	}
	if err != nil {
		return mongo.OpTime{}, err
	}
	return s.Committed(ctx)
}

// aware has a shard, or a router, be told by commands with the context that the cluster
// has reached a time.
func (c *Cluster) aware(ctx context.Context, s *mongo.Cluster, at mongo.OpTime) (_ context.Context, end func(), err error) {
	clock, err := c.clock(ctx, at)
	if err != nil {
		return ctx, nil, err
	}
	sess, err := s.Client.StartSession()
	if err != nil {
		return ctx, nil, fmt.Errorf("start session: %w", err)
	}
	if err := sess.AdvanceClusterTime(clock); err != nil {
		return ctx, nil, fmt.Errorf("tell of the cluster's time: %w", err)
	}
	return driver.NewSessionContext(ctx, sess), func() { sess.EndSession(ctx) }, nil
}

// clock is a $clusterTime that some shard has given out, at or after a time: no
// server is told of one that none has reached.
func (c *Cluster) clock(ctx context.Context, at mongo.OpTime) (bson.Raw, error) {
	for _, s := range c.Shards {
		sess, err := s.Client.StartSession()
		if err != nil {
			return nil, fmt.Errorf("start session: %w", err)
		}
		err = s.Client.Database("admin").RunCommand(driver.NewSessionContext(ctx, sess), bson.D{{Key: "ping", Value: 1}}).Err()
		clock := sess.ClusterTime()
		sess.EndSession(ctx)
		if err != nil {
			return nil, fmt.Errorf("time of shard %s: %w", s.Name, err)
		}
		if t, i, ok := clock.Lookup("$clusterTime", "clusterTime").TimestampOK(); ok && at.TS.Compare(bson.Timestamp{T: t, I: i}) <= 0 {
			return clock, nil
		}
	}
	return nil, mongo.Retry(fmt.Sprintf("no shard has reached %s", at), nil, "")
}

// note has the shard write an entry that says nothing, which is the quickest. It needs
// the privilege appendOplogNote, of backup and clusterManager.
func note(ctx context.Context, s Shard) error {
	err := s.Client.Database("admin").RunCommand(ctx, bson.D{{Key: "appendOplogNote", Value: 1},
		{Key: "data", Value: bson.D{{Key: "millrace", Value: "moves on"}}}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}}).Err()
	return mongo.Wrap(err, "write a note to the oplog")
}

// wait reads nothing after a time, for which the shard writes such an entry by itself
// (seen on 6.0.5: within 100 ms). It needs no privilege beyond reading.
func wait(ctx context.Context, s Shard, at mongo.OpTime) error {
	err := s.Client.Database("config").RunCommand(ctx, bson.D{{Key: "find", Value: "millrace.nothing"}, {Key: "limit", Value: 1},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}, {Key: "afterClusterTime", Value: at.TS}}}}).Err()
	return mongo.Wrap(err, "read after %s", at)
}
