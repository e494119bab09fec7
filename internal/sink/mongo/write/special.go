package write

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/wire"
)

// Two sorts of top-level fields are not stored as a plain write has them
// (observed on 6.0.5): a replacement takes a name with a dollar for an
// operator, and insert and replacement put the present time in a zero
// timestamp. A pipeline would store both, but ends a 6.0.5 server when the
// document has a field name twice.

// special writes whole documents with such names by delete and insert in one
// transaction, and returns the other statements.
func (w *Writer) special(ctx context.Context, t *fold.Target, list []statement) (plain []statement, results []Result, err error) {
	plain = list
	for i, s := range list {
		special := s.op.Kind != fold.Update && HasDollarField(s.op.Doc)
		switch {
		case special && len(plain) == len(list): // the first one: from here on a copy
			plain = append([]statement(nil), list[:i]...)
		case !special && len(plain) < len(list):
			plain = append(plain, s)
		}
		if !special {
			continue
		}
		_, refused, err := w.Exchange(ctx, []Document{{Target: t, ID: s.op.ID, Doc: s.op.Doc, At: s.op.At}})
		switch {
		case err != nil:
			return nil, nil, err
		case refused == nil:
		case refused.Code == mongo.CodeDuplicateKey && !refused.OnIDIndex():
			results = append(results, Result{Op: s.op, Outcome: Duplicate, Reply: *refused})
		default:
			results = append(results, Result{Op: s.op, Outcome: Refused, Reply: *refused})
		}
	}
	return plain, results, nil
}

// HasDollarField reports a top-level field whose name begins with a dollar.
func HasDollarField(doc []byte) bool {
	rest, ok := bsonraw.Body(doc)
	for ok && len(rest) > 0 {
		var e bsonraw.Element
		if e, rest, ok = bsonraw.Next(rest); ok && len(e.Name) > 0 && e.Name[0] == '$' {
			return true
		}
	}
	return false
}

// Repair puts zero timestamps back into documents that are on the target.
func (w *Writer) Repair(ctx context.Context, t *fold.Target, ops []*fold.Op) ([]Result, error) {
	list := statements(ops)
	for i := range list {
		list[i].suspect = true
	}
	return w.repair(ctx, t, list)
}

// repair puts zero timestamps back into the documents just written. After a
// crash in between both writes happen again. The results are those for which that
// meets a duplicate key: the key with the present time was free.
func (w *Writer) repair(ctx context.Context, t *fold.Target, list []statement) (results []Result, err error) {
	var p plan
	var written []*fold.Op
	for i := range list {
		o := list[i].op
		if !list[i].suspect {
			continue
		}
		_, d, ok := delta.AppendTimestampRepair(nil, o.Doc)
		if !ok {
			continue
		}
		r := o.Become(fold.Update, nil)
		r.Delta = d
		if s, form := p.translate(r); form != delta.None {
			p.updates, written = append(p.updates, s), append(written, o)
		}
	}
	if len(p.updates) == 0 {
		return nil, nil
	}
	res, err := w.send(ctx, "update", t, p.updates, false)
	if err != nil {
		return nil, err
	}
	for _, e := range res.Errors {
		o := written[e.Index]
		if e.Code != mongo.CodeDuplicateKey {
			return nil, opError("restore a zero timestamp", t.NS, o.ID, o.At, serverError(e))
		}
		results = append(results, Result{Op: o, Outcome: Duplicate})
	}
	return results, nil
}

// Document is what the target is to have under an _id: Doc, or nothing. At is
// the position of its events.
type Document struct {
	Target *fold.Target
	ID     bsoncore.Value
	Doc    []byte
	At     mongo.OpTime
}

// RefusedError is a document that the target does not take, on its way out of a
// transaction.
type RefusedError struct{ Reply wire.WriteError }

// Error is the server's text.
func (e *RefusedError) Error() string { return serverError(e.Reply).Error() }

// Exchange deletes and inserts the documents in one transaction, so that a crash
// in between leaves them as they were. A refusal comes with the index of the
// refused document; nothing is changed then.
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
	var re *RefusedError
	if errors.As(err, &re) {
		return at, &re.Reply, nil
	}
	return at, nil, err
}

