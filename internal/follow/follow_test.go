package follow

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/progress"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

func TestDuring(t *testing.T) {
	full := errors.New("disk full")
	waits := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, c := range map[string]struct {
		read, other func(context.Context) error
		want        error
	}{
		"a write is broken off by the end": {
			func(context.Context) error { return ErrFinished },
			func(ctx context.Context) error { return fmt.Errorf("save checkpoint: %w", waits(ctx)) },
			ErrFinished,
		},
		"a write fails":  {waits, func(context.Context) error { return full }, full},
		"reading fails":  {func(context.Context) error { return full }, waits, full},
		"others end too": {func(context.Context) error { return nil }, waits, nil},
	} {
		for range 50 {
			if err := during(t.Context(), c.read, c.other); !errors.Is(err, c.want) {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
}

// saves takes each position, complete has reported all.
type (
	saves    struct{ state.Store }
	complete struct{ Deployment }
)

func (saves) Save(context.Context, bson.D, ...bson.E) error { return nil }
func (complete) Holds(context.Context, mongo.OpTime) error  { return nil }

// spool notes what was passed.
type spool []mongo.OpTime

func (s *spool) Passed(from mongo.OpTime) { *s = append(*s, from) }

// TestSpoolKeeps: a position that was just stored may be lost with the target's primary.
// What the one before it needs is kept.
func TestSpoolKeeps(t *testing.T) {
	at := func(n uint32) stream.Position {
		return stream.Position{At: mongo.OpTime{TS: bson.Timestamp{T: n}, Term: 1}}
	}
	readFrom := func(pos stream.Position) (mongo.OpTime, error) { return pos.At, nil }
	p := progress.New(progress.Options{Now: time.Now, ReadFrom: readFrom})
	p.SetApplied(at(3))
	var passed spool
	f := &follower{stage: transform.NewStage(nil, at(1), transform.NewCounters(nil), nil),
		Options: Options{Store: saves{}, Source: &Source{Deployment: complete{}}, Progress: p, Passed: passed.Passed},
		sink:    mongosink.New(&mongo.Cluster{}, at(5), mongosink.Options{}), saved: at(3)}
	if err := f.save(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(passed) != 1 || passed[0] != at(3).At || f.saved != at(5) || p.ReadFrom() != at(5).At {
		t.Errorf("given back up to %v, stored %v", passed, f.saved)
	}
}
