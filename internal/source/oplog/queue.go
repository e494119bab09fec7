package oplog

import (
	"context"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/wire"
)

// maxReply is the most that one reply of the server brings, a single larger
// document aside.
const maxReply = 16 << 20

// chunk is one reply of the oplog cursor.
type chunk struct {
	batch *wire.Batch
	skip  int // entries at its start that were delivered before
}

// queue has what was read ahead, bounded in bytes. One goroutine puts, one
// takes.
type queue struct {
	limit int64
	reply int64 // what the next reply may bring

	mu     sync.Mutex
	chunks []chunk
	used   int64 // bytes of chunks put and not yet done
	closed bool
	err    error

	items, room chan struct{} // signals, capacity 1
}

// newQueue has room for limit bytes, in two replies at least.
func newQueue(limit int64) *queue {
	return &queue{limit: limit, reply: min(max(limit/2, 1), maxReply), items: make(chan struct{}, 1),
		room: make(chan struct{}, 1)}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// waitRoom waits until another reply fits, or the queue is empty: a reply of one
// document may be larger than all room. It gives up after timeout (0 means never) and then
// returns false.
func (q *queue) waitRoom(ctx context.Context, timeout time.Duration) (bool, error) {
	return wait(ctx, q.room, timeout, func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.used == 0 || q.used+q.reply <= q.limit
	})
}

// wait waits until ready, asked at each signal, says so; false after timeout (0
// means never).
func wait[T any](ctx context.Context, woken <-chan T, timeout time.Duration, ready func() bool) (bool, error) {
	var limit <-chan time.Time
	for !ready() {
		if limit == nil && timeout > 0 {
			t := time.NewTimer(timeout)
			defer t.Stop()
			limit = t.C
		}
		select {
		case <-woken:
		case <-limit:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	return true, nil
}

// put adds a chunk; waitRoom comes first. It does not fail.
func (q *queue) put(c chunk) error {
	q.mu.Lock()
	q.chunks = append(q.chunks, c)
	q.used += int64(c.batch.Size)
	q.mu.Unlock()
	signal(q.items)
	return nil
}

// close says that nothing more comes, and why.
func (q *queue) close(err error) {
	q.mu.Lock()
	q.closed, q.err = true, err
	q.mu.Unlock()
	signal(q.items)
}

// take returns the next chunk, false after timeout without one. The error
// given to close comes after all chunks.
func (q *queue) take(ctx context.Context, timeout time.Duration) (c chunk, ok bool, err error) {
	ready, err := wait(ctx, q.items, max(timeout, 1), func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.chunks) > 0 || q.closed
	})
	if err != nil || !ready {
		return c, false, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.chunks) == 0 {
		return c, false, q.err
	}
	c = q.chunks[0]
	q.chunks[0] = chunk{}
	q.chunks = q.chunks[1:]
	return c, true, nil
}

// done gives a taken chunk's room back.
func (q *queue) done(c chunk) {
	q.mu.Lock()
	q.used -= int64(c.batch.Size)
	q.mu.Unlock()
	signal(q.room)
}

// empty reports that nothing is ready to be taken.
func (q *queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.chunks) == 0
}
