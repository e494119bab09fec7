package shards

import (
	"context"
	"slices"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/stream"
)

// maxDeferred bounds the bytes of deferred events of one commit. In a larger one, the events of a
// document that changed its shard may come in the order of shards.
const maxDeferred = 64 << 20

// txnOrder orders the events of transactions over several shards. They have one time and are grouped by
// shard, and no log tells which shard was first. A document that changed its shard is deleted on one and
// inserted on the other; users made one update.
type txnOrder struct {
	deferred []stream.Event
}

// wrap returns an emitFunc that orders events before emit.
func (o *txnOrder) wrap(emit emitFunc) emitFunc {
	return func(ctx context.Context, b *stream.Batch) error {
		if len(o.deferred) > 0 {
			b.Events = append(o.deferred, b.Events...)
			o.deferred = nil
		}
		o.deferTail(b)
		for from := 0; from < len(b.Events); {
			end := from + 1
			// Terms are each shard's own.
			for end < len(b.Events) && b.Events[end].At.Compare(b.Events[from].At) == 0 {
				end++
			}
			if end-from > 1 {
				ordered := orderCommit(b.Events[from:end])
				n := copy(b.Events[from:end], ordered)
				b.Events = slices.Delete(b.Events, from+n, end)
				end = from + n
			}
			from = end
		}
		return emit(ctx, b)
	}
}

// deferTail defers events after the end of the batch, since more events of their position may follow.
// So a schema change is never beyond the end of its batch, where a restart resumes.
func (o *txnOrder) deferTail(b *stream.Batch) {
	from, bytes := len(b.Events), 0
	for from > 0 && b.End.Before(b.Events[from-1].At) {
		from--
		bytes += len(b.Events[from].Doc) + len(b.Events[from].Key.ID.Data)
	}
	if from == len(b.Events) || bytes > maxDeferred {
		return
	}
	o.deferred = slices.Clone(b.Events[from:])
	b.Events, b.Partial = b.Events[:from], false
}

type document struct{ ns, id string }

// orderCommit orders the events of one time so that each finds the document that it changes. Documents
// that several shards changed come last.
func orderCommit(events []stream.Event) []stream.Event {
	if !ofSeveralShards(events) {
		return events
	}
	parts := map[document][][]stream.Event{} // of documents deleted on a shard, by transaction
	for _, ev := range events {
		if ev.Kind == stream.Delete && ev.Txn != nil {
			parts[documentOf(&ev)] = nil
		}
	}
	if len(parts) == 0 {
		return events
	}
	var order []document
	for _, ev := range events {
		of := documentOf(&ev)
		all, deleted := parts[of]
		if !deleted || ev.Txn == nil {
			continue
		}
		if len(all) == 0 {
			order = append(order, of)
		}
		i := slices.IndexFunc(all, func(part []stream.Event) bool { return part[0].Txn == ev.Txn })
		if i < 0 {
			i, all = len(all), append(all, nil)
		}
		all[i] = append(all[i], ev)
		parts[of] = all
	}
	out := make([]stream.Event, 0, len(events))
	for _, ev := range events {
		if ev.Txn == nil || len(parts[documentOf(&ev)]) < 2 {
			out = append(out, ev)
		}
	}
	for _, of := range order {
		if all := parts[of]; len(all) > 1 {
			out = append(out, joinMoves(all)...)
		}
	}
	return out
}

// joinMoves joins the parts of several shards for one document. It drops a part that inserts and
// deletes the document. Of the others, all but the last shard's end with a delete.
func joinMoves(parts [][]stream.Event) (out []stream.Event) {
	parts = slices.DeleteFunc(parts, func(p []stream.Event) bool {
		return p[0].Kind == stream.Insert && p[len(p)-1].Kind == stream.Delete
	})
	slices.SortStableFunc(parts, func(a, b []stream.Event) int { return remains(a) - remains(b) })
	for _, ev := range slices.Concat(parts...) {
		n := len(out) - 1
		if n >= 0 && out[n].Kind == stream.Delete && ev.Kind == stream.Insert && out[n].Txn != ev.Txn {
			ev.Kind, ev.Rekeyed, ev.Key.Shard = stream.Put, true, out[n].Key.Shard
			out = out[:n]
		}
		out = append(out, ev)
	}
	return out
}

func remains(part []stream.Event) int {
	if part[len(part)-1].Kind == stream.Delete {
		return 0
	}
	return 1
}

func ofSeveralShards(events []stream.Event) bool {
	var first *stream.Transaction
	for i := range events {
		switch txn := events[i].Txn; {
		case txn == nil:
		case first == nil:
			first = txn
		case first != txn:
			return true
		}
	}
	return false
}

func documentOf(ev *stream.Event) document {
	return document{ev.NS, string(bsonraw.AppendID(nil, ev.Key.ID))}
}
