package changestream

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// assembler turns change events into batches, in one goroutine.
//
// Several events may have one cluster time. So a time is complete only when the stream is known to have passed
// it. A later event or a later token shows that, and, of a replica set, an empty reply. Events of the last time
// are passed on before, in partial batches. A schema change among them waits: a restart must be able to
// resume after it.
type assembler struct {
	s    *Source
	emit func(context.Context, *stream.Batch) error
	ns   *namespaces

	pos    mongo.OpTime // what the consumer has applied
	seen   mongo.OpTime // the time of the last event read
	start  mongo.OpTime // End of the last batch
	end    mongo.OpTime // complete
	sent   mongo.OpTime // the time of the last event in a batch
	newest mongo.OpTime // the time of the last token

	token token  // of the last event
	mark  string // from which everything after end comes
	endAt token  // the same, if it has data

	split   change                // the fragments so far of an event that the server has split
	current change                // large: not one on the heap for each event
	txns    []*stream.Transaction // at the time of seen

	events   []stream.Event
	open     []int // the events that do not say how their document has changed
	capacity int   // of the next events slice
	pending  int   // bytes of events
	tail     int   // bytes of those at the time of seen
	bytes    int   // of all that was read for the batch
	entries  int
}

func newAssembler(s *Source, pos stream.Position, emit func(context.Context, *stream.Batch) error) *assembler {
	return &assembler{s: s, emit: emit, ns: &namespaces{keep: s.opt.Keep, known: map[string]*namespace{}},
		pos: pos.At, start: pos.At, end: pos.At, newest: pos.At, mark: pos.Mark}
}

// run consumes replies until reading fails.
func (a *assembler) run(ctx context.Context, r *reader) error {
	timer := time.NewTimer(0) // at once, for whoever waits for no more than the start
	defer timer.Stop()
	watch := mongo.StallWatch{Cluster: a.s.cluster}
	for {
		var idle bool
		select {
		case rep, ok := <-r.replies:
			if !ok {
				return r.err
			}
			if err := a.reply(ctx, rep); err != nil {
				return err
			}
			if idle = rep.Empty(); idle {
				if err := watch.Check(ctx, a.newest); err != nil {
					return err
				}
			}
		case <-timer.C:
			idle = true
		case <-ctx.Done():
			return ctx.Err()
		}
		if idle || len(r.replies) == 0 {
			if err := a.flush(ctx, false); err != nil {
				return err
			}
			timer.Reset(beat)
		}
	}
}

func (a *assembler) reply(ctx context.Context, rep reply) error {
	err := rep.Each(func(doc []byte) error {
		if err := a.event(doc); err != nil {
			return err
		}
		if a.bytes < a.s.opt.BatchBytes {
			return nil
		}
		return a.flush(ctx, true)
	})
	if err != nil {
		return err
	}
	a.passed(rep.token, rep.Empty())
	return nil
}

// passed notes what a reply's token proves.
func (a *assembler) passed(t token, empty bool) {
	at := t.at()
	a.newest = mongo.MaxOpTime(a.newest, at)
	switch {
	// A replica set has one oplog with one entry a time. At its end the server has returned all of the entry.
	case empty && a.s.cluster.Info.Kind == mongo.KindReplicaSet && !at.Before(a.seen):
		a.complete(at, t)
	case a.seen.Before(at):
		a.complete(at.Previous(), t)
	}
}

// complete notes that there are no more events at or before a time, and the token to go on from.
func (a *assembler) complete(at mongo.OpTime, t token) {
	if !a.end.Before(at) {
		return
	}
	a.end = at
	if t.data != nil {
		a.endAt = t
	}
}

func (a *assembler) event(doc []byte) error {
	a.bytes += len(doc)
	c := &a.current
	*c = change{}
	if a.split.fragment > 0 {
		*c = a.split
	}
	err := c.parse(doc)
	if err == nil {
		err = a.order(c)
	}
	if err != nil {
		return fmt.Errorf("change event after %s: %w", a.seen, err)
	}
	if c.fragment < c.fragments {
		a.split = *c
		return nil
	}
	a.split = change{}
	a.entries++
	if a.pos.Before(c.at) {
		if err := a.add(c, len(doc)); err != nil {
			return fmt.Errorf("%s: %w", c.name(), err)
		}
	}
	a.token = c.token
	return nil
}

