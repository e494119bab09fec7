package write

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/wire"
)

// readDocs and readBytes bound one read, in documents and bytes of _ids.
const (
	readDocs  = 256
	readBytes = 1 << 20
)

// codeTooLarge is the server's code for an update that makes a document larger than 16 MB.
const codeTooLarge = 17419

// rewrite applies updates that no classic statement expresses exactly, or that did not fit: it reads the
// documents, a reply at a time, and writes the results. Nobody else may write them meanwhile.
func (w *Writer) rewrite(ctx context.Context, t *fold.Target, list []statement) (results []Result, err error) {
	err = w.Read(ctx, t, ids(list), bson.D{}, func(some []int, docs []bson.Raw) error {
		var puts []*fold.Op
		for i, doc := range docs {
			o := list[some[i]].op
			put, why, err := w.rewritten(t, o, doc)
			switch {
			case errors.Is(err, delta.ErrTooLarge) && o.Overlap: // it has at another place what the source set later
				reply := wire.WriteError{Code: codeTooLarge, Message: err.Error()}
				results = append(results, Result{Op: o, Outcome: Refused, Reply: reply})
			case err != nil:
				return err
			case put == nil:
				results = append(results, Result{Op: o, Outcome: why})
			default:
				puts = append(puts, put)
			}
		}
		w.Stats.Rewritten.Add(int64(len(puts)))
		more, err := w.Put(ctx, t, puts)
		results = append(results, more...)
		return err
	})
	return results, err
}

func ids(list []statement) []bsonraw.ID {
	out := make([]bsonraw.ID, len(list))
	for i, s := range list {
		out[i] = s.op.ID
	}
	return out
}

// rewritten returns the updated document. It skips paths that do not fit in the overlap, where a later
// event sets them, and where operations are left out.
func (w *Writer) rewritten(t *fold.Target, o *fold.Op, doc bson.Raw) (*fold.Op, Outcome, error) {
	kind := stream.Replace
	if doc == nil && o.Upsert {
		doc, kind = o.Made(), stream.Put
	}
	if doc == nil {
		return nil, Missing, nil
	}
	out, skipped, err := delta.Apply(nil, doc, o.Delta)
	switch {
	case err != nil:
		return nil, 0, o.Fail("update", t.NS, err)
	case skipped > 0 && !o.Overlap && !t.Stale:
		return nil, Misfit, nil
	}
	w.Stats.Misfits.Add(int64(skipped))
	put := o.Become(kind, out)
	if put.Where == nil && !t.Key.IsZero() && !o.Overlap { // in which it may be at two places
		put.Where = t.Key.At(doc)
	}
	return put, 0, nil
}

// OnlyIDs returns a projection of the _id.
func OnlyIDs() bson.D { return bson.D{{Key: "_id", Value: 1}} }

// ReadOne reads a document from the primary, nil if there is none.
func (w *Writer) ReadOne(ctx context.Context, t *fold.Target, id bsonraw.ID) (doc bson.Raw, err error) {
	err = w.Read(ctx, t, []bsonraw.ID{id}, bson.D{}, func(_ []int, docs []bson.Raw) error {
		doc = docs[0]
		return nil
	})
	return doc, err
}

// Found receives documents of Read and their indexes in ids. A missing document is nil.
type Found func(places []int, docs []bson.Raw) error

// Read passes documents to each: those of the primary in the order of its replies, then the missing
// ones. each may write them.
func (w *Writer) Read(
	ctx context.Context, t *fold.Target, ids []bsonraw.ID, fields bson.D, each Found,
) error {
	for from := 0; from < len(ids); {
		size, left, in := 0, map[string]int{}, bson.A{}
		for _, id := range ids[from:min(from+readDocs, len(ids))] {
			key := delta.KeyOf(id)
			if _, twice := left[key]; twice || len(in) > 0 && size+len(id.Data) > readBytes {
				break
			}
			size += len(id.Data)
			left[key] = from + len(in)
			in = append(in, bsonraw.RawValue(id))
		}
		find := bson.D{
			{Key: "find", Value: t.Coll},
			{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: in}}}}},
			{Key: "projection", Value: fields},
			{Key: "batchSize", Value: len(in) + 1}, // else the first reply holds 101
		}
		if err := w.replies(ctx, t, find, func(b *wire.Batch) error { return found(left, b, t, each) }); err != nil {
			return err
		}
		if len(left) > 0 {
			missing := slices.Sorted(maps.Values(left))
			if err := each(missing, make([]bson.Raw, len(missing))); err != nil {
				return err
			}
		}
		from += len(in)
	}
	return nil
}

// replies passes on the replies to a find command. After the last one the connection is free. Behind
// routers the find has its own connection, as each may write.
func (w *Writer) replies(ctx context.Context, t *fold.Target, find bson.D, each func(*wire.Batch) error) error {
	if w.routed {
		find = append(find, w.concerns()...)
	}
	var conn *wire.Conn
	var cur *wire.Cursor
	end := func() {
		if cur != nil {
			cur.Close(ctx)
		}
		if w.routed && conn != nil {
			conn.Release()
		}
		conn, cur, w.busy = nil, nil, false
		w.spare()
	}
	defer end()
	for b := (&wire.Batch{}); !b.Done; {
		err := w.o.Gate.Do(ctx, func() (_ int, err error) {
			if cur == nil {
				if conn, err = w.connection(ctx); err != nil {
					return 0, err
				}
				if w.busy = !w.routed; w.routed {
					w.conn = nil
				}
				cur, err = conn.OpenCursor(ctx, t.DB, find, wire.CursorOptions{})
			}
			if err == nil { // the first batch came with the opening reply
				b, err = cur.Next(ctx)
			}
			return 0, err
		})
		if err != nil {
			return fmt.Errorf("read documents of %s: %w", t.NS, err)
		}
		if b.Done {
			end()
		}
		if err := each(b); err != nil {
			return err
		}
	}
	return nil
}

// found passes on the documents of a reply that are left to be read.
func found(left map[string]int, b *wire.Batch, t *fold.Target, each Found) error {
	var places []int
	var docs []bson.Raw
	err := b.Each(func(doc []byte) error {
		id := bsonraw.IDOf(doc)
		if id.Type == 0 {
			return fmt.Errorf("a document of %s is malformed or has no _id", t.NS)
		}
		key := delta.KeyOf(id)
		if i, ok := left[key]; ok {
			delete(left, key)
			places, docs = append(places, i), append(docs, doc)
		}
		return nil
	})
	if err != nil || len(places) == 0 {
		return err
	}
	return each(places, docs)
}

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
	if reply, ok := errors.AsType[wire.WriteError](err); ok {
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
