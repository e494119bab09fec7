package mongosink

import (
	"context"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/state/deadletter"
)

// writeSerial applies the events of a capped or collated collection one after
// the other; runs of inserts share a command.
func (w *worker) writeSerial(ctx context.Context, nb *nsBatch) error {
	for i := 0; i < len(nb.ops); {
		run, n := w.inserted(nb, i), 1
		var err error
		switch o := &nb.ops[i]; {
		case len(run) > 0:
			n, err = w.insertInOrder(ctx, nb.t, run)
		case w.parked.waits(nb.t, o.id):
			w.parked.behind(nb.t, o.clone())
		default:
			err = w.writeOne(ctx, nb.t, o)
		}
		if err != nil {
			return err
		}
		i += n
	}
	return nil
}

// inserted are the inserts from the i-th operation on that wait for nothing.
func (w *worker) inserted(nb *nsBatch, i int) (run []*op) {
	for ; i < len(nb.ops); i++ {
		o := &nb.ops[i]
		if o.kind != opInsert || w.parked.waits(nb.t, o.id) {
			break
		}
		run = append(run, o)
	}
	return run
}

// insertInOrder inserts a run as far as the first document that meets
// something, which it acts upon; n is how many are done.
func (w *worker) insertInOrder(ctx context.Context, t *target, ops []*op) (n int, err error) {
	res, err := w.sendInserts(ctx, t, ops, true)
	if err != nil {
		return 0, err
	}
	if len(res.Errors) == 0 {
		return len(ops), w.repairOrPark(ctx, t, ops)
	}
	e := res.Errors[0]
	o := ops[e.Index]
	if err := w.repairOrPark(ctx, t, ops[:e.Index]); err != nil {
		return 0, err
	}
	switch {
	case e.OnIDIndex() && o.window && t.capped:
		// It is there, in its place; what follows brings it up to date.
		w.e.n.skipped.Add(1)
		err = w.repairOrPark(ctx, t, []*op{o})
	case e.OnIDIndex() && (o.window || w.e.o.Overwrite):
		err = w.replaceCollated(ctx, t, o)
	case e.OnIDIndex():
		err = w.lost(t, o, deadletter.CauseID, textTaken)
	case e.Code == mongo.CodeDuplicateKey && (o.window || w.e.o.Letters != nil):
		w.parkDuplicate(t, o, e) // to be judged at the barrier
	case w.parkRefusal(t, o, e):
	default:
		err = conflict("insert", t.ns, o, e.Error())
	}
	return e.Index + 1, err
}

// replaceCollated replaces a document whose _id is equal under the collation
// but may differ in bytes, which no update can change.
func (w *worker) replaceCollated(ctx context.Context, t *target, o *op) error {
	res, err := w.sendOps(ctx, "delete", t, []*op{o}, true, appendDelete)
	if err != nil {
		return err
	}
	for _, e := range res.Errors {
		return opError("delete", t.ns, o.id, o.at, e)
	}
	res, err = w.sendInserts(ctx, t, []*op{o}, true)
	if err != nil {
		return err
	}
	for _, e := range res.Errors {
		switch {
		case e.Code == mongo.CodeDuplicateKey && (o.window || w.e.o.Letters != nil):
			w.parkDuplicate(t, o, e) // another document is ahead
		case w.parkRefusal(t, o, e):
		default:
			return opError("insert", t.ns, o.id, o.at, e)
		}
	}
	return w.repairOrPark(ctx, t, []*op{o})
}

func (w *worker) writeOne(ctx context.Context, t *target, o *op) error {
	if o.kind == opDelete {
		return w.deletes(ctx, t, []*op{o})
	}
	if o.kind == opUpdate {
		w.buf = w.buf[:0]
		switch form := w.translate(o); {
		case form == delta.None, form == delta.Guarded && o.upsert:
			return w.rewrite(ctx, t, []*op{o})
		case form == delta.Guarded:
			return w.guarded(ctx, t, []*op{o})
		}
	}
	if err := w.updates(ctx, t, []*op{o}); err != nil {
		return err
	}
	if w.e.o.Letters == nil && !o.window && w.parked.has(t, o) { // nothing is reordered here: no second chance
		return conflict(o.kind.String(), t.ns, o, "duplicate key on a unique index")
	}
	return nil
}
