package bench

import (
	"context"
	"fmt"
	"iter"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"golang.org/x/sync/errgroup"
)

// plan is what each connection has to do, window after window.
type plan [][][]change

// newPlan spreads the changes over connections by document, so that those of
// one document stay in order.
func newPlan(windows iter.Seq[[]change], connections int) plan {
	p := make(plan, connections)
	for changes := range windows {
		parts := make([][]change, connections)
		for _, c := range changes {
			i := int(mix(uint64(c.key)) % uint64(connections))
			parts[i] = append(parts[i], c)
		}
		for i, part := range parts {
			p[i] = append(p[i], part)
		}
	}
	return p
}

// statements is the number of operations in it.
func (p plan) statements() (n int) {
	for _, windows := range p {
		for _, changes := range windows {
			n += len(changes)
		}
	}
	return n
}

// apply writes a plan: for each window inserts, updates and deletes, each
// collection's in commands of up to batchBytes. That keeps the order of a
// document's operations, if there are several in a window. A connection does one
// window after the other.
func (w workload) apply(ctx context.Context, to *side, p plan, s settings) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, windows := range p {
		g.Go(func() error {
			wr, err := newWriter(ctx, to, s.concern())
			if err != nil {
				return err
			}
			defer wr.conn.Release()
			for _, changes := range windows {
				if err := w.window(ctx, wr, changes, s.batchBytes); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

func (w workload) window(ctx context.Context, wr *writer, changes []change, batchBytes int) error {
	for _, kind := range []opKind{opInsert, opUpdate, opDelete} {
		for coll := range w.collections {
			var same []change
			for _, c := range changes {
				if c.kind == kind && int(c.key)%w.collections == coll {
					same = append(same, c)
				}
			}
			if err := w.send(ctx, wr, kind, coll, same, batchBytes); err != nil {
				return err
			}
		}
	}
	return nil
}

// send writes changes of one kind to one collection.
func (w workload) send(ctx context.Context, wr *writer, kind opKind, coll int, changes []change, batchBytes int) error {
	for len(changes) > 0 {
		n, err := w.command(wr, kind, coll, changes, batchBytes)
		if err != nil {
			return err
		}
		res, err := wr.exchange(ctx, fmt.Sprintf("apply to %s", collection(coll)))
		if err != nil {
			return err
		}
		if res.N != int64(n) {
			return fmt.Errorf("apply to %s: the server did %d of %d", collection(coll), res.N, n)
		}
		changes = changes[n:]
	}
	return nil
}

// command makes one command of as many of the changes as fit.
func (w workload) command(wr *writer, kind opKind, coll int, changes []change, batchBytes int) (n int, err error) {
	const most = 100_000 // operations a command, by the server
	name := collection(coll)
	if kind == opDelete {
		if err := wr.begin("delete", name, false, "deletes"); err != nil {
			return 0, err
		}
		n = min(len(changes), max(batchBytes/30, 1), most)
		wr.msg.BuildDocument(func(dst []byte) []byte { return w.appendDeletes(dst, changes[:n]) })
		return n, nil
	}
	if kind == opInsert {
		err = wr.begin("insert", name, false, "documents")
	} else {
		err = wr.begin("update", name, true, "updates")
	}
	if err != nil {
		return 0, err
	}
	for n < len(changes) && n < most && (n == 0 || wr.msg.Len() < batchBytes) {
		c := &changes[n]
		wr.msg.BuildDocument(func(dst []byte) []byte {
			if kind == opInsert {
				return w.shape.appendDoc(dst, c.key, c.version[:])
			}
			return w.appendUpdate(dst, c)
		})
		n++
	}
	return n, nil
}

// appendDeletes makes one delete statement of many documents, which costs the
// server half of as many statements.
func (w workload) appendDeletes(dst []byte, changes []change) []byte {
	i, dst := bsoncore.AppendDocumentStart(dst)
	q, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	id, dst := bsoncore.AppendDocumentElementStart(dst, "_id")
	in, dst := bsoncore.AppendArrayElementStart(dst, "$in")
	for n, c := range changes {
		dst = w.appendID(dst, itoa(n), c.key)
	}
	dst, _ = bsoncore.AppendArrayEnd(dst, in)
	dst, _ = bsoncore.AppendDocumentEnd(dst, id)
	dst, _ = bsoncore.AppendDocumentEnd(dst, q)
	dst = bsoncore.AppendInt32Element(dst, "limit", 0)
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}

// appendID writes a document's _id under another name.
func (w workload) appendID(dst []byte, name string, key uint32) []byte {
	var buf [64]byte
	el := bsoncore.Element(w.shape.id(w.shape, buf[:0], key))
	return bsoncore.AppendValueElement(dst, name, el.Value())
}

func (w workload) appendUpdate(dst []byte, c *change) []byte {
	i, dst := bsoncore.AppendDocumentStart(dst)
	q, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	dst = w.shape.id(w.shape, dst, c.key)
	dst, _ = bsoncore.AppendDocumentEnd(dst, q)
	u, dst := bsoncore.AppendDocumentElementStart(dst, "u")
	set, dst := bsoncore.AppendDocumentElementStart(dst, "$set")
	for f := range w.shape.fields {
		if c.set&(1<<f) != 0 {
			dst = w.shape.field(w.shape, dst, c.key, f, c.version[f])
		}
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, set)
	dst, _ = bsoncore.AppendDocumentEnd(dst, u)
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}

// unfolded makes a plan that does each operation by itself, those of one
// document in order.
func (w workload) unfolded(connections int) plan {
	const together = 1000 // operations of a connection
	p := make(plan, connections)
	parts := make([][]change, connections)
	for o := range w.ops() {
		i := int(mix(uint64(o.key)) % uint64(connections))
		c := change{kind: o.kind, key: o.key}
		c.take(o)
		if parts[i] = append(parts[i], c); len(parts[i]) == together {
			p[i], parts[i] = append(p[i], parts[i]), nil
		}
	}
	for i, part := range parts {
		p[i] = append(p[i], part)
	}
	return p
}
