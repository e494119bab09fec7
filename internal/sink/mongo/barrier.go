package mongosink

import (
	"context"
	"errors"

	"github.com/millrace/millrace/internal/failpoint"
)

// Drain waits until everything fed so far is acknowledged, parked operations
// included.
func (e *Engine) Drain(ctx context.Context) error { return e.drain(ctx, true) }

// drain is Drain; without must, parked documents may stay parked.
func (e *Engine) drain(ctx context.Context, must bool) error {
	failpoint.Hit("drain.before")
	defer failpoint.Hit("drain.after")
	if err := e.flushChunks(ctx); err != nil {
		return e.failure(err)
	}
	replies := make(chan parkedBatch, len(e.workers))
	for _, w := range e.workers {
		if err := w.send(ctx, message{quiesce: replies}); err != nil {
			return e.failure(err)
		}
	}
	var parked parkedBatch
	for range e.workers {
		select {
		case p := <-replies:
			parked.add(p)
		case <-e.stopped:
			return e.failure(errors.New("apply workers stopped"))
		case <-ctx.Done():
			return e.failure(context.Cause(ctx))
		}
	}
	select { // whatever was parked is in hand now
	case <-e.parkCh:
	default:
	}
	carry, err := e.settle(ctx, parked, must)
	if err == nil {
		err = e.carryOn(ctx, carry)
	}
	if err == nil && len(carry.ops) == 0 {
		err = e.settleDue(ctx)
	}
	if err == nil {
		err = e.judgeSkipped(ctx)
	}
	if err != nil {
		return e.failure(err)
	}
	return nil
}

// decide drains when the window is over and there are documents that were
// parked in it, or cases of documents in dispute to be decided.
func (e *Engine) decide(ctx context.Context) error {
	if e.fed.Before(*e.window.Load()) {
		return nil
	}
	if e.carried > 0 || e.skipped.len() > 0 || e.o.Letters.AnyDue(e.Applied().At) {
		return e.drain(ctx, false)
	}
	return nil
}

// settleDue tries the documents in dispute that the target has caught up
// with. What it refuses now, it refuses.
func (e *Engine) settleDue(ctx context.Context) error {
	const some = 100
	applied := e.Applied().At
	for !applied.Before(*e.window.Load()) && e.o.Letters.AnyDue(applied) {
		due, err := e.o.Letters.Due(ctx, applied, some)
		if err != nil {
			return err
		}
		var b parkedBatch
		for _, l := range due {
			t, err := e.newTarget(ctx, l.NS)
			if err != nil {
				return err
			}
			t.source, t.uuid = l.Source, l.UUID
			b.ops = append(b.ops, &parkedOp{t: t, hash: t.hash(l.DocID), id: l.DocID})
		}
		if _, err := e.settle(ctx, b, true); err != nil {
			return err
		}
		for _, l := range due {
			e.o.Letters.Tried(l.NS, l.DocID)
		}
	}
	return nil
}

// Conclude tries all documents in dispute and judges those that the target
// still refuses. It needs no Run, and must not be called beside Feed.
func (e *Engine) Conclude(ctx context.Context) error { return e.settleDue(ctx) }
