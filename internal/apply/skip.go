package apply

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/wire"
)

// absentBytes bounds the _ids asked for at once.
const absentBytes = 4 << 20

// skipAbsent tells which documents of updates in the window are not on the target.
func (w *worker) skipAbsent(ctx context.Context, t *target, ops []*op) error {
	if w.e.o.Skipped == nil || t.capped { // a capped one rolls off by itself
		return nil
	}
	for len(ops) > 0 {
		n, size := 0, 0
		for n < len(ops) && (n == 0 || size+len(ops[n].id.Data) <= absentBytes) {
			size += len(ops[n].id.Data)
			n++
		}
		absent, err := w.absent(ctx, t, ops[:n])
		if err != nil {
			return err
		}
		if err := w.skip(ctx, t, absent...); err != nil {
			return err
		}
		ops = ops[n:]
	}
	return nil
}

// skip remembers documents that are not on the target.
func (w *worker) skip(ctx context.Context, t *target, ops ...*op) error {
	if w.e.o.Skipped == nil || t.capped || len(ops) == 0 {
		return nil
	}
	ids := make([]bsoncore.Value, len(ops))
	for i, o := range ops {
		ids[i] = o.id
	}
	if err := w.e.o.Skipped(ctx, t.origin(), ids); err != nil {
		return fmt.Errorf("remember documents of %s that are not on the target: %w", t.ns, err)
	}
	return nil
}

// absent returns the operations whose documents the primary does not have.
func (w *worker) absent(ctx context.Context, t *target, ops []*op) ([]*op, error) {
	conn, err := w.connection(ctx)
	if err != nil {
		return nil, err
	}
	ids := make(bson.A, len(ops))
	for i, o := range ops {
		ids[i] = rawID(o.id)
	}
	cur, err := conn.OpenCursor(ctx, t.db, bson.D{{Key: "find", Value: t.coll},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}}, {Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}}}, wire.CursorOptions{})
	there := map[string]bool{}
	for done := false; err == nil && !done; {
		var b *wire.Batch
		if b, err = cur.Next(ctx); err != nil {
			break
		}
		done = b.Done
		err = b.Each(func(doc []byte) error {
			there[string(delta.AppendKey(nil, bsoncore.Document(doc).Lookup("_id")))] = true
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("look for documents of %s: %w", t.ns, err)
	}
	var out []*op
	for _, o := range ops {
		if !there[string(delta.AppendKey(nil, o.id))] && !w.parked.has(t, o) {
			out = append(out, o)
		}
	}
	return out, nil
}
