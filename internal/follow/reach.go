package follow

import (
	"context"
	"sync"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// reachAhead is how far ahead of the source's clock the reach is noted, so that
// events seldom wait for the note.
const reachAhead = 3 // seconds of the source

// reach is the position up to which events may be sent to the target. It is
// durable before they are: a restart knows by it what an earlier attempt may
// have applied.
type reach struct {
	noting sync.Mutex // one note at a time; events that the last one holds do not wait for it
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
