package apply

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/deadletter"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/wire"
)

// fetchDocs bounds what one round of read-modify-write holds in memory, by
// the number of documents read at once.
const fetchDocs = 256

// rewrite applies updates that no classic statement expresses exactly, or
// that did not fit: the document is read, the update computed here, and the
// result written back. Only this partition writes the document.
func (w *worker) rewrite(ctx context.Context, t *target, ops []*op) error {
	for len(ops) > 0 {
		n := min(fetchDocs, len(ops))
		if err := w.rewriteSome(ctx, t, ops[:n]); err != nil {
			return err
		}
		ops = ops[n:]
	}
	return nil
}

func (w *worker) rewriteSome(ctx context.Context, t *target, ops []*op) error {
	docs, err := w.fetch(ctx, t, ops)
	if err != nil {
		return err
	}
	var puts []*op
	for i, o := range ops {
		if docs[i] == nil {
			if !o.window {
				if err := w.lost(t, o, deadletter.CauseMissing, textMissing); err != nil {
					return err
				}
				continue
			}
			if err := w.skip(ctx, t, o); err != nil {
				return err
			}
			w.e.n.skipped.Add(1)
			continue
		}
		doc, err := w.computed(t, o, docs[i])
		if err != nil {
			return err
		}
		if doc == nil {
			continue // parked
		}
		puts = append(puts, &op{kind: opReplace, id: o.id, hash: o.hash, doc: doc, at: o.at, window: o.window})
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

// fetch reads the operations' documents from the primary; a missing one is nil.
func (w *worker) fetch(ctx context.Context, t *target, ops []*op) ([]bson.Raw, error) {
	conn, err := w.connection(ctx)
	if err != nil {
		return nil, err
	}
	ids := bson.A{}
	where := make(map[string]int, len(ops))
	for i, o := range ops {
		ids = append(ids, bson.RawValue{Type: bson.Type(o.id.Type), Value: o.id.Data})
		where[string(delta.AppendKey(nil, o.id))] = i
	}
	out := make([]bson.Raw, len(ops))
	pass, err := w.e.o.Gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	cur, err := conn.OpenCursor(ctx, t.db, bson.D{
		{Key: "find", Value: t.coll},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}},
	}, wire.CursorOptions{})
	w.e.o.Gate.Leave(pass, 0)
	if err != nil {
		return nil, fmt.Errorf("read documents of %s: %w", t.ns, err)
	}
	b, err := cur.Next(ctx) // came with the reply
	if err != nil {
		return nil, fmt.Errorf("read documents of %s: %w", t.ns, err)
	}
	for {
		err = b.Each(func(doc []byte) error {
			id, ok := bsonraw.Field(doc, "_id")
			if !ok {
				return fmt.Errorf("a document of %s is malformed or has no _id", t.ns)
			}
			key := delta.AppendKey(nil, bsoncore.Value{Type: bsoncore.Type(id.Type), Data: id.Value})
			if i, ok := where[string(key)]; ok {
				out[i] = doc
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if b.Done {
			return out, nil
		}
		if b, err = w.next(ctx, cur); err != nil {
			return nil, fmt.Errorf("read documents of %s: %w", t.ns, err)
		}
	}
}

// next asks a cursor for one more batch.
func (w *worker) next(ctx context.Context, cur *wire.Cursor) (*wire.Batch, error) {
	pass, err := w.e.o.Gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	b, err := cur.Next(ctx)
	w.e.o.Gate.Leave(pass, 0)
	return b, err
}
