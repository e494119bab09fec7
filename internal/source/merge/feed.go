package merge

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// arrival is a batch of a part.
type arrival struct {
	feed  *feed
	batch *stream.Batch
}

// feed is what was read of one part and not handed on. Its goroutines are run's and
// advance's; all else belongs to the merger's.
type feed struct {
	index int
	part  Part
	from  stream.Position   // where the run began
	goOn  chan struct{}     // one token: the part may bring its next batch
	ask   chan mongo.OpTime // the newest time to pass, at most one

	queue []queued
	head  int   // the first of queue that is not handed on
	bytes int64 // of queue from head on
	// ends are where the part's batches end, with the positions to go on from.
	// The first is the last that is handed on whole.
	ends      []stream.Position
	undecided mongo.OpTime // the earliest prepared and undecided transaction, if any
	partial   bool         // what is at queueEnd goes on in the next batch
	queueEnd  mongo.OpTime
	reading   bool         // a batch is asked for
	moved     time.Time    // when the floor last did
	asked     mongo.OpTime // what it was asked to pass
	more      bool         // the last batch said that there is more
}

// queued is an event and its share of the bytes of its batch.
type queued struct {
	ev    stream.Event
	bytes int64
}

func newFeed(i int, p Part, from stream.Position) *feed {
	return &feed{index: i, part: p, from: from, goOn: make(chan struct{}, 1), ask: make(chan mongo.OpTime, 1), ends: []stream.Position{from}, moved: time.Now()}
}

// run reads the part, a batch at a time.
func (f *feed) run(ctx context.Context, to chan<- arrival) error {
	err := f.part.Source.Run(ctx, f.from, func(ctx context.Context, b *stream.Batch) error {
		select {
		case <-f.goOn:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		select {
		case to <- arrival{f, b}:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		return fmt.Errorf("%s: reading ended", f.part.Name)
	}
	return fmt.Errorf("%s: %w", f.part.Name, err)
}

// advance has the part pass the times that it is asked to.
func (f *feed) advance(ctx context.Context) error {
	for {
		select {
		case at := <-f.ask:
			if err := f.part.Advance(ctx, at); err != nil {
				return fmt.Errorf("%s: move on to %s: %w", f.part.Name, at, err)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// pass asks the part to pass a time, once.
func (f *feed) pass(at mongo.OpTime) {
	if f.part.Advance == nil || !f.asked.Before(at) {
		return
	}
	select {
	case <-f.ask: // an earlier time, which this one includes
	default:
	}
	f.ask <- at
	f.asked = at
}

// end is the position up to which all of the part was read.
func (f *feed) end() mongo.OpTime { return f.ends[len(f.ends)-1].At }

// floor is the position up to which all that happened is known. What is prepared
// will have happened later, and what is told in parts goes on.
func (f *feed) floor() mongo.OpTime {
	floor := f.end()
	if f.partial {
		floor = mongo.MaxOpTime(floor, before(f.queueEnd))
	}
	if !f.undecided.IsZero() {
		floor = mongo.MinOpTime(floor, before(f.undecided))
	}
	return floor
}

// before is the last position before another.
func before(p mongo.OpTime) mongo.OpTime {
	if p.TS.I > 0 {
		p.TS.I--
	} else {
		p.TS.T, p.TS.I = p.TS.T-1, math.MaxUint32
	}
	p.Term = -1 // of no entry
	return p
}

// add takes a batch over, but for what is at or before done, which comes again.
func (f *feed) add(b *stream.Batch, done mongo.OpTime) {
	was := f.floor()
	f.reading, f.more = false, b.More
	share := b.Held() / int64(max(len(b.Events), 1))
	sorted := true
	for i := range b.Events {
		at := b.Events[i].At
		if !done.Before(at) {
			continue
		}
		if len(f.queue) > f.head && at.Before(f.queue[len(f.queue)-1].ev.At) {
			sorted = false
		}
		f.queue = append(f.queue, queued{b.Events[i], share})
		f.bytes += share
	}
	if !sorted { // a commit whose time is before its entry
		slices.SortStableFunc(f.queue[f.head:], func(a, b queued) int { return a.ev.At.Compare(b.ev.At) })
	}
	if last := f.ends[len(f.ends)-1]; last.At.Before(b.End) || last.Mark != b.Mark {
		f.ends = append(f.ends, b.Resume())
	}
	f.undecided = b.Undecided
	if f.partial = b.Partial && len(b.Events) > 0; f.partial {
		f.queueEnd = b.Events[len(b.Events)-1].At
	}
	if was.Before(f.floor()) {
		f.moved = time.Now()
	}
}

// next is the first event, nil when there is none.
func (f *feed) next() *stream.Event {
	if f.head == len(f.queue) {
		return nil
	}
	return &f.queue[f.head].ev
}

// take hands the first event on.
func (f *feed) take() queued {
	q := f.queue[f.head]
	f.queue[f.head] = queued{} // it may hold a large reply
	f.bytes -= q.bytes
	if f.head++; f.head == len(f.queue) {
		f.queue, f.head = f.queue[:0], 0
	}
	return q
}

// resume is where the part goes on for a consumer that has everything up to at.
func (f *feed) resume(at mongo.OpTime) stream.Position {
	n := 0
	for n+1 < len(f.ends) && !at.Before(f.ends[n+1].At) {
		n++
	}
	f.ends = slices.Delete(f.ends, 0, n)
	return f.ends[0]
}
