package mongosink

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// segment is one stream.Batch on its way to the target.
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

// notify signals a channel of capacity 1.
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

// ack counts events of a segment.
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
