package copy

import (
	"container/list"
	"context"
	"sync"
)

// budget bounds bytes in flight, first come first served. One request larger
// than the whole budget is granted when nothing else is in flight.
type budget struct {
	limit int64

	mu      sync.Mutex
	used    int64
	waiting list.List // of *request
}

type request struct {
	n     int64
	ready chan struct{}
}

func newBudget(limit int64) *budget { return &budget{limit: limit} }

// take waits until n bytes are free.
func (b *budget) take(ctx context.Context, n int64) error {
	b.mu.Lock()
	if b.waiting.Len() == 0 && b.fits(n) {
		b.used += n
		b.mu.Unlock()
		return nil
	}
	r := &request{n: n, ready: make(chan struct{})}
	el := b.waiting.PushBack(r)
	b.mu.Unlock()
	select {
	case <-r.ready:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-r.ready:
		b.used -= n
	default:
		b.waiting.Remove(el)
	}
	b.grant()
	return ctx.Err()
}

// adjust corrects a taken amount by delta: what has arrived already is counted
// even when it exceeds the limit.
func (b *budget) adjust(delta int64) {
	b.mu.Lock()
	b.used += delta
	b.grant()
	b.mu.Unlock()
}

func (b *budget) inFlight() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

func (b *budget) fits(n int64) bool { return b.used <= 0 || b.used+n <= b.limit }

func (b *budget) grant() {
	for el := b.waiting.Front(); el != nil; el = b.waiting.Front() {
		r := el.Value.(*request)
		if !b.fits(r.n) {
			return
		}
		b.used += r.n
		b.waiting.Remove(el)
		close(r.ready)
	}
}
