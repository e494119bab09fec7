package write

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/wire"
)

// readDocs and readBytes bound what is asked for at once, by the number of
// documents and the size of their _ids.
const (
	readDocs  = 256
	readBytes = 1 << 20
)

// rewrite applies updates that no classic statement expresses exactly, or
// that did not fit: the document is read, the update computed here, and the
// result written back, as many at once as the server puts into one reply. Nobody
// else may write the document meanwhile.
func (w *Writer) rewrite(ctx context.Context, t *fold.Target, list []statement) (results []Result, err error) {
	ops := make([]*fold.Op, len(list))
	for i, s := range list {
		ops[i] = s.op
	}
	err = w.read(ctx, t, ops, bson.D{}, func(some []*fold.Op, docs []bson.Raw) error {
		var puts []*fold.Op
		for i, o := range some {
			put, why, err := w.rewritten(t, o, docs[i])
			switch {
			case err != nil:
				return err
			case put == nil:
				results = append(results, Result{Op: o, Outcome: why})
			default:
				puts = append(puts, put)
			}
		}
		w.stats.Rewritten.Add(int64(len(puts)))
		more, err := w.Put(ctx, t, puts)
		results = append(results, more...)
		return err
	})
	return results, err
}

// rewritten is what makes of a document what the update makes of it. A path that
// does not fit is left alone in the overlap, for a later event sets it.
func (w *Writer) rewritten(t *fold.Target, o *fold.Op, doc bson.Raw) (*fold.Op, Outcome, error) {
	kind := fold.Replace
	if doc == nil && o.Upsert {
		doc, kind = o.Made(), fold.Put
	}
	if doc == nil {
		return nil, Missing, nil
	}
	out, skipped, err := delta.Apply(nil, doc, o.Delta)
	switch {
	case err != nil:
		return nil, 0, o.Fail("update", t.NS, err)
	case skipped > 0 && !o.Overlap:
		return nil, Misfit, nil
	}
	w.stats.Misfits.Add(int64(skipped))
	return o.Become(kind, out), 0, nil
}

// OnlyIDs is a projection that leaves nothing else.
func OnlyIDs() bson.D { return bson.D{{Key: "_id", Value: 1}} }

// ReadOne reads a document from the primary, nil when there is none.
func (w *Writer) ReadOne(ctx context.Context, t *fold.Target, id bsoncore.Value) (doc bson.Raw, err error) {
	err = w.Read(ctx, t, []bsoncore.Value{id}, bson.D{}, func(_ int, found bson.Raw) error {
		doc = found
		return nil
	}, nil)
	return doc, err
}

// Read hands the documents of the _ids to each, by their places in ids: those that
// the primary has in the order of its replies, then those that it has not, which
// are nil. After those of one reply it calls done, if that is set; each and done
// may write them.
func (w *Writer) Read(ctx context.Context, t *fold.Target, ids []bsoncore.Value, fields bson.D, each func(i int, doc bson.Raw) error, done func() error) error {
	ops, at := make([]*fold.Op, len(ids)), make(map[*fold.Op]int, len(ids))
	for i, id := range ids {
		ops[i] = &fold.Op{ID: id}
		at[ops[i]] = i
	}
	return w.read(ctx, t, ops, fields, func(some []*fold.Op, docs []bson.Raw) error {
		for i, o := range some {
			if err := each(at[o], docs[i]); err != nil {
				return err
			}
		}
		if done == nil {
			return nil
		}
		return done()
	})
}

// read hands the operations' documents to each, some at a time: those that the
// primary has in the order of its replies, then those that it has not, which
// are nil. each may write them.
func (w *Writer) read(ctx context.Context, t *fold.Target, ops []*fold.Op, fields bson.D, each func(some []*fold.Op, docs []bson.Raw) error) error {
	for len(ops) > 0 {
		n, size, left := 0, 0, map[string]*fold.Op{}
		for _, o := range ops[:min(readDocs, len(ops))] {
			key := string(delta.AppendKey(nil, o.ID))
			if n > 0 && (size+len(o.ID.Data) > readBytes || left[key] != nil) {
				break
			}
			size += len(o.ID.Data)
			left[key] = o
			n++
		}
		if err := w.readGroup(ctx, t, ops[:n], left, fields, each); err != nil {
			return err
		}
		ops = ops[n:]
	}
	return nil
}

// readGroup is read for operations on different documents, of which left are
// not read yet.
func (w *Writer) readGroup(ctx context.Context, t *fold.Target, ops []*fold.Op, left map[string]*fold.Op, fields bson.D, each func([]*fold.Op, []bson.Raw) error) error {
	ids := bson.A{}
	for _, o := range ops {
		ids = append(ids, bsonraw.RawValue(o.ID))
	}
	cur, err := w.open(ctx, t, bson.D{
		{Key: "find", Value: t.Coll},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}},
		{Key: "projection", Value: fields},
		{Key: "batchSize", Value: len(ids) + 1}, // else the first reply holds 101
	})
	if err != nil {
		return err
	}
	defer cur.Close(ctx)
	for first := true; ; first = false {
		b, err := w.next(ctx, cur, first)
		if err != nil {
			return fmt.Errorf("read documents of %s: %w", t.NS, err)
		}
		some, docs, err := among(left, b, t)
		if err == nil && len(some) > 0 {
			err = each(some, docs)
		}
		if err != nil {
			return err
		}
		if b.Done {
			break
		}
	}
	if len(left) == 0 {
		return nil
	}
	missing := slices.Collect(maps.Values(left))
	return each(missing, make([]bson.Raw, len(missing)))
}

// among takes a reply's documents from those left to be read.
func among(left map[string]*fold.Op, b *wire.Batch, t *fold.Target) (some []*fold.Op, docs []bson.Raw, err error) {
	err = b.Each(func(doc []byte) error {
		id, ok := bsonraw.Field(doc, "_id")
		if !ok {
			return fmt.Errorf("a document of %s is malformed or has no _id", t.NS)
		}
		key := string(delta.AppendKey(nil, bsoncore.Value{Type: bsoncore.Type(id.Type), Data: id.Value}))
		if o := left[key]; o != nil {
			delete(left, key)
			some, docs = append(some, o), append(docs, doc)
		}
		return nil
	})
	return some, docs, err
}

// open starts a read on the primary.
func (w *Writer) open(ctx context.Context, t *fold.Target, find bson.D) (cur *wire.Cursor, err error) {
	conn, err := w.connection(ctx)
	if err != nil {
		return nil, err
	}
	err = w.gated(ctx, func() (int, error) {
		cur, err = conn.OpenCursor(ctx, t.DB, find, wire.CursorOptions{})
		return 0, err
	})
	if err != nil {
		return nil, fmt.Errorf("read documents of %s: %w", t.NS, err)
	}
	return cur, nil
}

// next asks a cursor for one more batch; the first came with the opening reply.
func (w *Writer) next(ctx context.Context, cur *wire.Cursor, first bool) (b *wire.Batch, err error) {
	if first {
		return cur.Next(ctx)
	}
	err = w.gated(ctx, func() (int, error) {
		b, err = cur.Next(ctx)
		return 0, err
	})
	return b, err
}
