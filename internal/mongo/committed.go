package mongo

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
)

// commitPoll is the pause between looks at the majority position.
const commitPoll = 10 * time.Millisecond

// codeElection is the server's PrimarySteppedDown: it passes by itself.
const codeElection = 189

// Committed waits until everything that the primary has shown up to now is
// majority-committed and returns a position at or after all of it. A change
// shows an instant before the primary counts it as its newest write, but never
// before its time was given out; so it is the cluster time that is waited for.
//
// An election meanwhile is an error of ClassRetry: what was seen may be rolled
// back.
func (c *Cluster) Committed(ctx context.Context) (OpTime, error) {
	h, err := c.hello(ctx)
	at, term := h.LastWrite.OpTime, h.LastWrite.OpTime.Term
	if CompareTS(at.TS, h.ClusterTime.ClusterTime) < 0 {
		at.TS = h.ClusterTime.ClusterTime
	}
	for err == nil && h.LastWrite.OpTime.Term == term && h.LastWrite.MajorityOpTime.Before(at) {
		if err = c.pause(ctx); err == nil {
			h, err = c.hello(ctx)
		}
	}
	if err == nil && h.LastWrite.OpTime.Term != term {
		err = c.elected(term, h.LastWrite.OpTime.Term)
	}
	if err != nil {
		return at, fmt.Errorf("wait until %v is majority-committed on %s: %w", at, c.Address(), err)
	}
	return at, nil
}

func (c *Cluster) pause(ctx context.Context) error {
	t := time.NewTimer(commitPoll)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Cluster) elected(before, now int64) error {
	return driver.CommandError{Code: codeElection, Name: "PrimarySteppedDown",
		Message: fmt.Sprintf("%s has elected another primary (term %d, before %d)", c.Address(), now, before)}
}

// Vanished tells whether the collection with a UUID is gone from a database for
// good. That the primary does not have it may be a drop that is rolled back
// yet; so the drop has to be majority-committed, under the term in which it was
// seen. It waits for that as long as it takes. An election meanwhile is an
// error of ClassRetry.
func (c *Cluster) Vanished(ctx context.Context, db string, uuid bson.Binary) (bool, error) {
	find := bson.D{{Key: "find", Value: uuid}, {Key: "limit", Value: 1}, {Key: "singleBatch", Value: true},
		{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}}}
	before, err := c.hello(ctx)
	if err != nil {
		return false, err
	}
	// By the same client as the positions, so that no older primary answers.
	if _, err = c.Command(ctx, db, find); !IsCode(err, CodeNamespaceNotFound) {
		return false, err
	}
	if c.Info.Kind != KindReplicaSet {
		return true, nil // it states no positions
	}
	at, err := c.Committed(ctx)
	if err == nil && at.Term != before.LastWrite.OpTime.Term {
		err = c.elected(before.LastWrite.OpTime.Term, at.Term)
	}
	return err == nil, err
}
