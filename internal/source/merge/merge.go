// Package merge makes one source of several, such as the shards of a cluster: it sorts their events
// by cluster time. Of equal times, which shards often have, the part that is first in the list
// comes first.
//
// An idle part delays the others until it has passed their times. So parts are asked to advance.
package merge

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// Part is one of the sources.
type Part struct {
	// Name is the part's in positions, such as that of a shard.
	Name   string
	Source stream.Source
	// Advance makes the part pass a time without events; nil if it does so itself. One goroutine
	// calls it. It fails only for what ends the run.
	Advance func(ctx context.Context, at mongo.OpTime) error
}

// Options configure a Source; zero values choose defaults.
type Options struct {
	// AheadBytes bounds what is kept of each part beyond its present batch, default 32 MB.
	AheadBytes int64
	// BatchBytes is the size of events that completes a batch, default 4 MB. A batch may exceed it
	// by one document.
	BatchBytes int64
	// HeldBytes bounds what is kept of a part while one of its prepared transactions is undecided,
	// default 8 times AheadBytes. Beyond it the run ends with an error of mongo.ClassRetry.
	HeldBytes int64
	// Beat is the time between empty batches, default 100 ms.
	Beat time.Duration
}

// Source merges its parts. It implements stream.Source. One goroutine calls Run, any Stats and
// Waits.
type Source struct {
	parts []Part
	opt   Options

	mu    sync.Mutex
	waits stream.Wait
	known []mongo.OpTime // the floors of the parts; nil while none is read
}

// New makes a source of at least one part.
func New(parts []Part, o Options) *Source {
	o.AheadBytes, o.BatchBytes = cmp.Or(o.AheadBytes, 32<<20), cmp.Or(o.BatchBytes, 4<<20)
	o.HeldBytes, o.Beat = cmp.Or(o.HeldBytes, 8*o.AheadBytes), cmp.Or(o.Beat, 100*time.Millisecond)
	return &Source{parts: parts, opt: o}
}

func (s *Source) Waits() stream.Wait {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waits
}

// Stats implements stream.Source: sums, the newest position of any part, and the parts.
func (s *Source) Stats() stream.SourceStats {
	s.mu.Lock()
	all, known := stream.SourceStats{Waits: s.waits}, s.known
	s.mu.Unlock()
	for i, p := range s.parts {
		st := p.Source.Stats()
		part := stream.PartStats{Name: p.Name, Events: st.Events, Bytes: st.Bytes}
		if known != nil {
			part.At = known[i]
		}
		all.Parts = append(all.Parts, part)
		all.Entries += st.Entries
		all.Bytes += st.Bytes
		all.Events += st.Events
		all.OpenTransactions += st.OpenTransactions
		all.BufferedBytes += st.BufferedBytes
		all.Newest = mongo.MaxOpTime(all.Newest, st.Newest)
	}
	return all
}

// Run implements stream.Source. The position must be of a batch of such a source, or made by
// Position, with the same parts.
func (s *Source) Run(ctx context.Context, pos stream.Position, emit func(context.Context, *stream.Batch) error) error {
	from, err := Parts(pos)
	if err == nil && len(from) != len(s.parts) {
		err = fmt.Errorf("position %s is of %d parts, the source has %d", pos.At, len(from), len(s.parts))
	}
	if err != nil {
		return err
	}
	m := &merger{s: s, emit: emit, arrivals: make(chan arrival), from: pos.At, end: pos.At, last: pos.At}
	group, ctx := errgroup.WithContext(ctx)
	for i, p := range s.parts {
		at, ok := from[p.Name]
		if !ok {
			return fmt.Errorf("position %s does not say where %s goes on", pos.At, p.Name)
		}
		m.feeds = append(m.feeds, newFeed(i, p, at))
	}
	for _, f := range m.feeds {
		group.Go(func() error { return f.run(ctx, m.arrivals) })
		if f.part.Advance != nil {
			group.Go(func() error { return f.advance(ctx) })
		}
	}
	group.Go(func() error { return m.run(ctx) })
	err = group.Wait()
	s.mu.Lock()
	s.waits, s.known = stream.Wait{}, nil
	s.mu.Unlock()
	return err
}

// merger sorts what the feeds bring. It runs in one goroutine.
type merger struct {
	s        *Source
	emit     func(context.Context, *stream.Batch) error
	feeds    []*feed
	arrivals chan arrival

	from mongo.OpTime // where the run began: what is at or before it comes again
	end  mongo.OpTime // End of the last batch

	out      stream.Batch
	bytes    int64 // of the events of out
	capacity int
	// last is the position of the newest event passed on or in out, with all before it.
	last mongo.OpTime
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

// arrived takes a batch. An event at a time that was passed on would be lost, or out of order.
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

// blocking returns the feeds that the next event waits for, by index, and asks them to advance.
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

// until is the last position at which the first feed's events precede all others.
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
			last = last.Previous()
		}
		if last.Before(until) {
			until = last
		}
	}
	return until
}

// complete is the position up to which everything is passed on after the event at at.
func (m *merger) complete(at mongo.OpTime) mongo.OpTime {
	for _, f := range m.feeds {
		if ev := f.next(); ev != nil && !at.Before(ev.At) || f.floor.Before(at) {
			return at.Previous()
		}
	}
	return at
}

func (m *merger) floor() mongo.OpTime {
	floor := m.feeds[0].floor
	for _, f := range m.feeds[1:] {
		floor = mongo.MinOpTime(floor, f.floor)
	}
	return floor
}

func (m *merger) flush(ctx context.Context, complete mongo.OpTime, more bool) error {
	b := m.out
	b.Start, b.End, b.More = m.end, mongo.MaxOpTime(m.end, complete), more
	b.Partial = b.End.Before(m.last) // also where the rest is still to come
	b.EventBytes = int(m.bytes)
	marks := make([]partMark, len(m.feeds))
	for i, f := range m.feeds {
		marks[i] = markOf(f.part.Name, f.resume(b.End))
		b.More = b.More || f.more || f.next() != nil
	}
	b.Mark = encode(marks)
	m.capacity = min(len(b.Events)+len(b.Events)/8+1, 1<<16)
	m.out, m.bytes, m.end = stream.Batch{}, 0, b.End
	return m.emit(ctx, &b)
}

// keepUp makes parts that are behind pass the newest time, and notes the last one. An undecided
// transaction delays all that was read after it, even if no part is behind.
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
