package mongosink

import (
	"cmp"
	"context"
	"slices"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/sink/mongo/resolve"
	"github.com/millrace/millrace/internal/stream"
)

type item struct {
	fold.Item
	seg *segment
}

type destination struct {
	*fold.Target
	start *CappedStart // of a capped collection, nil when all its events count
}

// throttled is how many events pass at once under a limit.
const throttled = 100

// route sends a batch's events to the partitions and returns how many.
func (e *Engine) route(ctx context.Context, seg *segment, b *stream.Batch) (routed int, err error) {
	var key [64]byte
	if !b.Until.IsZero() {
		e.newer(b)
		e.sent = mongo.MaxOpTime(e.sent, b.Until)
	}
	paid := 0
	for i := range b.Events {
		if i >= paid && e.o.Limit.Limited() {
			n := e.o.Limit.Batch(min(throttled, len(b.Events)-i), int64(b.Bytes/len(b.Events)))
			if err := e.throttle(ctx, b, n); err != nil {
				return routed, err
			}
			paid = i + n
		}
		ev := &b.Events[i]
		if ev.Kind == stream.SchemaChange {
			if err := e.schema(ctx, b, i); err != nil {
				return routed, err
			}
			continue
		}
		d, err := e.destination(ctx, ev)
		if err != nil {
			return routed, err
		}
		if d == nil {
			continue
		}
		// Events of a disputed document go to its dead letter.
		if d.start != nil && d.start.passes(ev.At) && !e.o.Policy.Letters.Disputed(d.NS, ev.Key.ID) {
			e.shared.passed.Add(1)
			continue
		}
		h := d.Hash(key[:0], ev.Key.ID)
		it := item{fold.Item{Event: ev, Target: d.Target, Hash: h, Overlap: e.ahead(d.NS, ev)}, seg}
		if err := e.partitions[h%uint64(len(e.partitions))].push(ctx, &it); err != nil {
			return routed, err
		}
		e.sent = mongo.MaxOpTime(e.sent, ev.At)
		routed++
	}
	return routed, e.flushChunks(ctx)
}

// ahead reports whether the target may be ahead of an event. It is not ahead for a document that stopped
// an earlier run.
func (e *Engine) ahead(ns string, ev *stream.Event) bool {
	if e.o.Overlap.End.Before(ev.At) {
		return !ev.Until.IsZero()
	}
	if len(e.refused) == 0 {
		return true
	}
	at, refused := e.refused[resolve.Key(ns, ev.Key.ID)]
	return !refused || ev.At.Before(at)
}

// throttle waits until n events may pass. Events routed before do not wait.
func (e *Engine) throttle(ctx context.Context, b *stream.Batch, n int) error {
	if err := e.flushChunks(ctx); err != nil {
		return err
	}
	return e.o.Limit.Wait(ctx, int64(n), int64(b.Bytes)*int64(n)/int64(len(b.Events)))
}

func (e *Engine) flushChunks(ctx context.Context) error {
	for _, p := range e.partitions {
		if err := p.sendChunk(ctx); err != nil {
			return err
		}
	}
	return nil
}

// schema drains, applies a schema change and forgets cached destinations.
func (e *Engine) schema(ctx context.Context, b *stream.Batch, i int) error {
	failpoint.Hit("barrier.before")
	if err := e.Drain(ctx); err != nil {
		return err
	}
	ev := &b.Events[i]
	before := cmp.Or(lastBefore(b.Events[:i], ev.At), mongo.MaxOpTime(b.Start, e.parts.upTo(ev.At)))
	last := !b.End.Before(ev.At) && (i+1 == len(b.Events) || ev.At.Before(b.Events[i+1].At))
	l := e.shared.ledger
	l.advance(before)
	if err := e.o.Schema(ctx, ev, before, last); err != nil {
		return err
	}
	if last {
		l.pass(ev)
	}
	e.shared.schema.Add(1)
	clear(e.destinations)
	e.last.route = nil
	return nil
}

// parts tracks positions across partial batches, whose End stays at that of the batch before.
type parts struct {
	last, before mongo.OpTime // of the last event, and of the last one at an earlier position
}

func (p *parts) add(b *stream.Batch) {
	if !b.Partial {
		*p = parts{}
		return
	}
	if len(b.Events) == 0 {
		return
	}
	last := b.Events[len(b.Events)-1].At
	*p = parts{last: last, before: cmp.Or(lastBefore(b.Events, last), p.upTo(last))}
}

// lastBefore returns the position of the last event before at, zero for none.
func lastBefore(events []stream.Event, at mongo.OpTime) mongo.OpTime {
	for i := len(events) - 1; i >= 0; i-- {
		if events[i].At.Before(at) {
			return events[i].At
		}
	}
	return mongo.OpTime{}
}

// upTo returns the last position of an event before a position.
func (p *parts) upTo(at mongo.OpTime) mongo.OpTime {
	if p.last.Before(at) {
		return p.last
	}
	return p.before
}

func (e *Engine) destination(ctx context.Context, ev *stream.Event) (*destination, error) {
	r := ev.Route
	if r == nil || r.Target == "" {
		return nil, nil
	}
	if r == e.last.route { // the events of a collection come in runs
		return e.last.destination, nil
	}
	d, known := e.destinations[r.Source]
	if !known {
		var err error
		if d, err = e.describe(ctx, ev); err != nil {
			return nil, err
		}
		e.destinations[r.Source] = d
	}
	e.last.route, e.last.destination = r, d
	return d, nil
}

func (e *Engine) describe(ctx context.Context, ev *stream.Event) (*destination, error) {
	r := ev.Route
	if e.o.Targets.Absent(r.Source) {
		return nil, nil
	}
	t, err := e.target(ctx, r.Target)
	if err != nil {
		return nil, err
	}
	t.Origin, t.Stale, t.Partial = ev.Origin(), r.Stale, r.Partial(e.o.LeavesOut)
	if r.KeepsExpired {
		if t.Expiry, t.Left, err = e.o.Targets.Expiry(ctx, r); err != nil {
			return nil, err
		}
	}
	return &destination{Target: t, start: e.capped[r.Target]}, nil
}

// barrier describes the present, when everything fed is drained.
func (e *Engine) barrier(must bool) resolve.Barrier {
	o, applied := &e.o.Overlap, e.Applied().At
	// Within a batch a schema change advances the position.
	return resolve.Barrier{Fed: mongo.MaxOpTime(e.fed, applied), Applied: applied,
		Overlap: mongo.MaxOpTime(o.End, e.until), RereadUntil: o.RereadUntil, Must: must}
}

// over reports that everything in the overlap was fed.
func (e *Engine) over() bool { return !e.fed.Before(mongo.MaxOpTime(e.o.Overlap.End, e.until)) }

// newer extends the overlap to b.Until, as documents of the batch may contain later changes. They may
// also contain changes within the batch, if a schema change needs a decision before its end.
func (e *Engine) newer(b *stream.Batch) {
	e.until = mongo.MaxOpTime(e.until, b.Until)
	judged := func(ev stream.Event) bool { return ev.Kind == stream.SchemaChange }
	if b.End.Before(b.Until) || !b.Until.IsZero() && slices.ContainsFunc(b.Events, judged) {
		e.o.Overlap.End = mongo.MaxOpTime(e.o.Overlap.End, b.Until)
	}
}
