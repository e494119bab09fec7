package checkpoint

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
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

// SaveSlices makes the given slices durable, under the same promise as Save:
// the job's own document is written after them with the write concern, and the
// target's oplog is one order.
func (s *Store) SaveSlices(ctx context.Context, slices []Slice) error {
	const perCommand = 500
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	failpoint.Hit("slices.before")
	defer failpoint.Hit("slices.after")
	for len(slices) > 0 {
		n := min(perCommand, len(slices))
		if err := s.writeSlices(ctx, slices[:n]); err != nil {
			return err
		}
		slices = slices[n:]
	}
	failpoint.Hit("slices.written")
	return s.save(ctx, nil)
}

func (s *Store) writeSlices(ctx context.Context, slices []Slice) error {
	updates := make(bson.A, len(slices))
	for i, sl := range slices {
		updates[i] = bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: s.job + "/" + sl.ID}}},
			{Key: "u", Value: bson.D{{Key: "job", Value: s.job}, {Key: "state", Value: sl.State}}},
			{Key: "upsert", Value: true},
		}
	}
	raw, err := s.c.Command(ctx, mongo.StateDB, bson.D{
		{Key: "update", Value: "slices"}, {Key: "updates", Value: updates}, {Key: "ordered", Value: false},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 1}}},
	})
	if err != nil {
		return fmt.Errorf("save slices of job %s: %w", s.job, err)
	}
	res := wire.ParseWriteResult([]byte(raw))
	if err := mongo.WriteInterrupted(res); err != nil {
		return fmt.Errorf("save slices of job %s: %w", s.job, err)
	}
	if len(res.Errors) > 0 {
		return fmt.Errorf("save slices of job %s: %s (code %d)", s.job, res.Errors[0].Message, res.Errors[0].Code)
	}
	s.ObserveTerm(res.Term)
	return nil
}

// DropSlices forgets the progress of the slices whose ids begin with prefix:
// that copy begins again.
func (s *Store) DropSlices(ctx context.Context, prefix string) error {
	start := s.job + "/" + prefix
	_, err := s.db.Collection("slices").DeleteMany(ctx, bson.D{{Key: "_id", Value: bson.D{
		{Key: "$gte", Value: start}, {Key: "$lt", Value: start + "\U0010ffff"}}}})
	if err != nil {
		return fmt.Errorf("forget slices of job %s: %w", s.job, err)
	}
	return nil
}