// order checks that times grow. The first event of a later time completes the one before.
func (a *assembler) order(c *change) error {
	if a.split.fragment > 0 && (c.fragment != a.split.fragment+1 || c.at != a.split.at) {
		return fmt.Errorf("%w: fragment %d after %d of %s", ErrUnknown, c.fragment, a.split.fragment, a.split.name())
	}
	if c.at.Before(a.seen) || !a.end.Before(c.at) && a.pos.Before(a.end) {
		return fmt.Errorf("%w: %s comes after everything up to %s", ErrUnknown, c.name(), mongo.MaxOpTime(a.end, a.seen))
	}
	if c.at == a.seen {
		return nil
	}
	a.complete(a.seen, a.token)
	a.seen = c.at
	clear(a.txns)
	a.txns, a.tail = a.txns[:0], 0
	return nil
}

func (a *assembler) add(c *change, size int) error {
	info := a.ns.lookup(c.ns)
	switch string(c.op) {
	case "insert", "update", "replace", "delete":
		if !info.keep {
			return nil
		}
		ev := stream.Event{Txn: a.transaction(c)}
		open, err := c.fill(&ev, info.name)
		if err != nil {
			return fmt.Errorf("_id %s: %w", bsonraw.IDText(ev.Key.ID), err)
		}
		if open || a.s.cluster.Info.Kind == mongo.KindSharded && c.moves() {
			a.open = append(a.open, len(a.events))
		}
		a.put(ev, size)
		return nil
	}
	ch, err := a.schema(c, info)
	if err != nil || ch == nil {
		return err
	}
	ch.Mark = c.token.mark()
	a.put(stream.Event{Kind: stream.SchemaChange, NS: ch.NS, Change: ch, At: c.at}, size)
	return nil
}

// transaction returns the event's transaction, one for all its events.
func (a *assembler) transaction(c *change) *stream.Transaction {
	if c.session == nil {
		return nil
	}
	for _, t := range a.txns {
		if t.Number == c.number && bytes.Equal(t.Session, c.session) {
			return t
		}
	}
	t := &stream.Transaction{Session: c.session, Number: c.number}
	a.txns = append(a.txns, t)
	return t
}

func (a *assembler) put(ev stream.Event, size int) {
	if len(a.events) == 0 {
		a.events = make([]stream.Event, 0, a.capacity)
	}
	a.events = append(a.events, ev)
	a.pending += size
	a.tail += size
}

// maxTail bounds the events that wait for a schema change's time to be complete.
const maxTail = 64 << 20

// waiting returns the index of the first event that waits until its time is complete.
func (a *assembler) waiting() int {
	i := len(a.events)
	for i > 0 && a.end.Before(a.events[i-1].At) {
		i--
	}
	isChange := func(ev stream.Event) bool { return ev.Kind == stream.SchemaChange }
	if a.tail > maxTail || !slices.ContainsFunc(a.events[i:], isChange) {
		return len(a.events)
	}
	return i
}

// flush emits what was read. more: more was read already.
func (a *assembler) flush(ctx context.Context, more bool) error {
	mark := a.mark // of the batch before
	if a.endAt.data != nil {
		a.mark, a.endAt = a.endAt.mark(), token{}
	}
	n := a.waiting()
	events, rest, bytes, tail := a.events[:n:n], slices.Clone(a.events[n:]), a.pending, 0
	if len(rest) > 0 {
		bytes, tail = bytes-a.tail, a.tail
	}
	if n > 0 {
		a.sent = events[n-1].At
	}
	b := &stream.Batch{Events: events, Start: a.start, End: a.end, Mark: a.mark, Partial: a.end.Before(a.sent),
		More: more, Bytes: a.bytes, Entries: a.entries, EventBytes: bytes}
	var open, later []int
	for _, i := range a.open {
		if i < n {
			open = append(open, i)
		} else {
			later = append(later, i-n)
		}
	}
	a.capacity = min(n+n/8+1, 1<<16)
	a.start, a.events, a.open = a.end, rest, later
	a.bytes, a.pending, a.entries = 0, tail, 0
	a.s.count(b, a.newest)
	if len(open) > 0 {
		return a.reread(ctx, b, open, mark)
	}
	return a.emit(ctx, b)
}
