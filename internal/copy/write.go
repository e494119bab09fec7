package copy

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/wire"
)

// chunk is a part of a slice on its way to the target.
type chunk struct {
	s    *slice
	n    int // its place in the slice
	part *scan.Part
	held int64         // bytes of the budget
	done chan struct{} // serial slices: closed when written
}

// each calls fn with the chunk's documents, which alias the reply.
func (ch *chunk) each(fn func(i int, doc []byte) error) error {
	i := -1
	return ch.part.Each(func(doc []byte) error {
		i++
		return fn(i, doc)
	})
}

// writer inserts chunks over one connection to the target's primary.
type writer struct {
	run  *run
	e    *Engine
	conn *wire.Conn
	msg  wire.Message
	// reserve is one more than there have to be.
	reserve bool
}

// keepMessage is the largest message buffer that a writer keeps.
const keepMessage = 8 << 20

func newWriter(r *run) *writer { return &writer{run: r, e: r.e} }

func (w *writer) work(ctx context.Context) error {
	conn, err := w.e.dst.Pool.Checkout(ctx, wire.Primary())
	if err != nil && w.reserve && ctx.Err() == nil {
		w.run.withoutConnection("target", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("copy: connect to the target: %w", err)
	}
	defer conn.Release()
	w.conn = conn
	for {
		select {
		case ch, ok := <-w.run.chunks:
			if !ok {
				return nil
			}
			if err := w.write(ctx, ch); err != nil {
				return fmt.Errorf("copy %s to %s: %w", ch.s.c.Source.NS, ch.s.c.Target, err)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// write puts a chunk on the target and acknowledges it.
func (w *writer) write(ctx context.Context, ch *chunk) error {
	if err := failpoint.Err("copy.before"); err != nil {
		return err
	}
	var err error
	if ch.done != nil {
		err = w.insertInOrder(ctx, ch)
	} else {
		err = w.insert(ctx, ch)
	}
	if err != nil {
		return err
	}
	failpoint.Hit("copy.after")
	ch.s.ack(ch.n, progress{position: ch.part.Position, docs: int64(ch.part.Docs), bytes: ch.part.Bytes})
	w.run.budget.adjust(-ch.held)
	if ch.done != nil {
		close(ch.done)
	}
	return nil
}

// insert sends the chunk as one unordered insert. Documents that an insert
// would change are written exactly.
func (w *writer) insert(ctx context.Context, ch *chunk) error {
	aside, skipped, err := w.frame(ch)
	if err != nil {
		return err
	}
	if w.msg.Docs() > 0 {
		if err := w.sendInsert(ctx, ch, skipped); err != nil {
			return err
		}
	}
	return w.insertExact(ctx, ch.s.c, aside)
}

// frame writes the chunk's documents into the message, but for those that an
// insert would change: it returns them and their indexes in the chunk.
func (w *writer) frame(ch *chunk) (aside [][]byte, skipped []int, err error) {
	w.begin(ch.s.c)
	err = ch.each(func(i int, doc []byte) error {
		special, err := docwrite.Inspect(doc)
		if err != nil {
			return fmt.Errorf("_id %s: %w", idText(doc), err)
		}
		if special.ZeroTimestamp {
			aside, skipped = append(aside, doc), append(skipped, i)
			return nil
		}
		w.msg.AppendDocument(doc)
		return nil
	})
	return aside, skipped, err
}

func (w *writer) sendInsert(ctx context.Context, ch *chunk, skipped []int) error {
	sent := int64(w.msg.Docs())
	res, err := w.roundTrip(ctx)
	if err != nil {
		return err
	}
	if res.N+int64(len(res.Errors)) != sent {
		return fmt.Errorf("insert of %d documents was answered with %d inserted and %d errors", sent, res.N, len(res.Errors))
	}
	if len(res.Errors) == 0 {
		return nil
	}
	return w.resolve(ctx, ch, res.Errors, skipped)
}

func (w *writer) begin(c *collection) {
	if w.msg.Len() > keepMessage {
		w.msg = wire.Message{}
	}
	w.msg.Reset(c.targetDB, c.insert, false)
	w.msg.StartSequence("documents")
}

// insertInOrder writes a serial chunk: runs of documents with ordered inserts,
// those that an insert would change one by one in between.
func (w *writer) insertInOrder(ctx context.Context, ch *chunk) error {
	c := ch.s.c
	var run [][]byte
	flush := func() error {
		err := w.insertRun(ctx, c, run)
		run = run[:0]
		return err
	}
	err := ch.each(func(_ int, doc []byte) error {
		special, err := docwrite.Inspect(doc)
		if err != nil || !special.ZeroTimestamp {
			run = append(run, doc)
			return err
		}
		if err := flush(); err != nil {
			return err
		}
		return w.insertExact(ctx, c, [][]byte{doc})
	})
	if err != nil {
		return err
	}
	return flush()
}

// insertRun inserts documents in order, going on behind one that the target
// refuses if that is handled.
func (w *writer) insertRun(ctx context.Context, c *collection, docs [][]byte) error {
	for len(docs) > 0 {
		w.begin(c)
		for _, doc := range docs {
			w.msg.AppendDocument(doc)
		}
		res, err := w.roundTrip(ctx)
		if err != nil {
			return err
		}
		if len(res.Errors) == 0 {
			if res.N != int64(len(docs)) {
				return fmt.Errorf("insert of %d documents was answered with %d inserted", len(docs), res.N)
			}
			return nil
		}
		e := res.Errors[0]
		if e.Index < 0 || e.Index >= len(docs) {
			return writeFailed(e, nil)
		}
		if err := w.refused(ctx, c, e, docs[e.Index]); err != nil {
			return err
		}
		docs = docs[e.Index+1:]
	}
	return nil
}

// roundTrip sends the message and reads the write result.
func (w *writer) roundTrip(ctx context.Context) (wire.WriteResult, error) {
	pass, err := w.e.opts.TargetGate.Enter(ctx)
	if err != nil {
		return wire.WriteResult{}, err
	}
	body, err := w.conn.RoundTrip(ctx, &w.msg)
	w.e.opts.TargetGate.Leave(pass, int64(w.msg.Len()))
	if err != nil {
		return wire.WriteResult{}, err
	}
	res := wire.ParseWriteResult(body)
	if err := mongo.Interrupted(res); err != nil {
		return res, err
	}
	return res, w.e.store.SameTerm(res.Term)
}

// command runs one command.
func (w *writer) command(ctx context.Context, db string, cmd bson.D) (bsoncore.Document, error) {
	pass, err := w.e.opts.TargetGate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	body, err := w.conn.Run(ctx, db, cmd)
	w.e.opts.TargetGate.Leave(pass, int64(len(body)))
	return body, err
}