// Transaction runs fn in a transaction on the target and observes the terms
// around it. Like all data it becomes durable with the next checkpoint.
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
	return w.runIn(ctx, d, "delete", bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: rawID(d.ID)}}}, {Key: "limit", Value: 1}})
}

// InsertIn inserts a document, byte for byte, in the transaction of ctx.
func (w *Writer) InsertIn(ctx context.Context, d Document) error {
	if err := w.runIn(ctx, d, "insert", bson.Raw(d.Doc)); err != nil {
		return err
	}
	_, repair, ok := delta.AppendTimestampRepair(nil, d.Doc)
	if !ok {
		return nil
	}
	u, form := delta.AppendStatement(nil, repair)
	if form == delta.None {
		return nil
	}
	return w.runIn(ctx, d, "update", bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: rawID(d.ID)}}}, {Key: "u", Value: bson.Raw(u)}})
}

// runIn runs one write in the transaction of ctx; a document that the target
// does not take is a RefusedError.
func (w *Writer) runIn(ctx context.Context, d Document, name string, statement any) error {
	cmd := bson.D{{Key: name, Value: d.Target.Coll}, {Key: sequenceName(name), Value: bson.A{statement}}}
	if name != "delete" {
		cmd = append(cmd, bson.E{Key: "bypassDocumentValidation", Value: true})
	}
	err := w.o.Target.Client.Database(d.Target.DB).RunCommand(ctx, cmd).Err()
	if err == nil {
		return nil
	}
	if e := firstError(err); refuses(e) {
		return &RefusedError{e}
	}
	return opError("write in transaction", d.Target.NS, d.ID, d.At, err)
}

// firstError is the server's word in an error of the driver; one that is tried
// again is none.
func firstError(err error) wire.WriteError {
	var le driver.LabeledError
	if errors.As(err, &le) && le.HasErrorLabel("TransientTransactionError") || mongo.Classify(err) == mongo.ClassRetry {
		return wire.WriteError{}
	}
	var we driver.WriteException
	if errors.As(err, &we) && len(we.WriteErrors) > 0 {
		first := we.WriteErrors[0]
		return wire.WriteError{Code: int32(first.Code), Message: first.Message, Raw: first.Raw}
	}
	var ce driver.CommandError
	if errors.As(err, &ce) {
		return wire.WriteError{Code: ce.Code, Message: ce.Message, Raw: ce.Raw}
	}
	return wire.WriteError{}
}

// duplicateID is an error as a server words it that names the duplicate _id.
func duplicateID(e wire.WriteError) wire.WriteError {
	e.Code = mongo.CodeDuplicateKey
	key := bsoncore.NewDocumentBuilder().AppendInt32("_id", 1).Build()
	e.Raw = bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32("code", e.Code).AppendDocument("keyPattern", key).AppendString("errmsg", e.Message).Build())
	return e
}

// misfit reports server errors that say an update does not fit the document
// it met, or cannot be written as a classic update; reading the document and
// computing the result here decides which.
func misfit(e wire.WriteError) bool {
	switch e.Code {
	case 2, // BadValue: $push to something that is no array
		9,          // FailedToParse
		14,         // TypeMismatch
		28,         // PathNotViable
		40,         // ConflictingUpdateOperators
		52, 55, 56, // DollarPrefixedFieldName, InvalidDBRef, EmptyFieldName
		57: // DottedFieldName
		return true
	}
	return false
}

func opError(what, ns string, id bsoncore.Value, at mongo.OpTime, err error) error {
	return fmt.Errorf("%s in %s, _id %s, at %s: %w", what, ns, IDString(id), at, err)
}

func serverError(e wire.WriteError) error { return fmt.Errorf("%s (code %d)", e.Message, e.Code) }

// IDString shows an _id as extended JSON, cut to a readable length.
func IDString(id bsoncore.Value) string {
	s := rawID(id).String()
	if len(s) > 200 {
		s = s[:200] + "…"
	}
	return s
}

func rawID(id bsoncore.Value) bson.RawValue {
	return bson.RawValue{Type: bson.Type(id.Type), Value: id.Data}
}
