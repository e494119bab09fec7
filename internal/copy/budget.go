package copy

import (
	"context"
	"sync/atomic"
)

// budget bounds bytes in flight, first come first served. One request larger
// than the whole budget is granted when nothing else is in flight.
type budget struct {
	limit int64
	used  atomic.Int64
	turn  chan struct{} // full while somebody waits for room, others wait for their turn
	freed chan struct{} // full when something has changed since the one in turn has looked
}

func newBudget(limit int64) *budget {
	return &budget{limit: limit, turn: make(chan struct{}, 1), freed: make(chan struct{}, 1)}
}

// take waits until n bytes are free.
func (b *budget) take(ctx context.Context, n int64) error {
	select {
	case b.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-b.turn }()
	for used := b.used.Load(); used > 0 && used+n > b.limit; used = b.used.Load() {
		select {
		case <-b.freed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	b.used.Add(n)
	return nil
}

// adjust corrects a taken amount by delta: what has arrived already is counted
// even when it exceeds the limit.
func (b *budget) adjust(delta int64) {
	b.used.Add(delta)
	select {
	case b.freed <- struct{}{}:
	default:
	}
}
