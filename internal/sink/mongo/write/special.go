package write

import (
	"context"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/wire"
)

// special writes complete documents with dollar-prefixed names in a transaction, and returns the other
// statements.
func (w *Writer) special(
	ctx context.Context, t *fold.Target, list []statement,
) (plain []statement, results []Result, err error) {
	if !slices.ContainsFunc(list, func(s statement) bool { return s.dollar() }) {
		return list, nil, nil
	}
	found, plain := split(list, (*statement).dollar)
	dollars := make([]*fold.Op, len(found))
	for i, s := range found {
		dollars[i] = s.op
	}
	results, err = w.exchange(ctx, t, dollars, t.Stale) // then their inserts may have been left out
	return plain, results, err
}

// exchange writes complete documents by Exchange, one by one, and returns the refused ones. With look it
// skips replacements of missing documents.
func (w *Writer) exchange(
	ctx context.Context, t *fold.Target, ops []*fold.Op, look bool,
) (results []Result, err error) {
	for _, o := range ops {
		if look && o.Kind == stream.Replace {
			if doc, err := w.ReadOne(ctx, t, o.ID); err != nil {
				return nil, err
			} else if doc == nil {
				continue
			}
		}
		_, refused, err := w.Exchange(ctx, []Document{{Target: t, ID: o.ID, Doc: o.Doc, At: o.At}})
		if err != nil {
			return nil, err
		}
		if refused != nil {
			r := Result{Op: o, Outcome: Refused, Reply: *refused}
			if docwrite.Of(*refused) == docwrite.DuplicateKey {
				r.Outcome = Duplicate
			}
			results = append(results, r)
		}
	}
	return results, nil
}

func (s *statement) dollar() bool { return s.op.Kind != stream.Update && Dollar(s.op.Doc) }

// Dollar reports a document that only Exchange can write.
func Dollar(doc []byte) bool {
	s, _ := docwrite.Inspect(doc)
	return s.Dollar
}

// Repair restores zero timestamps in documents on the target.
func (w *Writer) Repair(ctx context.Context, t *fold.Target, ops []*fold.Op) ([]Result, error) {
	return w.repair(ctx, t, statements(ops))
}

// ErrZeroTimestamp reports a zero timestamp that cannot be kept.
var ErrZeroTimestamp = errors.New("in a capped collection the server puts the present time in place of " +
	"a zero timestamp, and no update can name a field with a dot, an empty name or one that begins with a dollar")

// repair restores zero timestamps in documents just written, by an update or, if none can name the
// fields, by writing the document again. After a crash both are repeated. The results met a duplicate
// key, which the present time did not.
func (w *Writer) repair(ctx context.Context, t *fold.Target, list []statement) (results []Result, err error) {
	var p plan
	var written, whole []*fold.Op
	for i := range list {
		o := list[i].op
		if !list[i].suspect {
			continue
		}
		_, d, ok := delta.AppendTimestampRepair(nil, o.Doc)
		if !ok {
			continue
		}
		r := o.Become(stream.Update, nil)
		r.Delta = d
		switch s, form := p.translate(r); {
		case form != delta.None:
			p.updates, written = append(p.updates, s), append(written, o)
		case t.Capped:
			return nil, o.Fail("restore a zero timestamp", t.NS, ErrZeroTimestamp)
		default:
			whole = append(whole, o)
		}
	}
	refused, err := w.exchange(ctx, t, whole, true)
	if err != nil {
		return nil, err
	}
	res, err := w.send(ctx, "update", t, p.updates, false)
	if err != nil {
		return nil, err
	}
	for _, e := range res.Errors {
		refused = append(refused, Result{Op: written[e.Index], Reply: e})
	}
	for _, r := range refused {
		if docwrite.Of(r.Reply) != docwrite.DuplicateKey {
			return nil, r.Op.Fail("restore a zero timestamp", t.NS, r.Reply)
		}
		results = append(results, Result{Op: r.Op, Outcome: Duplicate})
	}
	return results, nil
}

// Document is what the target should have under an _id; Doc nil is nothing. At is its events' position.
type Document struct {
	Target *fold.Target
	ID     bsoncore.Value
	Doc    []byte
	At     mongo.OpTime
}

// Exchange deletes and inserts the documents in one transaction. If one is refused, at is its index and
// nothing changed.
func (w *Writer) Exchange(ctx context.Context, docs []Document) (at int, refused *wire.WriteError, err error) {
	err = w.Transaction(ctx, func(ctx context.Context) error {
		for _, d := range docs {
			if err := w.DeleteIn(ctx, d); err != nil {
				return err
			}
		}
		for i, d := range docs {
			at = i
			if d.Doc == nil {
				continue
			}
			if err := w.InsertIn(ctx, d); err != nil {
				return err
			}
		}
		return nil
	})
	var reply wire.WriteError
	if errors.As(err, &reply) {
		return at, &reply, nil
	}
	return at, nil, err
}

// Transaction runs fn in a transaction on the target and observes the terms around it. The next
// checkpoint makes it durable.
func (w *Writer) Transaction(ctx context.Context, fn func(context.Context) error) error {
	txn := w.o.Transactions
	if txn == nil {
		var err error
		if txn, err = w.o.Target.NewTransactions(); err != nil {
			return err
		}
		defer txn.End(ctx)
	}
	if err := w.observeTerm(ctx); err != nil {
		return err
	}
	if err := txn.Run(ctx, fn); err != nil {
		return err
	}
	return w.observeTerm(ctx)
}

// DeleteIn deletes a document in the transaction of ctx.
func (w *Writer) DeleteIn(ctx context.Context, d Document) error {
	return w.runIn(ctx, d, docwrite.Delete(d.Target.Coll, d.ID))
}

// InsertIn inserts a document, byte for byte, in the transaction of ctx.
func (w *Writer) InsertIn(ctx context.Context, d Document) error {
	return w.runIn(ctx, d, d.Target.Key.Insert(d.Target.Coll, d.Doc))
}

// runIn runs one write in the transaction of ctx. A refused document is a wire.WriteError.
func (w *Writer) runIn(ctx context.Context, d Document, cmd bson.D) error {
	err := docwrite.Run(ctx, w.o.Target.Client.Database(d.Target.DB), cmd)
	if err == nil {
		return nil
	}
	return (&fold.Op{ID: d.ID, At: d.At}).Fail("write in transaction", d.Target.NS, err)
}
