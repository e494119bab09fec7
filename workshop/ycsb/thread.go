package ycsb

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// thread is one client of the load: one operation at a time.
type thread struct {
	*workload
	run   *run
	store *store
	shard *shard
	rand  *rand.Rand
	key   []byte
	first atomic.Int64 // of the load: the first record that may not be there yet
}

// idle says that a thread has no insert of the load under way.
const idle = -1

// loop works until there is nothing left or stop ends. Operations under way
// then go on in ctx.
func (t *thread) loop(stop, ctx context.Context, p *pacer) error {
	t.first.Store(idle)
	defer t.store.close()
	for stop.Err() == nil {
		due := p.wait(stop)
		if stop.Err() != nil {
			break
		}
		n, ok := t.run.take()
		if !ok {
			break
		}
		if t.phase == Load {
			if err := t.load(stop, ctx, t.insertStart+n, due); err != nil {
				return err
			}
			continue
		}
		t.transact(ctx, due)
		if ctx.Err() != nil {
			break
		}
	}
	start := time.Now()
	err := t.finish(stop, ctx)
	t.shard.record(opCleanup, statusOK, time.Time{}, start, time.Now())
	return err
}

// load inserts record n and tries again as often as is wanted.
func (t *thread) load(stop, ctx context.Context, n int64, due time.Time) error {
	if t.first.Load() == idle {
		t.first.Store(n)
	}
	t.key = t.keys.append(t.key[:0], n)
	start := time.Now()
	st, err := t.store.insert(ctx, start, t.key)
	err = t.again(stop, ctx, &st, err)
	t.shard.record(opInsert, st, due, start, time.Now())
	if err != nil {
		return fmt.Errorf("record %d, key %s: %w", n, t.key, err)
	}
	if st == statusOK {
		t.first.Store(idle)
	}
	return nil
}

// again sends a batch that failed once more, after a pause, as often as is
// wanted. Keys that are there by then were written by a try before.
func (t *thread) again(stop, ctx context.Context, st *status, err error) error {
	for try := int64(0); err != nil && try < t.retries && ctx.Err() == nil; try++ {
		t.run.note(err)
		select {
		case <-time.After(t.retryAfter):
		case <-stop.Done():
			return err
		}
		*st, err = t.store.flush(ctx, time.Now())
		if refused := (*writeError)(nil); errors.As(err, &refused) && refused.onlyDup {
			t.store.discard()
			*st, err = statusOK, nil
		}
	}
	return err
}

// finish sends what waits in a batch.
func (t *thread) finish(stop, ctx context.Context) error {
	if t.store.pending() == 0 {
		return nil
	}
	st, err := t.store.flush(ctx, time.Now())
	if err = t.again(stop, ctx, &st, err); err != nil {
		if t.phase == Load {
			return err
		}
		t.run.note(err)
		return nil
	}
	t.first.Store(idle)
	return nil
}

// transact does one operation of the run phase.
func (t *thread) transact(ctx context.Context, due time.Time) {
	switch k := t.operation(t.rand); k {
	case opInsert:
		t.insert(ctx, due)
	case opModify:
		t.modify(ctx, due)
	default:
		n := t.record(t.rand)
		t.key = t.keys.append(t.key[:0], n)
		switch k {
		case opUpdate:
			t.update(ctx, due)
		case opScan:
			t.scan(ctx, due)
		default:
			t.read(ctx, due)
		}
	}
}

func (t *thread) read(ctx context.Context, due time.Time) status {
	start := time.Now()
	doc, st, err := t.store.read(ctx, start, t.key, t.readField(t.rand))
	t.done(opRead, st, due, start, err)
	if t.verify && st == statusOK {
		start = time.Now()
		if !t.content.verify(doc, t.key) {
			st = statusUnexpected
		}
		t.done(opVerify, st, time.Time{}, start, nil)
	}
	return st
}

func (t *thread) update(ctx context.Context, due time.Time) status {
	start := time.Now()
	st, err := t.store.update(ctx, start, t.key, t.writeField(t.rand))
	t.done(opUpdate, st, due, start, err)
	return st
}

func (t *thread) modify(ctx context.Context, due time.Time) {
	t.key = t.keys.append(t.key[:0], t.record(t.rand))
	start := time.Now()
	st := t.read(ctx, due)
	if second := t.update(ctx, due); st.ok() {
		st = second
	}
	t.done(opModify, st, due, start, nil)
}

func (t *thread) scan(ctx context.Context, due time.Time) {
	n := int(t.scanLength.next(t.rand))
	start := time.Now()
	st, err := t.store.scan(ctx, start, t.key, n, t.readField(t.rand))
	t.done(opScan, st, due, start, err)
}

func (t *thread) insert(ctx context.Context, due time.Time) {
	n := t.inserts.take()
	t.key = t.keys.append(t.key[:0], n)
	start := time.Now()
	st, err := t.store.insert(ctx, start, t.key)
	if err != nil {
		t.store.discard()
	}
	t.done(opInsert, st, due, start, err)
	t.inserts.acknowledge(n)
}

func (t *thread) done(k kind, st status, due, start time.Time, err error) {
	t.shard.record(k, st, due, start, time.Now())
	if err != nil {
		t.run.note(err)
	}
}
