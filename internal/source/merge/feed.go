package merge

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// partMark is where one part resumes, perhaps before the merged stream: repeated events are
// skipped.
type partMark struct {
	Name string `json:"name"`
	T    uint32 `json:"t"`
	I    uint32 `json:"i"`
	Term int64  `json:"term"`
	Mark string `json:"mark,omitempty"`
}

// Position is that of a consumer that has everything up to at, with the positions of the parts.
// None may be after at.
func Position(at mongo.OpTime, names []string, parts map[string]stream.Position) (stream.Position, error) {
	for _, name := range names {
		p, ok := parts[name]
		switch {
		case !ok || p.At.IsZero():
			return stream.Position{}, fmt.Errorf("position %s: %q has none", at, name)
		case at.Before(p.At):
			return stream.Position{}, fmt.Errorf("position %s: that of %q, %s, is after it", at, name, p.At)
		}
	}
	return joined(at, names, parts), nil
}

// Joined is Position for parts that may be after at: they have nothing before their own positions.
func Joined(at mongo.OpTime, parts map[string]stream.Position) stream.Position {
	return joined(at, slices.Sorted(maps.Keys(parts)), parts)
}

func joined(at mongo.OpTime, names []string, parts map[string]stream.Position) stream.Position {
	marks := make([]partMark, 0, len(names))
	for _, name := range names {
		marks = append(marks, markOf(name, parts[name]))
	}
	return stream.Position{At: at, Mark: encode(marks)}
}

func Parts(pos stream.Position) (map[string]stream.Position, error) {
	marks, err := decode(pos.Mark)
	if err != nil {
		return nil, fmt.Errorf("position %s: %w", pos.At, err)
	}
	parts := map[string]stream.Position{}
	for _, m := range marks {
		if _, twice := parts[m.Name]; twice {
			return nil, fmt.Errorf("position %s: %q is in it twice", pos.At, m.Name)
		}
		at := mongo.OpTime{TS: bson.Timestamp{T: m.T, I: m.I}, Term: m.Term}
		parts[m.Name] = stream.Position{At: at, Mark: m.Mark}
	}
	return parts, nil
}

// Without returns the mark of a position without parts that have ended.
func Without(mark string, gone []string) (string, error) {
	marks, err := decode(mark)
	return encode(slices.DeleteFunc(marks, func(m partMark) bool { return slices.Contains(gone, m.Name) })), err
}

func decode(mark string) (marks []partMark, err error) {
	if err := json.Unmarshal([]byte(mark), &marks); err != nil {
		return nil, fmt.Errorf("%q does not say where the parts of a merged source go on: %w", mark, err)
	}
	return marks, nil
}

func markOf(name string, p stream.Position) partMark {
	return partMark{Name: name, T: p.At.TS.T, I: p.At.TS.I, Term: p.At.Term, Mark: p.Mark}
}

func encode(marks []partMark) string {
	b, err := json.Marshal(marks)
	if err != nil {
		panic(err) // numbers and strings
	}
	return string(b)
}

type arrival struct {
	feed  *feed
	batch *stream.Batch
}

// feed is what was read of one part and not passed on. The merger's goroutine has it, except in run
// and advance.
type feed struct {
	index int
	part  Part
	from  stream.Position   // where the run began
	goOn  chan struct{}     // one token: the part may bring its next batch
	ask   chan mongo.OpTime // the newest time to pass, at most one

	queue []segment
	bytes int64 // of queue
	// ends are where the part's batches end, with the positions to resume from. The first is the
	// last that was passed on completely.
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

// pass requests that the part passes a time, once.
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

func (f *feed) end() mongo.OpTime { return f.ends[len(f.ends)-1].At }

// known is the position up to which all events are known. Prepared transactions come later, and
// what comes in parts continues.
func (f *feed) known() mongo.OpTime {
	floor := f.end()
	if f.partial { // of what is after the end, or of a commit before it
		floor = f.queueEnd.Previous()
	}
	if !f.undecided.IsZero() {
		floor = mongo.MinOpTime(floor, f.undecided.Previous())
	}
	return floor
}

// after is the next position, of no entry.
func after(p mongo.OpTime) mongo.OpTime {
	at := (uint64(p.TS.T)<<32 | uint64(p.TS.I)) + 1
	return mongo.OpTime{TS: bson.Timestamp{T: uint32(at >> 32), I: uint32(at)}, Term: -1}
}

// lets is the last position of another feed's event, or its own, before which the feed's events are
// known. Of one position the feed with the lower index is first.
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
		last = mongo.MinOpTime(last, f.undecided.Previous())
	}
	return last
}

// add takes a batch, without what is at or before done, which was passed on.
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

func without(events []stream.Event, done mongo.OpTime) []stream.Event {
	for i := range events {
		if !done.Before(events[i].At) {
			return slices.DeleteFunc(events, func(ev stream.Event) bool { return !done.Before(ev.At) })
		}
	}
	return events
}

// append adds a segment. If a commit in it has an earlier time than what came before, it sorts
// everything.
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

func (f *feed) next() *stream.Event {
	if len(f.queue) == 0 {
		return nil
	}
	return &f.queue[0].events[0]
}

// take removes the next events up to a position, at least one, from one batch, until they reach
// some bytes. It returns their bytes.
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

func (f *feed) resume(at mongo.OpTime) stream.Position {
	n := 0
	for n+1 < len(f.ends) && !at.Before(f.ends[n+1].At) {
		n++
	}
	f.ends = slices.Delete(f.ends, 0, n)
	return f.ends[0]
}
