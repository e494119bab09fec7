package copy

import (
	"context"
	"fmt"

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

// writer inserts chunks over one connection to the target's primary.
type writer struct {
	scan.Reader // runs commands
	*run
	msg wire.Message
	// admitted are the connections that Options.Admit has let pass, by router. They are held,
	// for what the pool gives may be others.
	admitted map[string]*wire.Conn
}

// keepMessage is the largest message buffer that a writer keeps.
const keepMessage = 8 << 20

// write writes chunks over one connection until none will come, or the worker does not
// stay.
func (r *run) write(ctx context.Context, as worker) (more bool, err error) {
	err = r.connected(ctx, r.e.dst, wire.Primary(), as.reserve, func(conn *wire.Conn) error {
		w := writer{run: r, Reader: scan.Reader{Conn: conn, Gate: r.e.opts.TargetGate}, admitted: map[string]*wire.Conn{}}
		defer w.release()
		if err := r.awaitReady(ctx); err != nil {
			return err
		}
		if err := w.admit(ctx, conn); err != nil {
			return err
		}
		for as.stays() {
			ch, ok := <-r.chunks // the readers close it also when ctx has ended
			if !ok {
				return nil
			}
			if err := w.turn(ctx); err != nil {
				return err
			}
			if err := w.chunk(ctx, ch); err != nil {
				return fmt.Errorf("copy %s to %s: %w", ch.s.c.Source.NS, ch.s.c.Target, err)
			}
		}
		more = true
		return nil
	})
	return more, err
}

// turn takes a connection to another of the target's routers, if it is behind some.
func (w *writer) turn(ctx context.Context) error {
	if w.e.dst.Info.Kind != mongo.KindSharded {
		return nil
	}
	if w.e.opts.Admit == nil {
		w.Conn.Release()
	}
	conn, err := w.e.dst.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return fmt.Errorf("copy: connect to the target: %w", err)
	}
	if held := w.admitted[conn.Addr()]; held != nil {
		conn.Release()
		w.Conn = held
		return nil
	}
	w.Conn = conn
	return w.admit(ctx, conn)
}

// admit asks whether something may be written over a connection, and holds it if so.
func (w *writer) admit(ctx context.Context, conn *wire.Conn) error {
	admit := w.e.opts.Admit
	if admit == nil {
		return nil
	}
	if err := admit(ctx, conn); err != nil {
		return err
	}
	w.admitted[conn.Addr()] = conn
	return nil
}

// release gives back all connections. Once more does no harm.
func (w *writer) release() {
	w.Conn.Release()
	for _, conn := range w.admitted {
		conn.Release()
	}
}

// chunk puts a chunk on the target and acknowledges it.
func (w *writer) chunk(ctx context.Context, ch *chunk) error {
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
	ch.s.ack(ch.n, ch.part.Progress)
	w.budget.adjust(-ch.held)
	if ch.done != nil {
		close(ch.done)
	}
	return nil
}

// documents hands over documents one by one.
type documents func(each func(doc []byte) error) error

// insert sends the chunk as one unordered insert. Documents that an insert
// would change are written exactly.
func (w *writer) insert(ctx context.Context, ch *chunk) error {
	docs, err := w.missing(ctx, ch)
	if err == nil {
		err = w.others(ctx, ch.s.c, docs)
	}
	if err != nil {
		return err
	}
	aside, err := w.frame(ch.s.c, docs)
	if err != nil {
		return err
	}
	if w.msg.Docs() > 0 {
		res, err := w.unordered(ctx, "insert")
		if err == nil && len(res.Errors) > 0 {
			err = w.resolve(ctx, ch.s.c, docs, res.Errors)
		}
		if err != nil {
			return err
		}
	}
	return w.insertExact(ctx, ch.s.c, aside)
}

