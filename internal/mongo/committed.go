package mongo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/pace"
)

// Reached waits until the primary knows that a position is majority-committed, and returns its positions then.
func (c *Cluster) Reached(ctx context.Context, at OpTime) (Positions, error) {
	h, err := c.poll(ctx, func(h *hello) bool { return !h.LastWrite.Majority.Before(at) })
	if err != nil {
		return Positions{}, fmt.Errorf("wait until %v is majority-committed on %s: %w", at, c.Address(), err)
	}
	return h.LastWrite, nil
}

// Committed waits until every write acknowledged up to now is majority-committed, and returns the position of the
// last. An election meanwhile is an error of ClassRetry: they may be rolled back.
func (c *Cluster) Committed(ctx context.Context) (at OpTime, err error) {
	h, err := c.poll(ctx, func(h *hello) bool {
		if at.IsZero() {
			at = h.LastWrite.Last
		}
		return h.LastWrite.Last.Term != at.Term || !h.LastWrite.Majority.Before(at)
	})
	if err == nil {
		err = c.elected(at.Term, h.LastWrite.Last.Term)
	}
	if err != nil {
		return at, fmt.Errorf("wait until %v is majority-committed on %s: %w", at, c.Address(), err)
	}
	return at, nil
}

// CommittedSeen is Committed for all that the primary has returned, acknowledged or not.
func (c *Cluster) CommittedSeen(ctx context.Context) (OpTime, error) {
	// The primary must report what it has returned as its newest write. A change shows an instant earlier, but
	// never before its time was assigned. A write that fails, as by a duplicate key, leaves a time without entry.
	const instant = time.Second
	var given bson.Timestamp
	began := time.Now()
	_, err := c.poll(ctx, func(h *hello) bool {
		if given.IsZero() {
			given = h.ClusterTime.ClusterTime
		}
		return !h.LastWrite.Last.TS.Before(given) || time.Since(began) >= instant
	})
	if err != nil {
		return OpTime{}, fmt.Errorf("wait until %s counts its newest write: %w", c.Address(), err)
	}
	return c.Committed(ctx)
}

// ClusterTime is the newest time that the primary knows. Nothing that it has returned is later.
func (c *Cluster) ClusterTime(ctx context.Context) (OpTime, error) {
	h, err := c.hello(ctx)
	if err != nil {
		return OpTime{}, fmt.Errorf("time of %s: %w", c.Address(), err)
	}
	return OpTime{TS: h.ClusterTime.ClusterTime, Term: h.LastWrite.Last.Term}, nil
}

func (c *Cluster) poll(ctx context.Context, enough func(*hello) bool) (h hello, err error) {
	err = pace.Until(ctx, 10*time.Millisecond, func() (bool, error) {
		h, err = c.hello(ctx)
		return err == nil && enough(&h), err
	})
	return h, err
}

func (c *Cluster) elected(before, now int64) error {
	if before == now {
		return nil
	}
	return Retry(fmt.Sprintf("%s has elected another primary (term %d, before %d)", c.Address(), now, before), nil, "")
}

// Seen runs look, which reads from the primary by c.Client, and waits until all that it can have seen is
// majority-committed in the same term. An election meanwhile is an error of ClassRetry. Without a replica set,
// Seen only runs look.
func (c *Cluster) Seen(ctx context.Context, look func() error) error {
	if c.Info.Kind != KindReplicaSet {
		return look()
	}
	before, err := c.Positions(ctx)
	if err != nil {
		return err
	}
	// The same client reads both, so that no older primary replies.
	if err := look(); err != nil {
		return err
	}
	at, err := c.CommittedSeen(ctx)
	return cmp.Or(err, c.elected(before.Last.Term, at.Term))
}

// Vanished reports whether the collection with a UUID is gone from a database for good. It waits until a drop can
// no longer be rolled back, as long as that takes.
func (c *Cluster) Vanished(ctx context.Context, db string, uuid bson.Binary) (bool, error) {
	there := errors.New("it is there")
	err := c.Seen(ctx, func() error {
		_, err := c.Command(ctx, db, bson.D{{Key: "find", Value: uuid}, {Key: "limit", Value: 1},
			{Key: "singleBatch", Value: true},
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
