package follow

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
)

// reachAhead is how far ahead of the source's clock the reach is noted, so that
// events seldom wait for the note.
const reachAhead = 3 // seconds of the source

// reach is the position up to which events may be sent to the target. It is
// durable before they are: a restart knows by it what an earlier attempt may
// have applied.
type reach struct {
	noting sync.Mutex // one note at a time; events up to the last one do not wait for it
	noted  atomic.Pointer[mongo.OpTime]
	known  mongo.OpTime // where the source stood when the run began, so that a backlog needs one note; fixed
}

func (r *reach) holds(at mongo.OpTime) bool { return !r.noted.Load().Before(at) }

// allow waits until the events of a batch may be sent.
func (f *follower) allow(ctx context.Context, b *stream.Batch) error {
	if len(b.Events) == 0 {
		return nil
	}
	last := b.Events[len(b.Events)-1].At
	last = mongo.MaxOpTime(last, b.Until)
	f.newest = mongo.MaxOpTime(f.newest, b.Until)
	if f.reach.holds(last) {
		return nil
	}
	f.reach.noting.Lock()
	defer f.reach.noting.Unlock()
	next := f.ahead(last)
	if f.reach.holds(next) {
		return nil
	}
	if err := f.Store.Note(ctx, bson.D{{Key: "reach", Value: next}}); err != nil {
		return err
	}
	f.reach.noted.Store(&next)
	return nil
}

// catchUp puts off what needs a target that is ahead of nothing: documents were read
// in a newer state than the stream's.
func (f *follower) catchUp(fed mongo.OpTime) {
	if !fed.Before(f.newest) {
		return
	}
	f.overlapEnd = mongo.MaxOpTime(f.overlapEnd, f.newest)
	if !f.finalAt.IsZero() {
		f.finalAt = mongo.MaxOpTime(f.finalAt, f.newest)
	}
}

// ahead is a reach some seconds ahead of a position, and of the source's clock.
func (f *follower) ahead(at mongo.OpTime) mongo.OpTime {
	to := max(at.TS.T, f.reach.known.TS.T, f.Progress.SourceTime().T) + reachAhead
	return mongo.OpTime{TS: bson.Timestamp{T: to}, Term: -1}
}

// saveRegularly records the applied position about every second.
func (f *follower) saveRegularly(ctx context.Context) error {
	return retry.Every(ctx, time.Second, func() error { return f.saveAhead(ctx) })
}

// saveAhead is save, and moves the reach on. One write both notes the reach and
// proves the position: each that waits for the target's disk holds the others up.
func (f *follower) saveAhead(ctx context.Context) error {
	f.reach.noting.Lock()
	defer f.reach.noting.Unlock()
	next := f.ahead(mongo.OpTime{})
	if f.reach.holds(next) {
		return f.save(ctx)
	}
	saved, err := f.saveNoting(ctx, bson.E{Key: "reach", Value: next})
	if err == nil && !saved {
		err = f.Store.Note(ctx, bson.D{{Key: "reach", Value: next}})
	}
	if err == nil {
		f.reach.noted.Store(&next)
	}
	return err
}

// save records the applied position if it moved.
func (f *follower) save(ctx context.Context) error {
	_, err := f.saveNoting(ctx)
	return err
}

// saveNoting is save, which notes something else with it. saved is false where
// the position did not move: then nothing is stored.
func (f *follower) saveNoting(ctx context.Context, noted ...bson.E) (saved bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	failpoint.Hit("position.before")
	pos := f.sink.Applied()
	if pos == f.saved {
		return false, nil
	}
	err = f.store(ctx, pos, func(set bson.D) error {
		err := f.Store.Save(ctx, set, noted...)
		if err == nil { // this position may be lost with the target's primary; the one before it cannot be
			f.Spool.Passed(f.Progress.ReadFrom())
		}
		return err
	})
	return err == nil, err
}

// enter notes a phase, with the position that is applied.
func (f *follower) enter(ctx context.Context, p state.Phase) error {
	return f.noteWith(ctx, func(set bson.D) error { return f.Job.SavePhase(ctx, p, set...) })
}

// noteWith has the position that is applied stored with something else.
func (f *follower) noteWith(ctx context.Context, save func(set bson.D) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	pos := f.applied()
	if pos == f.saved {
		return save(nil)
	}
	err := f.store(ctx, pos, save)
	if err == nil {
		f.Spool.Passed(f.Progress.ReadFrom())
	}
	return err
}

// store has a position stored by save. It is called under mu.
func (f *follower) store(ctx context.Context, pos stream.Position, save func(set bson.D) error) error {
	set, err := f.progress(ctx, pos)
	if err == nil {
		err = save(set)
	}
	if err != nil {
		return err
	}
	f.saved = pos
	f.Progress.SetApplied(pos)
	return nil
}

// progress is what is saved with a position. Updates that were skipped at or
// before it are stored first: a restart does not meet them again.
func (f *follower) progress(ctx context.Context, p stream.Position) (bson.D, error) {
	if err := f.Source.Holds(ctx, p.At); err != nil {
		return nil, err
	}
	set := state.PositionFields(p)
	if list, version := f.sink.Skipped(); version != f.skipped {
		if err := f.Store.SaveSkipped(ctx, list); err != nil {
			return nil, err
		}
		f.skipped = version
	}
	if taken, version := f.stage.Taken(); version != f.taken {
		set = append(set, bson.E{Key: "taken", Value: taken})
		f.taken = version
	}
	if !f.refused.IsZero() && !p.At.Before(f.refused) {
		set = append(set, bson.E{Key: "refused", Value: bson.A{}})
		f.refused = mongo.OpTime{}
	}
	return set, nil
}
