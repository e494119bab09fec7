package mongosink

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/wire"
)

// fetchDocs and fetchBytes bound what is asked for at once, by the number of
// documents and the size of their _ids.
const (
	fetchDocs  = 256
	fetchBytes = 1 << 20
)

// rewrite applies updates that no classic statement expresses exactly, or
// that did not fit: the document is read, the update computed here, and the
// result written back, as many at once as the server puts into one reply. Only
// this partition writes the document.
func (w *worker) rewrite(ctx context.Context, t *target, ops []*op) error {
	return w.read(ctx, t, ops, bson.D{}, func(some []*op, docs []bson.Raw) error { return w.rewriteSome(ctx, t, some, docs) })
}

func (w *worker) rewriteSome(ctx context.Context, t *target, ops []*op, docs []bson.Raw) error {
	var puts []*op
	for i, o := range ops {
		kind := opReplace
		if docs[i] == nil && o.upsert {
			docs[i], kind = o.made(), opPut
		}
		if docs[i] == nil {
			if !w.excused(t, o) {
				if err := w.lost(t, o, deadletter.CauseMissing, textMissing); err != nil {
					return err
				}
				continue
			}
			w.skip(t, o)
			continue
		}
		doc, err := w.computed(t, o, docs[i])
		if err != nil {
			return err
		}
		if doc == nil {
			continue // parked
		}
		puts = append(puts, &op{kind: kind, id: o.id, hash: o.hash, doc: doc, at: o.at, since: o.since, window: o.window})
	}
	w.e.n.rewritten.Add(int64(len(puts)))
	return w.updates(ctx, t, puts)
}

// computed is the document after the update. A path that does not fit is
// left alone inside the window, for a later event sets it, and a conflict
// outside; no document means that it is parked.
func (w *worker) computed(t *target, o *op, doc bson.Raw) ([]byte, error) {
	out, skipped, err := delta.Apply(nil, doc, o.upd)
	if err != nil {
		return nil, opError("update", t.ns, o.id, o.at, err)
	}
	if skipped > 0 {
		if !o.window {
			return nil, w.lost(t, o, deadletter.CauseShape, textShape)
		}
		w.e.n.skipped.Add(int64(skipped))
	}
	return out, nil
}

// onlyIDs is a projection that leaves nothing else.
func onlyIDs() bson.D { return bson.D{{Key: "_id", Value: 1}} }

// fetch reads the operations' documents from the primary; a missing one is nil.
func (w *worker) fetch(ctx context.Context, t *target, ops []*op) ([]bson.Raw, error) {
	return w.fetchFields(ctx, t, ops, bson.D{})
}

// fetchFields is fetch with a projection.
func (w *worker) fetchFields(ctx context.Context, t *target, ops []*op, fields bson.D) ([]bson.Raw, error) {
	at := make(map[*op]int, len(ops))
	for i, o := range ops {
		at[o] = i
	}
	out := make([]bson.Raw, len(ops))
	err := w.read(ctx, t, ops, fields, func(some []*op, docs []bson.Raw) error {
		for i, o := range some {
			out[at[o]] = docs[i]
		}
		return nil
	})
	return out, err
}

// read hands the operations' documents to each, some at a time: those that the
// primary has in the order of its replies, then those that it has not, which
// are nil. each may write them.
func (w *worker) read(ctx context.Context, t *target, ops []*op, fields bson.D, each func(some []*op, docs []bson.Raw) error) error {
	for len(ops) > 0 {
		n, size, left := 0, 0, map[string]*op{}
		for _, o := range ops[:min(fetchDocs, len(ops))] {
			key := delta.KeyOf(o.id)
			if n > 0 && (size+len(o.id.Data) > fetchBytes || left[key] != nil) {
				break
			}
			size += len(o.id.Data)
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
func (w *worker) readGroup(ctx context.Context, t *target, ops []*op, left map[string]*op, fields bson.D, each func([]*op, []bson.Raw) error) error {
	ids := bson.A{}
	for _, o := range ops {
		ids = append(ids, bsonraw.RawValue(o.id))
	}
	cur, err := w.open(ctx, t, bson.D{
		{Key: "find", Value: t.coll},
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
			return fmt.Errorf("read documents of %s: %w", t.ns, err)
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
func among(left map[string]*op, b *wire.Batch, t *target) (some []*op, docs []bson.Raw, err error) {
	err = b.Each(func(doc []byte) error {
		id, ok := bsonraw.Field(doc, "_id")
		if !ok {
			return fmt.Errorf("a document of %s is malformed or has no _id", t.ns)
		}
		key := delta.KeyOf(id.ID())
		if o := left[key]; o != nil {
			delete(left, key)
			some, docs = append(some, o), append(docs, doc)
		}
		return nil
	})
	return some, docs, err
}

func (w *worker) open(ctx context.Context, t *target, find bson.D) (*wire.Cursor, error) {
	conn, err := w.connection(ctx)
	if err != nil {
		return nil, err
	}
	pass, err := w.e.o.Gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	cur, err := conn.OpenCursor(ctx, t.db, find, wire.CursorOptions{})
	w.e.o.Gate.Leave(pass, 0)
	if err != nil {
		return nil, fmt.Errorf("read documents of %s: %w", t.ns, err)
	}
	return cur, nil
}

// next asks a cursor for one more batch; the first came with the opening reply.
func (w *worker) next(ctx context.Context, cur *wire.Cursor, first bool) (*wire.Batch, error) {
	if first {
		return cur.Next(ctx)
	}
	pass, err := w.e.o.Gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	b, err := cur.Next(ctx)
	w.e.o.Gate.Leave(pass, 0)
	return b, err
}
