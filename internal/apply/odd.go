package apply

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/delta"
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
		p := &parkedOp{t: t, hash: o.hash, id: o.id, steps: []op{*o}}
		if err := w.settleTogether(ctx, []settled{{p, o.doc}}); err != nil {
			return nil, err
		}
	}
	return plain, nil
}

// hasDollarField reports a top-level field whose name begins with a dollar.
func hasDollarField(doc []byte) bool {
	for rest := doc[4:]; len(rest) > 1; {
		elem, next, ok := bsoncore.ReadElement(rest)
		if !ok {
			return false
		}
		if k := elem.KeyBytes(); len(k) > 0 && k[0] == '$' {
			return true
		}
		rest = next
	}
	return false
}

// repair puts zero timestamps back into the documents just written. After a
// crash in between both writes happen again.
func (w *worker) repair(ctx context.Context, t *target, ops []*op) error {
	var repairs []*op
	for _, o := range ops {
		if o.kind == opUpdate {
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
		repairs = append(repairs, r)
	}
	if len(repairs) == 0 {
		return nil
	}
	_, err := w.sendOps(ctx, "update", t, repairs, false, appendUpdate)
	return err
}
