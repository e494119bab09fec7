package apply

import (
	"context"

	"github.com/millrace/millrace/internal/deadletter"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
)

// writeSerial applies the events of a capped or collated collection one after
// the other; runs of inserts share a command.
func (w *worker) writeSerial(ctx context.Context, nb *nsBatch) error {
	for i := 0; i < len(nb.ops); {
		n := 1
		if nb.ops[i].kind == opInsert {
			for i+n < len(nb.ops) && nb.ops[i+n].kind == opInsert {
				n++
			}
		}
		run := make([]*op, n)
		for j := range run {
			run[j] = &nb.ops[i+j]
		}
		var err error
		if run[0].kind == opInsert {
			err = w.insertInOrder(ctx, nb.t, run)
		} else {
			err = w.writeOne(ctx, nb.t, run[0])
		}
		if err != nil {
			return err
		}
		i += n
	}
	return nil
}

// insertInOrder inserts a run, going on behind each document that is there
// already.
func (w *worker) insertInOrder(ctx context.Context, t *target, ops []*op) error {
	for len(ops) > 0 {
		res, err := w.sendOps(ctx, "insert", t, ops, true, appendInsert)
		if err != nil {
			return err
		}
		done := len(ops)
		if len(res.Errors) > 0 {
			done = res.Errors[0].Index
		}
		if err := w.repairOrPark(ctx, t, ops[:done]); err != nil {
			return err
		}
		if len(res.Errors) == 0 {
			return nil
		}
		e := res.Errors[0]
		o := ops[e.Index]
		switch {
		case e.OnIDIndex() && o.window && t.capped:
			// It is there, in its place; what follows brings it up to date.
			w.e.n.skipped.Add(1)
			if err := w.repairOrPark(ctx, t, ops[e.Index:e.Index+1]); err != nil {
				return err
			}
		case e.OnIDIndex() && (o.window || w.e.o.Overwrite):
			if err := w.replaceCollated(ctx, t, o); err != nil {
				return err
			}
		case e.OnIDIndex():
			if err := w.lost(t, o, deadletter.CauseID, textTaken); err != nil {
				return err
			}
		case e.Code == mongo.CodeDuplicateKey && w.e.o.Letters != nil:
			w.parkDuplicate(t, o, e) // to be judged at the barrier
		case w.parkRefusal(t, o, e):
		default:
			return conflict("insert", t.ns, o.id, o.at, serverError(e).Error())
		}
		ops = ops[e.Index+1:]
	}
	return nil
}

// replaceCollated replaces a document whose _id is equal under the collation
// but may differ in bytes, which no update can change.
func (w *worker) replaceCollated(ctx context.Context, t *target, o *op) error {
	res, err := w.sendOps(ctx, "delete", t, []*op{o}, true, appendDelete)
	if err != nil {
		return err
	}
	for _, e := range res.Errors {
		return opError("delete", t.ns, o.id, o.at, serverError(e))
	}
	res, err = w.sendOps(ctx, "insert", t, []*op{o}, true, appendInsert)
	if err != nil {
		return err
	}
	for _, e := range res.Errors {
		return opError("insert", t.ns, o.id, o.at, serverError(e))
	}
	return w.repairOrPark(ctx, t, []*op{o})
}

func (w *worker) writeOne(ctx context.Context, t *target, o *op) error {
	if o.kind == opDelete {
		return w.deletes(ctx, t, []*op{o})
	}
	if o.kind == opUpdate {
		w.buf = w.buf[:0]
		switch w.translate(o) {
		case delta.None:
			return w.rewrite(ctx, t, []*op{o})
		case delta.Guarded:
			return w.guarded(ctx, t, []*op{o})
		}
	}
	if err := w.updates(ctx, t, []*op{o}); err != nil {
		return err
	}
	if w.e.o.Letters == nil && w.parked.has(t, o) { // nothing is reordered here: no second chance
		return conflict(o.kind.String(), t.ns, o.id, o.at, "duplicate key on a unique index")
	}
	return nil
}
