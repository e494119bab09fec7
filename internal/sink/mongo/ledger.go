package mongosink

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/resolve"
	"github.com/millrace/millrace/internal/stream"
)

type segment struct {
	resume  stream.Position // once it and all before it are applied
	bytes   int64
	pending atomic.Int64 // events not acknowledged, and those that are not to be routed plus one while routing
	inUse   atomic.Int64 // events whose memory is needed, likewise
}

// ledger tracks complete segments. Its byte limit bounds memory: events alias the reply buffers of their
// batch, so bytes are released by batch.
type ledger struct {
	mu       sync.Mutex
	open     []*segment // in stream order
	position stream.Position

	limit    int64
	bytes    atomic.Int64  // in flight
	admitted atomic.Int64  // bytes, since the start
	room     chan struct{} // signalled when a segment completes
}

func newLedger(limit int64, start stream.Position) *ledger {
	return &ledger{limit: limit, position: start, room: make(chan struct{}, 1)}
}

// admit waits until the batch fits and registers it. With nothing in flight a batch of any size fits.
// Parked operations keep their bytes until relieve resolves them, which wakeCh asks for.
func (l *ledger) admit(
	ctx context.Context, b *stream.Batch, relieve func(context.Context) error, wakeCh <-chan struct{},
) (*segment, error) {
	for {
		if !l.full(b) {
			s := &segment{resume: b.Resume(), bytes: b.Held()}
			s.pending.Store(1 + int64(len(b.Events)))
			s.inUse.Store(1 + int64(len(b.Events)))
			l.bytes.Add(s.bytes)
			l.admitted.Add(s.bytes)
			l.mu.Lock()
			defer l.mu.Unlock()
			l.open = append(l.open, s)
			return s, nil
		}
		select {
		case <-l.room:
		case <-wakeCh:
			if err := relieve(ctx); err != nil {
				return nil, err
			}
			// What is still parked would wait for a batch that is not admitted.
			if l.full(b) {
				if err := relieve(ctx); err != nil {
					return nil, err
				}
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// release frees the memory of n events of a segment.
func (l *ledger) release(s *segment, n int64) {
	if s.inUse.Add(-n) > 0 {
		return
	}
	l.bytes.Add(-s.bytes)
	notify(l.room)
}

func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// done acknowledges n events of a segment and advances the position over complete segments.
func (l *ledger) done(s *segment, n int64) {
	if s.pending.Add(-n) > 0 {
		return
	}
	l.mu.Lock()
	for len(l.open) > 0 && l.open[0].pending.Load() == 0 {
		head := l.open[0]
		l.open[0] = nil
		l.open = l.open[1:]
		if p := head.resume; !p.At.Before(l.position.At) {
			l.position = p
		}
	}
	l.mu.Unlock()
	notify(l.room)
}

// advance sets the position inside an open segment.
func (l *ledger) advance(applied mongo.OpTime) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.position.At.Before(applied) {
		l.position.At = applied // Mark stays: it may only be too early
	}
}

// pass sets the position after a schema change inside an open segment.
func (l *ledger) pass(ev *stream.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.position.At.Before(ev.At) {
		l.position = l.position.Past(ev)
	}
}

func (l *ledger) current() stream.Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.position
}

// full reports that the batch must wait for room. Only admit takes room.
func (l *ledger) full(b *stream.Batch) bool {
	used := l.bytes.Load()
	return used > 0 && used+b.Held() > l.limit
}

type ack struct {
	seg      *segment
	n        int64
	released bool // the memory of the events was freed before
}

type acks []ack

func (a *acks) add(seg *segment, n int64, released bool) {
	if last := len(*a) - 1; last >= 0 && (*a)[last].seg == seg && (*a)[last].released == released {
		(*a)[last].n += n
		return
	}
	*a = append(*a, ack{seg, n, released})
}

func (a *acks) reset() {
	clear(*a)
	*a = (*a)[:0]
}

func (s *shared) acknowledge(list acks) {
	for _, a := range list {
		if !a.released {
			s.release(a)
		}
		s.ledger.done(a.seg, a.n)
	}
}

// release counts operations and frees their memory.
func (s *shared) release(a ack) {
	s.operations.Add(a.n)
	s.ledger.release(a.seg, a.n)
}

// waiting holds parked documents in order, and the acknowledgements that wait for them.
type waiting struct {
	docs []*resolve.Document
	acks acks
}

// Drain waits until everything fed is acknowledged, parked operations included.
func (e *Engine) Drain(ctx context.Context) error { return e.drain(ctx, true) }

// drain is Drain; without must, documents may stay parked.
func (e *Engine) drain(ctx context.Context, must bool) error {
	failpoint.Hit("drain.before")
	defer failpoint.Hit("drain.after")
	parked, err := e.quiesce(ctx)
	if err == nil {
		err = e.resolve(ctx, parked, must)
	}
	if err == nil {
		err = e.resolver.ResolveSkipped(ctx, e.barrier(must))
	}
	return e.failure(err)
}

// quiesce makes the partitions send all they have, and takes what they parked.
func (e *Engine) quiesce(ctx context.Context) (parked waiting, err error) {
	if err := e.flushChunks(ctx); err != nil {
		return parked, err
	}
	replies := make(chan waiting, len(e.partitions))
	for _, p := range e.partitions {
		if err := p.send(ctx, message{quiesce: replies}); err != nil {
			return parked, err
		}
	}
	for range e.partitions {
		select {
		case w := <-replies:
			parked.docs, parked.acks = append(parked.docs, w.docs...), append(parked.acks, w.acks...)
		case <-e.shared.stopped.Done():
			return parked, context.Cause(e.shared.stopped)
		case <-ctx.Done():
			return parked, context.Cause(ctx)
		}
	}
	select { // whatever was parked is in hand now
	case <-e.shared.wake:
	default:
	}
	return parked, nil
}

// resolve decides about parked documents. Undecided ones return to their partitions before anything new
// is sent, so that later events join them.
func (e *Engine) resolve(ctx context.Context, parked waiting, must bool) error {
	carry, err := e.resolver.Resolve(ctx, e.barrier(must), parked.docs)
	if err != nil {
		return err
	}
	e.carried = len(carry)
	if len(carry) == 0 {
		e.shared.acknowledge(parked.acks)
		return e.resolver.ResolveDue(ctx, e.barrier(must))
	}
	back := make([]waiting, len(e.partitions))
	for _, d := range carry {
		i := d.Hash % uint64(len(e.partitions))
		back[i].docs = append(back[i].docs, d)
	}
	rest := parked.acks // one of the partitions has them all
	for i, w := range back {
		if len(w.docs) == 0 {
			continue
		}
		w.acks, rest = rest, nil
		if err := e.partitions[i].send(ctx, message{adopt: &w}); err != nil {
			return err
		}
	}
	return nil
}

// beforeBatch resolves what it can, and makes room.
func (e *Engine) beforeBatch(ctx context.Context, b *stream.Batch) error {
	parked := false
	select {
	case <-e.shared.wake:
		parked = true
	default:
	}
	crowded := e.resolver.Crowded()
	// After the overlap, parked documents and dead letters can be decided.
	due := e.over() && (e.carried > 0 || e.resolver.Due(e.Applied().At))
	if parked || crowded || due {
		if err := e.drain(ctx, false); err != nil {
			return err
		}
	}
	if crowded {
		if err := e.resolver.MakeRoom(ctx, e.barrier(false)); err != nil {
			return err
		}
	}
	if e.carried > 0 && e.shared.ledger.full(b) {
		return e.relieve(ctx)
	}
	return nil
}

// relieve makes room in a full ledger by resolving what is parked. A restart replays less than the
// ledger holds, so documents that still cannot be resolved are real conflicts.
func (e *Engine) relieve(ctx context.Context) error {
	return e.drain(ctx, e.carried > 0)
}

// CappedStart says which events of a capped collection to skip: those up to Past and the next Then.
type CappedStart struct {
	Past mongo.OpTime
	Then int
}

// passes counts an event and reports whether the target has it.
func (s *CappedStart) passes(at mongo.OpTime) bool {
	if !s.Past.Before(at) {
		return true
	}
	s.Then--
	return s.Then >= 0
}

// cappedStarts are by target namespace, for the router only.
type cappedStarts map[string]*CappedStart

func newCappedStarts(given map[string]CappedStart) cappedStarts {
	c := cappedStarts{}
	for ns, s := range given {
		c[ns] = &s
	}
	return c
}

// renamed follows a rename at a position, or a drop (to is "").
func (c cappedStarts) renamed(from, to string, at mongo.OpTime) {
	start := c[from]
	delete(c, from)
	switch there := c[to]; {
	case to == "":
	case start != nil:
		c[to] = start
	case there != nil && there.Past.Before(at):
		// A restart may repeat a rename: keep what is already known of the collection after it.
		delete(c, to)
	}
}
