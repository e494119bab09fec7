package state

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/failpoint"
)

// Slice is the progress of one slice of the copy; the copy engine knows what
// State means.
type Slice struct {
	ID    string // unique within the job
	State bson.Raw
}

type sliceDoc struct {
	State bson.Raw `bson:"state"`
}

// LoadSlices returns the saved slices of the job.
func (s *Store) LoadSlices(ctx context.Context) ([]bson.Raw, error) {
	cur, err := s.db.Collection("slices").Find(ctx, bson.D{{Key: "job", Value: s.job}})
	if err != nil {
		return nil, fmt.Errorf("load slices of job %s: %w", s.job, err)
	}
	var docs []sliceDoc
	if err := cur.All(ctx, &docs); err != nil {
		return nil, fmt.Errorf("load slices of job %s: %w", s.job, err)
	}
	out := make([]bson.Raw, len(docs))
	for i, d := range docs {
		out[i] = d.State
	}
	return out, nil
}

// SaveSlices stores the given slices, under the same promise as Save: once all
// data writes observed before the call have reached the write concern.
func (s *Store) SaveSlices(ctx context.Context, slices []Slice) error {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	failpoint.Hit("slices.before")
	defer failpoint.Hit("slices.after")
	if err := s.prove(ctx); err != nil {
		return err
	}
	failpoint.Hit("slices.written")
	updates := make([]bson.D, len(slices))
	for i, sl := range slices {
		updates[i] = bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: s.job + "/" + sl.ID}}},
			{Key: "u", Value: bson.D{{Key: "job", Value: s.job}, {Key: "state", Value: sl.State}}},
			{Key: "upsert", Value: true},
		}
	}
	term, err := s.c.UpdateState(ctx, "slices", 1, updates...)
	if err == nil {
		err = s.SameTerm(term)
	}
	if err != nil {
		return fmt.Errorf("save slices of job %s: %w", s.job, err)
	}
	return nil
}

// DropSlices forgets the progress of the slices whose ids begin with prefix:
// that copy begins again.
func (s *Store) DropSlices(ctx context.Context, prefix string) error {
	start := s.job + "/" + prefix
	_, err := s.c.DeleteState(ctx, "slices", 1, bson.D{{Key: "_id", Value: bson.D{
		{Key: "$gte", Value: start}, {Key: "$lt", Value: start + "\U0010ffff"}}}})
	if err != nil {
		return fmt.Errorf("forget slices of job %s: %w", s.job, err)
	}
	return nil
}
