package mongo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// commitPoll is the pause between looks at the majority position.
const commitPoll = 10 * time.Millisecond

// Reached waits until the primary knows that a position is majority-committed,
// and reports where it stands then.
func (c *Cluster) Reached(ctx context.Context, at OpTime) (Positions, error) {
	h, err := c.poll(ctx, func(h *hello) bool { return !h.LastWrite.MajorityOpTime.Before(at) })
	if err != nil {
		return Positions{}, fmt.Errorf("wait until %v is majority-committed on %s: %w", at, c.Address(), err)
	}
	return h.positions(), nil
}

// Committed waits until every write that the primary has acknowledged up to now
// is majority-committed and returns the position of the last. An election
// meanwhile is an error of ClassRetry: they may be rolled back.
func (c *Cluster) Committed(ctx context.Context) (at OpTime, err error) {
	h, err := c.poll(ctx, func(h *hello) bool {
		if at.IsZero() {
			at = h.LastWrite.OpTime
		}
		return h.LastWrite.OpTime.Term != at.Term || !h.LastWrite.MajorityOpTime.Before(at)
	})
	if err == nil && h.LastWrite.OpTime.Term != at.Term {
		err = c.elected(at.Term, h.LastWrite.OpTime.Term)
	}
	if err != nil {
		return at, fmt.Errorf("wait until %v is majority-committed on %s: %w", at, c.Address(), err)
	}
	return at, nil
}

// CommittedSeen is Committed for all that the primary has shown, acknowledged or
// not.
func (c *Cluster) CommittedSeen(ctx context.Context) (OpTime, error) {
	if err := c.counted(ctx); err != nil {
		return OpTime{}, fmt.Errorf("wait until %s counts its newest write: %w", c.Address(), err)
	}
	return c.Committed(ctx)
}

// counted waits until the primary counts as its newest write what it has shown. A
// change shows an instant before that, but never before its time was given out.
// A write that fails, as for a duplicate key, leaves a time with no entry: then
// there is nothing to come.
func (c *Cluster) counted(ctx context.Context) error {
	const instant = time.Second
	var given bson.Timestamp
	began := time.Now()
	_, err := c.poll(ctx, func(h *hello) bool {
		if given.IsZero() {
			given = h.ClusterTime.ClusterTime
		}
		return CompareTS(h.LastWrite.OpTime.TS, given) >= 0 || time.Since(began) >= instant
	})
	return err
}

// poll asks the primary where it stands until enough is said.
func (c *Cluster) poll(ctx context.Context, enough func(*hello) bool) (h hello, err error) {
	for {
		if h, err = c.hello(ctx); err != nil || enough(&h) {
			return h, err
		}
		select {
		case <-time.After(commitPoll):
		case <-ctx.Done():
			return h, context.Cause(ctx)
		}
	}
}

func (c *Cluster) elected(before, now int64) error {
	return Retry(fmt.Sprintf("%s has elected another primary (term %d, before %d)", c.Address(), now, before), nil, "")
}

// Seen runs look, which asks the primary by c.Client, and waits until all that it
// can have seen is majority-committed, under the term in which it was seen. An
// election meanwhile is an error of ClassRetry. A deployment that is no replica
// set states no positions: there what was seen stands.
func (c *Cluster) Seen(ctx context.Context, look func() error) error {
	if c.Info.Kind != KindReplicaSet {
		return look()
	}
	before, err := c.hello(ctx)
	if err != nil {
		return fmt.Errorf("read replication position of %s: %w", c.Address(), err)
	}
	// By the same client as the positions, so that no older primary answers.
	if err := look(); err != nil {
		return err
	}
	at, err := c.CommittedSeen(ctx)
	if term := before.LastWrite.OpTime.Term; err == nil && at.Term != term {
		err = c.elected(term, at.Term)
	}
	return err
}

// Vanished reports whether the collection with a UUID is gone from a database for
// good. That the primary does not have it may be a drop that is rolled back yet,
// so that Seen waits, as long as it takes.
func (c *Cluster) Vanished(ctx context.Context, db string, uuid bson.Binary) (bool, error) {
	there := errors.New("it is there")
	err := c.Seen(ctx, func() error {
		_, err := c.Command(ctx, db, bson.D{{Key: "find", Value: uuid}, {Key: "limit", Value: 1}, {Key: "singleBatch", Value: true},
			{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}}})
		if IsCode(err, CodeNamespaceNotFound) {
			return nil
		}
		return cmp.Or(err, there)
	})
	if errors.Is(err, there) {
		return false, nil
	}
	return err == nil, err
}
