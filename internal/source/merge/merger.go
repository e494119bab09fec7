package merge

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// merger puts what the feeds bring into order. It runs in one goroutine.
type merger struct {
	s        *Source
	emit     func(context.Context, *stream.Batch) error
	feeds    []*feed
	arrivals chan arrival

	from mongo.OpTime // where the run began: what is at or before it comes again
	end  mongo.OpTime // End of the last batch

	out   stream.Batch
	bytes int64 // of the events of out
	// capacity is that of the next events.
	capacity int
	// last is the position of the newest event handed on or in out; all before it are, too.
	last mongo.OpTime
}

func newMerger(s *Source, pos stream.Position, emit func(context.Context, *stream.Batch) error) *merger {
	return &merger{s: s, emit: emit, arrivals: make(chan arrival), from: pos.At, end: pos.At, last: pos.At}
}

func (m *merger) run(ctx context.Context) error {
	beat := time.NewTicker(m.s.opt.Beat)
	defer beat.Stop()
	for {
		if err := m.grant(); err != nil {
			return err
		}
		select {
		case a := <-m.arrivals:
			if err := m.arrived(a); err != nil {
				return err
			}
			if err := m.forward(ctx); err != nil {
				return err
			}
		case <-beat.C:
			m.keepUp()
			if err := m.flush(ctx, m.floor(), false); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// arrived takes a batch over. What a part emits of a time that was handed on
// would be lost, or out of order.
func (m *merger) arrived(a arrival) error {
	known := mongo.MaxOpTime(m.from, a.feed.floor)
	for i := range a.batch.Events {
		at := a.batch.Events[i].At
		if !known.Before(at) && m.from.Before(at) {
			return fmt.Errorf("%s emits %s after all up to %s", a.feed.part.Name, at, known)
		}
	}
	m.out.Entries += a.batch.Entries
	m.out.Bytes += a.batch.Bytes
	a.feed.add(a.batch, m.from)
	return nil
}

// grant lets parts read on: those with room, and those for which others wait.
func (m *merger) grant() error {
	blocking := m.blocking()
	for _, f := range m.feeds {
		if f.reading || f.bytes >= m.s.opt.AheadBytes && !blocking[f.index] {
			continue
		}
		if f.bytes >= m.s.opt.HeldBytes {
			return mongo.Retry(fmt.Sprintf("%s: a transaction prepared at %s is not decided, and %d MB were written after it",
				f.part.Name, f.undecided, f.bytes>>20), nil, "a shard that takes part in the transaction may be down")
		}
		f.reading = true
		f.goOn <- struct{}{}
	}
	return nil
}

// first is the feed whose event is the next, nil when there is none.
func (m *merger) first() *feed {
	var first *feed
	for _, f := range m.feeds {
		ev := f.next()
		if ev != nil && (first == nil || ev.At.Before(first.next().At)) {
			first = f
		}
	}
	return first
}

// blocking are the feeds that the next event waits for, by index, and has them
// asked to move on.
func (m *merger) blocking() map[int]bool {
	next := m.first()
	if next == nil {
		return nil
	}
	var who map[int]bool
	at := next.next().At
	for _, f := range m.feeds {
		if !f.lets(next).Before(at) {
			continue
		}
		if who == nil {
			who = map[int]bool{}
		}
		who[f.index] = true
		f.pass(at)
	}
	return who
}

// forward hands on what has an order.
func (m *merger) forward(ctx context.Context) error {
	for {
		f := m.first()
		if f == nil {
			break
		}
		until := m.until(f)
		if until.Before(f.next().At) {
			break
		}
		if m.out.Events == nil {
			m.out.Events = make([]stream.Event, 0, m.capacity)
		}
		events, bytes := f.take(until, m.s.opt.BatchBytes-m.bytes)
		m.out.Events = append(m.out.Events, events...)
		m.last = events[len(events)-1].At
		if m.bytes += bytes; m.bytes < m.s.opt.BatchBytes {
			continue
		}
		if err := m.flush(ctx, m.complete(m.last), true); err != nil {
			return err
		}
	}
	if len(m.arrivals) > 0 || len(m.out.Events) == 0 && !m.end.Before(m.floor()) {
		return nil
	}
	return m.flush(ctx, m.floor(), false)
}

// until is the last position up to which the first feed's events come before all that
// the others have and may have.
func (m *merger) until(first *feed) mongo.OpTime {
	until := first.lets(first)
	for _, f := range m.feeds {
		if f == first {
			continue
		}
		if lets := f.lets(first); lets.Before(until) {
			until = lets
		}
		ev := f.next()
		if ev == nil {
			continue
		}
		last := ev.At
		if f.index < first.index {
			last = before(last)
		}
		if last.Before(until) {
			until = last
		}
	}
	return until
}

// complete is the position up to which everything is handed on when the event at
// hand, of the position at, was the last one to be.
func (m *merger) complete(at mongo.OpTime) mongo.OpTime {
	for _, f := range m.feeds {
		if ev := f.next(); ev != nil && !at.Before(ev.At) || f.floor.Before(at) {
			return before(at)
		}
	}
	return at
}

// floor is the position up to which all of all parts is known.
func (m *merger) floor() mongo.OpTime {
	floor := m.feeds[0].floor
	for _, f := range m.feeds[1:] {
		floor = mongo.MinOpTime(floor, f.floor)
	}
	return floor
}

// flush hands on what is in order. Everything up to complete is.
func (m *merger) flush(ctx context.Context, complete mongo.OpTime, more bool) error {
	b := m.out
	b.Start, b.End, b.More = m.end, mongo.MaxOpTime(m.end, complete), more
	b.Partial = b.End.Before(m.last) // also where the rest is still to come
	b.EventBytes = int(m.bytes)
	b.Mark = m.mark(b.End)
	for _, f := range m.feeds {
		b.More = b.More || f.more || f.next() != nil
	}
	m.capacity = min(len(b.Events)+len(b.Events)/8+1, 1<<16)
	m.out, m.bytes, m.end = stream.Batch{}, 0, b.End
	return m.emit(ctx, &b)
}

func (m *merger) mark(at mongo.OpTime) string {
	marks := make([]partMark, len(m.feeds))
	for i, f := range m.feeds {
		marks[i] = markOf(f.part.Name, f.resume(at))
	}
	return encode(marks)
}

// keepUp has the parts that are behind the newest pass it, and notes who is
// the last. A transaction that is not decided delays all that was read after it, also
// where all parts take part in it, and none is behind.
func (m *merger) keepUp() {
	newest, read, last := m.feeds[0].floor, m.feeds[0].end(), m.feeds[0]
	for _, f := range m.feeds[1:] {
		newest, read = mongo.MaxOpTime(newest, f.floor), mongo.MaxOpTime(read, f.end())
		if floor := f.floor; floor.Before(last.floor) || floor == last.floor && last.undecided.IsZero() {
			last = f
		}
	}
	w := stream.Wait{}
	if last.floor.Before(newest) || !last.undecided.IsZero() && last.undecided.Before(read) {
		w = stream.Wait{Part: last.part.Name, For: time.Since(last.moved), Moved: last.moved, Since: last.floor,
			Undecided: !last.undecided.IsZero()}
	}
	known := make([]mongo.OpTime, len(m.feeds)) // another one each time: who asks keeps it
	for i, f := range m.feeds {
		if known[i] = f.floor; known[i].Before(newest) {
			f.pass(newest)
		}
	}
	m.s.mu.Lock()
	m.s.waits, m.s.known = w, known
	m.s.mu.Unlock()
}
