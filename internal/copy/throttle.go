package copy

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// throttle paces documents and bytes to limits that can change at any time.
type throttle struct {
	docs, bytes atomic.Int64 // per second, 0 is unlimited

	mu   sync.Mutex
	next time.Time // when the next chunk may pass
}

// wait lets a chunk pass. Each chunk books the time that it takes at the
// present rates.
func (t *throttle) wait(ctx context.Context, docs, bytes int64) error {
	var cost time.Duration
	if limit := t.docs.Load(); limit > 0 {
		cost = time.Duration(float64(docs) / float64(limit) * float64(time.Second))
	}
	if limit := t.bytes.Load(); limit > 0 {
		cost = max(cost, time.Duration(float64(bytes)/float64(limit)*float64(time.Second)))
	}
	if cost == 0 {
		return nil
	}
	t.mu.Lock()
	now := time.Now()
	if t.next.Before(now) {
		t.next = now
	}
	delay := t.next.Sub(now)
	t.next = t.next.Add(cost)
	t.mu.Unlock()
	if delay <= 0 {
		return nil
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
