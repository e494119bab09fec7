package mongosink

import (
	"context"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/sink/mongo/resolve"
	"github.com/millrace/millrace/internal/stream"
)

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
