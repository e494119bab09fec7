package follow

import (
	"context"
	"sync"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
)

// reachAhead is how far ahead of the source's clock the reach is stored, so that
// events rarely wait for it.
const reachAhead = 3 // seconds of the source

// reach is the position up to which events may be sent to the target. It is stored before they are,
// so that a restart knows what an earlier attempt may have applied.
type reach struct {
	noting sync.Mutex // serializes stores; events up to the last one don't wait
	noted  atomic.Pointer[mongo.OpTime]
	known  mongo.OpTime // the source's position when the run began: a backlog needs one store
}

func (r *reach) holds(at mongo.OpTime) bool { return !r.noted.Load().Before(at) }

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

// catchUp extends the overlap where documents were read in a newer state than the stream's.
func (f *follower) catchUp(fed mongo.OpTime) {
	if !fed.Before(f.newest) {
		return
	}
	f.overlapEnd = mongo.MaxOpTime(f.overlapEnd, f.newest)
	if !f.finalAt.IsZero() {
		f.finalAt = mongo.MaxOpTime(f.finalAt, f.newest)
	}
}

// ahead is a reach reachAhead seconds after a position and the source's clock.
func (f *follower) ahead(at mongo.OpTime) mongo.OpTime {
	to := max(at.TS.T, f.reach.known.TS.T, f.Progress.SourceTime().T) + reachAhead
	return mongo.OpTime{TS: bson.Timestamp{T: to}, Term: -1}
}

// saveAhead is save, and advances the reach in the same write: writes that wait for the target's disk
// delay each other.
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

func (f *follower) save(ctx context.Context) error {
	_, err := f.saveNoting(ctx)
	return err
}

// saveNoting saves the applied position and more fields. saved is false, and nothing is stored, if
// the position did not move.
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
		if err == nil { // a failover may lose this position, not the one before it
			f.Passed(f.Progress.ReadFrom())
		}
		return err
	})
	return err == nil, err
}

func (f *follower) enter(ctx context.Context, p state.Phase) error {
	return f.noteWith(ctx, func(set bson.D) error { return f.Job.SavePhase(ctx, p, set...) })
}

func (f *follower) noteWith(ctx context.Context, save func(set bson.D) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	pos := f.applied()
	if pos == f.saved {
		return save(nil)
	}
	err := f.store(ctx, pos, save)
	if err == nil {
		f.Passed(f.Progress.ReadFrom())
	}
	return err
}

// store saves a position through save. It is called under mu.
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

// progress returns the fields to save with a position. Updates that were skipped up to it are stored
// first: a restart does not read them again.
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
