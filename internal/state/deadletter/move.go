package deadletter

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

// Moved follows the rename of a target collection at a position of the source.
// Done again after a crash it does no harm.
func (s *Store) Moved(ctx context.Context, from, to string, at mongo.OpTime) error {
	if s == nil || s.n.Load() == 0 {
		return nil
	}
	if err := s.gone(ctx, to, bson.D{{Key: "moved", Value: bson.D{{Key: "$ne", Value: at}}}}); err != nil {
		return err
	}
	err := s.updateAll(ctx, s.inDispute(from), bson.D{{Key: "ns", Value: to}, {Key: "moved", Value: at}})
	if err != nil {
		return fmt.Errorf("move dead letters of %s to %s: %w", from, to, err)
	}
	return s.Load(ctx, false)
}

// Dropped settles the cases of a collection that is gone from the source.
func (s *Store) Dropped(ctx context.Context, ns string) error {
	if s == nil || s.n.Load() == 0 {
		return nil
	}
	if err := s.gone(ctx, ns, nil); err != nil {
		return err
	}
	return s.Load(ctx, false)
}

func (s *Store) gone(ctx context.Context, ns string, more bson.D) error {
	err := s.updateAll(ctx, append(s.inDispute(ns), more...), bson.D{
		{Key: "state", Value: Settled}, {Key: "settledBy", Value: "the collection was dropped on the source"}, {Key: "settledAt", Value: time.Now().UTC()}})
	if err != nil {
		return fmt.Errorf("settle dead letters of %s: %w", ns, err)
	}
	return nil
}

// Reset removes the letters of a job that begins anew, but for those of
// documents that it took off the target.
func (s *Store) Reset(ctx context.Context) error {
	filter := bson.D{{Key: "job", Value: s.job}, {Key: "state", Value: bson.D{{Key: "$ne", Value: Removed}}}}
	if _, err := s.c.DeleteState(ctx, Collection, "majority", filter); err != nil {
		return fmt.Errorf("remove dead letters: %w", err)
	}
	return nil
}

func (s *Store) inDispute(ns string) bson.D {
	return bson.D{{Key: "job", Value: s.job}, {Key: "ns", Value: ns},
		{Key: "state", Value: bson.D{{Key: "$in", Value: bson.A{Undecided, Open}}}}}
}

// updateAll sets fields of all letters that match.
func (s *Store) updateAll(ctx context.Context, filter, set bson.D) error {
	_, err := s.c.UpdateState(ctx, Collection, "majority", bson.D{{Key: "q", Value: filter}, {Key: "u", Value: bson.D{{Key: "$set", Value: set}}}, {Key: "multi", Value: true}})
	return err
}
