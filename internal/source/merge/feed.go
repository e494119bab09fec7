package merge

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

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

	// queue has what is not handed on, in order, as it came: it is not copied.
	queue []segment
	bytes int64 // of queue
	// ends are where the part's batches end, with the positions to go on from.
	// The first is the last that is handed on completely.
	ends      []stream.Position
	undecided mongo.OpTime // the earliest prepared and undecided transaction, if any
	partial   bool         // what is at queueEnd goes on in the next batch
	queueEnd  mongo.OpTime
	floor     mongo.OpTime // see known
	reading   bool         // a batch is asked for
	moved     time.Time    // when the floor last did
	asked     mongo.OpTime // what it was asked to pass
	more      bool         // the last batch said that there is more
}

// segment is what is left of a batch.
type segment struct {
	events []stream.Event
	share  int64 // bytes an event
}

func newFeed(i int, p Part, from stream.Position) *feed {
	f := &feed{index: i, part: p, from: from, goOn: make(chan struct{}, 1), ask: make(chan mongo.OpTime, 1),
		ends: []stream.Position{from}, moved: time.Now()}
	f.floor = f.known()
	return f
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

// known is the position up to which all that happened is known. What is prepared
// will have happened later, and what is emitted in parts goes on.
func (f *feed) known() mongo.OpTime {
	floor := f.end()
	if f.partial { // of what is after the end, or of a commit before it
		floor = before(f.queueEnd)
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

// after is the first position after another.
func after(p mongo.OpTime) mongo.OpTime {
	if p.TS.I < math.MaxUint32 {
		p.TS.I++
	} else {
		p.TS.T, p.TS.I = p.TS.T+1, 0
	}
	p.Term = -1
	return p
}

// lets is the last position of an event of another feed, or of its own, before which it
// is known what the feed has. Of one position the feed with the lower index is first.
func (f *feed) lets(other *feed) mongo.OpTime {
	switch {
	case f != other && f.index < other.index:
		return f.floor
	case f != other:
		return after(f.floor)
	}
	last := mongo.OpTime{TS: bson.Timestamp{T: math.MaxUint32, I: math.MaxUint32}}
	if f.partial {
		last = f.queueEnd
	}
	if !f.undecided.IsZero() {
		last = mongo.MinOpTime(last, before(f.undecided))
	}
	return last
}

// add takes a batch over, but for what is at or before done, which comes again.
func (f *feed) add(b *stream.Batch, done mongo.OpTime) {
	f.reading, f.more = false, b.More
	if f.partial = b.Partial && len(b.Events) > 0; f.partial {
		f.queueEnd = b.Events[len(b.Events)-1].At
	}
	if fresh := (segment{events: without(b.Events, done)}); len(fresh.events) > 0 {
		fresh.share = b.Held() / int64(len(fresh.events))
		f.bytes += fresh.share * int64(len(fresh.events))
		f.append(fresh)
	}
	if last := f.ends[len(f.ends)-1]; last.At.Before(b.End) || last.Mark != b.Mark {
		f.ends = append(f.ends, b.Resume())
	}
	f.undecided = b.Undecided
	was := f.floor
	if f.floor = f.known(); was.Before(f.floor) {
		f.moved = time.Now()
	}
}

// without are the events after a position. Most often all are.
func without(events []stream.Event, done mongo.OpTime) []stream.Event {
	for i := range events {
		if !done.Before(events[i].At) {
			return slices.DeleteFunc(events, func(ev stream.Event) bool { return !done.Before(ev.At) })
		}
	}
	return events
}

// append puts a segment behind the others. Where it has a commit whose time is
// before that of what came earlier, all is put in order.
func (f *feed) append(s segment) {
	inOrder := true
	for i := 1; i < len(s.events) && inOrder; i++ {
		inOrder = !s.events[i].At.Before(s.events[i-1].At)
	}
	if n := len(f.queue); n > 0 {
		before := f.queue[n-1].events
		inOrder = inOrder && !s.events[0].At.Before(before[len(before)-1].At)
	}
	f.queue = append(f.queue, s)
	if inOrder {
		return
	}
	var all segment
	for _, s := range f.queue {
		all.events = append(all.events, s.events...)
	}
	slices.SortStableFunc(all.events, func(a, b stream.Event) int { return a.At.Compare(b.At) })
	all.share = f.bytes / int64(len(all.events))
	f.bytes = all.share * int64(len(all.events))
	f.queue = append(f.queue[:0], all)
}

// next is the first event, nil when there is none.
func (f *feed) next() *stream.Event {
	if len(f.queue) == 0 {
		return nil
	}
	return &f.queue[0].events[0]
}

// take removes the next events up to a position, as many as come to some bytes and
// one more, all of one batch. There is one at least. It gives their bytes.
func (f *feed) take(until mongo.OpTime, bytes int64) ([]stream.Event, int64) {
	s := &f.queue[0]
	n, sum := 1, s.share
	for n < len(s.events) && sum < bytes && !until.Before(s.events[n].At) {
		n++
		sum += s.share
	}
	events := s.events[:n]
	s.events = s.events[n:]
	f.bytes -= sum
	if len(s.events) == 0 {
		f.queue = slices.Delete(f.queue, 0, 1)
	}
	return events, sum
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
