package shards

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/source/merge"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
)

// decisionPoll is the interval between reads of prepared transactions.
const decisionPoll = 10 * time.Millisecond

// Start returns a position to read from. Shards that are read after Start contain everything up to it,
// and the stream from it contains everything later. Start waits for the decision on prepared
// transactions.
//
// The order of its steps matters. A transaction that was prepared before the shard's own position, and
// is undecided when Start lists it, is read again from its first entry. A transaction that was decided
// in between has a time before the cluster's position, which is read last. Each shard must pass that
// position, since one whose clock is behind could still write before it.
func (c *Cluster) Start(ctx context.Context) (stream.Position, error) {
	parts := make([]stream.Position, len(c.Shards))
	err := c.Each(ctx, func(ctx context.Context, i int) error {
		at, err := c.Shards[i].Committed(ctx)
		if err != nil {
			return err
		}
		from := at
		open, err := listPrepared(ctx, c.Shards[i])
		for _, t := range open {
			from = mongo.MinOpTime(from, t.Start)
		}
		parts[i] = oplog.Position(at, from)
		return err
	})
	if err != nil {
		return stream.Position{}, err
	}
	newest, err := c.Committed(ctx)
	if err == nil {
		err = c.Each(ctx, func(ctx context.Context, i int) error { return c.Pass(ctx, c.Shards[i], newest) })
	}
	if err != nil {
		return stream.Position{}, err
	}
	for _, s := range c.Shards {
		if err := c.awaitDecisions(ctx, s, newest); err != nil {
			return stream.Position{}, fmt.Errorf("shard %s: %w", s.Name, err)
		}
	}
	var names []string
	byName := map[string]stream.Position{}
	for i, s := range c.Shards {
		names = append(names, s.Name)
		byName[s.Name] = parts[i]
	}
	return merge.Position(newest, names, byName)
}

// Each calls do for all shards concurrently.
func (c *Cluster) Each(ctx context.Context, do func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for i, s := range c.Shards {
		g.Go(func() error {
			if err := do(ctx, i); err != nil {
				return fmt.Errorf("shard %s: %w", s.Name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// preparedTxn is a prepared, undecided transaction of a shard.
type preparedTxn struct {
	Start    mongo.OpTime `bson:"startOpTime"`
	Prepared mongo.OpTime `bson:"lastWriteOpTime"`
}

// listPrepared reads a shard's prepared transactions from config.transactions (4.2 and later).
func listPrepared(ctx context.Context, s Shard) (all []preparedTxn, err error) {
	cur, err := s.Config("transactions").Find(ctx, bson.D{{Key: "state", Value: "prepared"}})
	if err == nil {
		err = cur.All(ctx, &all)
	}
	return all, mongo.Wrap(err, "list prepared transactions")
}

// awaitDecisions waits until a shard has decided all transactions prepared up to a time.
func (c *Cluster) awaitDecisions(ctx context.Context, s Shard, at mongo.OpTime) error {
	reported := false
	for {
		all, err := listPrepared(ctx, s)
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(t preparedTxn) bool { return at.Before(t.Prepared) })
		if c.opt.Waiting != nil && reported != (len(all) > 0) {
			reported = !reported
			c.opt.Waiting(describeWait(s.Name, all))
		}
		if len(all) == 0 {
			return nil
		}
		if err := pace.Pause(ctx, decisionPoll); err != nil {
			return err
		}
	}
}

// describeWait names the oldest undecided transaction, "" for none.
func describeWait(shard string, all []preparedTxn) string {
	if len(all) == 0 {
		return ""
	}
	oldest := slices.MinFunc(all, func(a, b preparedTxn) int { return a.Prepared.Compare(b.Prepared) })
	return fmt.Sprintf("the decision on a transaction that shard %s prepared at %s", shard, oldest.Prepared)
}

// Committed returns the latest position that any shard has committed.
func (c *Cluster) Committed(ctx context.Context) (mongo.OpTime, error) {
	return c.Latest(ctx, func(ctx context.Context, s Shard) (mongo.OpTime, error) { return s.Committed(ctx) })
}

// Latest returns the latest of the shards' positions.
func (c *Cluster) Latest(ctx context.Context,
	of func(context.Context, Shard) (mongo.OpTime, error)) (mongo.OpTime, error) {
	all := make([]mongo.OpTime, len(c.Shards))
	err := c.Each(ctx, func(ctx context.Context, i int) (err error) {
		all[i], err = of(ctx, c.Shards[i])
		return err
	})
	at := slices.MaxFunc(all, mongo.OpTime.Compare)
	at.Term = -1 // of the cluster's time, not of a shard's history
	return at, err
}
