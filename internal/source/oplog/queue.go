package oplog

import (
	"context"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/wire"
)

// maxReply bounds a server's reply, except for a single larger document.
const maxReply = 16 << 20

// chunk is one reply of the oplog cursor.
type chunk struct {
	batch *wire.Batch
	skip  int // entries at its start that were delivered before
}

// each calls fn for the entries after the skipped ones.
func (c chunk) each(fn func(doc []byte) error) error {
	skip := c.skip
	return c.batch.Each(func(doc []byte) error {
		if skip > 0 {
			skip--
			return nil
		}
		return fn(doc)
	})
}

// queue holds what was read ahead, bounded in bytes, for one producer and one consumer.
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

// newQueue returns a queue with room for limit bytes, at least two replies.
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

// waitRoom waits until another reply fits or the queue is empty, as one document may exceed the limit.
// It returns false after timeout; 0 is no timeout.
func (q *queue) waitRoom(ctx context.Context, timeout time.Duration) (bool, error) {
	return wait(ctx, q.room, timeout, func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.used == 0 || q.used+q.reply <= q.limit
	})
}

// wait waits until ready, which it calls at each signal. It returns false after timeout; 0 is no
// timeout.
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

// put adds a chunk after waitRoom. It always returns nil.
func (q *queue) put(c chunk) error {
	q.mu.Lock()
	q.chunks = append(q.chunks, c)
	q.used += int64(c.batch.Size)
	q.mu.Unlock()
	signal(q.items)
	return nil
}

// close ends the queue with the reader's error.
func (q *queue) close(err error) {
	q.mu.Lock()
	q.closed, q.err = true, err
	q.mu.Unlock()
	signal(q.items)
}

// take returns the next chunk, or false after timeout. The error of close follows the last chunk.
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

// done releases the room of a taken chunk.
func (q *queue) done(c chunk) {
	q.mu.Lock()
	q.used -= int64(c.batch.Size)
	q.mu.Unlock()
	signal(q.room)
}

func (q *queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.chunks) == 0
}
