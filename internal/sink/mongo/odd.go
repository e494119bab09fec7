package mongosink

import (
	"context"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/state/deadletter"
)

// Two sorts of top-level fields are not stored as a plain write has them
// (observed on 6.0.5): a replacement takes a name with a dollar for an
// operator, and insert and replacement put the present time in a zero
// timestamp. A pipeline would store both, but ends a 6.0.5 server when the
// document has a field name twice.

// dollars writes whole documents with such names by delete and insert in one
// transaction, and returns the other operations.
func (w *worker) dollars(ctx context.Context, t *target, ops []*op) ([]*op, error) {
	plain := ops
	for i, o := range ops {
		odd := o.kind != opUpdate && hasDollarField(o.doc)
		switch {
		case odd && len(plain) == len(ops): // the first one: from here on a copy
			plain = append([]*op(nil), ops[:i]...)
		case !odd && len(plain) < len(ops):
			plain = append(plain, o)
		}
		if !odd {
			continue
		}
		s := settled{parkedOp: &parkedOp{t: t, hash: o.hash, id: o.id, steps: []op{*o}}, doc: o.doc, at: o.at}
		_, refused, err := w.settleTogether(ctx, []settled{s})
		switch {
		case err != nil:
			return nil, err
		case refused != nil && refused.cause == deadletter.CauseKey: // perhaps a mere reordering
			w.parked.park(t, o)
		case refused != nil && w.e.lenient():
			w.parked.parkRefused(t, o, refused)
		case refused != nil:
			return nil, w.stopError(ctx, s, refused)
		}
	}
	return plain, nil
}

// hasDollarField reports a top-level field whose name begins with a dollar.
func hasDollarField(doc []byte) bool {
	s, _ := docwrite.Inspect(doc)
	return s.Dollar
}

// repair puts zero timestamps back into the documents just written. After a
// crash in between both writes happen again. It returns those for which that
// meets a duplicate key: the key with the present time was free.
func (w *worker) repair(ctx context.Context, t *target, ops []*op) (duplicate []*op, err error) {
	var repairs, written []*op
	for _, o := range ops {
		if o.kind == opUpdate || o.lasting {
			continue
		}
		_, d, ok := delta.AppendTimestampRepair(nil, o.doc)
		if !ok {
			continue
		}
		r := &op{kind: opUpdate, window: true, hash: o.hash, id: o.id, upd: d, at: o.at}
		if w.translate(r) == delta.None {
			continue
		}
		repairs, written = append(repairs, r), append(written, o)
	}
	if len(repairs) == 0 {
		return nil, nil
	}
	res, err := w.sendOps(ctx, "update", t, repairs, false, appendUpdate)
	if err != nil {
		return nil, err
	}
	for _, e := range res.Errors {
		o := written[e.Index]
		if docwrite.Of(e) != docwrite.DuplicateKey {
			return nil, opError("restore a zero timestamp", t.ns, o.id, o.at, e)
		}
		duplicate = append(duplicate, o)
	}
	return duplicate, nil
}

// repairOrPark is repair that parks duplicates.
func (w *worker) repairOrPark(ctx context.Context, t *target, ops []*op) error {
	duplicate, err := w.repair(ctx, t, ops)
	for _, o := range duplicate {
		w.parked.park(t, o)
	}
	return err
}
