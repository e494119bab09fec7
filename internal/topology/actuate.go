package topology

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

const (
	// noteWriters and noteTime make a burst of notes dense enough that a new
	// source is ahead of a member at the moment when it connects: the server
	// drops a source that has nothing newer, which on an idle set none has.
	noteWriters = 3
	noteTime    = 100 * time.Millisecond
)

// SyncFrom tells a member to fetch from a source. It takes effect with the
// member's next batch, and only if the source is then ahead of the member.
func (o *Observer) SyncFrom(ctx context.Context, host, source string) error {
	c, err := o.client(host)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	err = c.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetSyncFrom", Value: source}}).Err()
	if err != nil {
		return mongo.WithHint(fmt.Errorf("make %s fetch from %s: %w", host, source, err),
			"the user needs the action replSetStateChange, which the role clusterManager has; the source has to be up and hold data")
	}
	return nil
}

// Source asks a member alone for its source and state.
func (o *Observer) Source(ctx context.Context, host string) (source, state string, err error) {
	c, err := o.client(host)
	if err != nil {
		return "", "", err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	s, err := readStatus(ctx, c)
	if err != nil {
		return "", "", fmt.Errorf("ask %s for its source: %w", host, err)
	}
	if self := s.of(host); self != nil {
		state = self.State
	}
	return cmp.Or(s.SyncHost, s.SyncTo), state, nil
}

// Notes writes small notes into the primary's oplog for a tenth of a second.
func (o *Observer) Notes(ctx context.Context, primary string) error {
	c, err := o.client(primary)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	end := time.Now().Add(noteTime)
	failed := make([]error, noteWriters)
	var wg sync.WaitGroup
	for i := range noteWriters {
		wg.Go(func() {
			for time.Now().Before(end) && failed[i] == nil {
				failed[i] = c.Database("admin").RunCommand(ctx, bson.D{{Key: "appendOplogNote", Value: 1},
					{Key: "data", Value: bson.D{{Key: "millrace", Value: "topology"}}},
					{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 1}, {Key: "j", Value: false}}}}).Err()
			}
		})
	}
	wg.Wait()
	if err := cmp.Or(failed...); err != nil {
		return fmt.Errorf("write notes into the oplog of %s: %w", primary, err)
	}
	return nil
}