// frame writes documents into the message, but for those that an insert would
// change, which it returns.
func (w *writer) frame(c *collection, docs documents) (aside [][]byte, err error) {
	w.begin(c)
	err = docs(func(doc []byte) error {
		special, err := docwrite.Inspect(doc)
		if err != nil {
			return fmt.Errorf("_id %s: %w", idText(doc), err)
		}
		if special.ZeroTimestamp {
			aside = append(aside, doc)
		} else {
			w.msg.AppendDocument(doc)
		}
		return nil
	})
	return aside, err
}

func (w *writer) begin(c *collection) {
	if w.msg.Len() > keepMessage {
		w.msg = wire.Message{}
	}
	w.msg.Reset(c.targetDB, c.insert, false)
	w.msg.StartSequence("documents")
}

// insertInOrder writes a serial chunk: runs of documents with ordered inserts,
// those that an insert would change one by one in between. It goes on behind a
// document that the target refuses if somebody takes it.
func (w *writer) insertInOrder(ctx context.Context, ch *chunk) error {
	c := ch.s.c
	var docs [][]byte
	if err := ch.part.Each(func(doc []byte) error { docs = append(docs, doc); return nil }); err != nil {
		return err
	}
	for len(docs) > 0 {
		n, err := w.frameRun(c, docs)
		if err == nil && n == 0 {
			n, err = 1, w.insertExact(ctx, c, docs[:1])
		} else if err == nil {
			n, err = w.insertRun(ctx, c, docs[:n])
		}
		if err != nil {
			return err
		}
		docs = docs[n:]
	}
	return nil
}

// frameRun frames the documents at the head that an insert does not change, and
// returns how many those are.
func (w *writer) frameRun(c *collection, docs [][]byte) (int, error) {
	w.begin(c)
	for i, doc := range docs {
		special, err := docwrite.Inspect(doc)
		if err != nil {
			return i, fmt.Errorf("_id %s: %w", idText(doc), err)
		}
		if special.ZeroTimestamp {
			return i, nil
		}
		w.msg.AppendDocument(doc)
	}
	return len(docs), nil
}

// insertRun inserts the framed documents in order up to the first that the target
// refuses, and returns how many are dealt with.
func (w *writer) insertRun(ctx context.Context, c *collection, docs [][]byte) (int, error) {
	res, err := w.roundTrip(ctx)
	if err != nil {
		return 0, err
	}
	if len(res.Errors) == 0 {
		if res.N != int64(len(docs)) {
			err = fmt.Errorf("insert of %d documents was answered with %d inserted", len(docs), res.N)
		}
		return len(docs), err
	}
	e := res.Errors[0]
	return e.Index + 1, w.refused(ctx, c, e, docs[e.Index])
}

// roundTrip sends the message and reads the write result.
func (w *writer) roundTrip(ctx context.Context) (wire.WriteResult, error) {
	var body bsoncore.Document
	err := w.e.opts.TargetGate.Do(ctx, func() (n int, err error) {
		body, err = w.Conn.RoundTrip(ctx, &w.msg)
		return w.msg.Len(), err
	})
	if err != nil {
		return wire.WriteResult{}, err
	}
	res, err := w.answer(body)
	for _, e := range res.Errors {
		if err == nil && (e.Index < 0 || e.Index >= w.msg.Docs()) {
			err = writeFailed(e, nil)
		}
	}
	return res, err
}

// answer reads a write result; what has interrupted the write is an error.
func (w *writer) answer(body bsoncore.Document) (wire.WriteResult, error) {
	res := wire.ParseWriteResult(body)
	if err := mongo.Interrupted(res); err != nil {
		return res, err
	}
	return res, w.e.store.SameTerm(res.Term)
}

// unordered sends the message, of which each document has to be answered, in words
// of what it does.
func (w *writer) unordered(ctx context.Context, what string) (wire.WriteResult, error) {
	res, err := w.roundTrip(ctx)
	if n := w.msg.Docs(); err == nil && res.N+int64(len(res.Errors)) != int64(n) {
		err = fmt.Errorf("%s of %d documents was answered with %d done and %d errors", what, n, res.N, len(res.Errors))
	}
	return res, err
}
