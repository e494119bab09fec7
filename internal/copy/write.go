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

type chunk struct {
	s    *slice
	n    int // its place in the slice
	part *scan.Part
	held int64         // bytes of the budget
	done chan struct{} // serial slices: closed when written
}

type writer struct {
	scan.Reader // runs commands
	*run
	out   docwrite.Sender
	again bool // a refused document is written again
	// admitted are connections by router. They stay checked out: the pool may return others.
	admitted map[string]*wire.Conn
}

func (r *run) write(ctx context.Context, as worker) (more bool, err error) {
	err = r.connected(ctx, r.e.dst, wire.Primary(), as.reserve, func(conn *wire.Conn) error {
		w := &writer{run: r, Reader: scan.Reader{Conn: conn, Gate: r.e.opts.TargetGate}, admitted: map[string]*wire.Conn{}}
		w.out = docwrite.Sender{Line: w, Concern: bsoncore.Document(r.e.opts.WriteConcern)}
		defer func() { // once more does no harm
			w.Conn.Release()
			for _, conn := range w.admitted {
				conn.Release()
			}
		}()
		if err := await(ctx, r.ready); err != nil {
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

// admit asks whether a connection may be written to, and keeps it if so.
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

func (w *writer) chunk(ctx context.Context, ch *chunk) error {
	if err := failpoint.Err("copy.before"); err != nil {
		return err
	}
	w.out.Trim()
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

type documents func(each func(doc []byte) error) error

func (d documents) all() (docs [][]byte, err error) {
	err = d(func(doc []byte) error { docs = append(docs, doc); return nil })
	return docs, err
}

// insert is unordered. Documents that an insert would change are written exactly.
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
	if n := w.out.Msg.Docs(); n > 0 {
		res, err := w.out.RoundTrip(ctx, "insert")
		if err == nil {
			err = answered("insert", n, res)
		}
		if err == nil && len(res.Errors) > 0 {
			err = w.resolve(ctx, ch.s.c, docs, res.Errors)
		}
		if err != nil {
			return err
		}
	}
	return w.insertExact(ctx, ch.s.c, aside)
}

func (w *writer) frame(c *collection, docs documents) (aside [][]byte, err error) {
	w.out.Begin(c.command("insert"))
	err = docs(func(doc []byte) error {
		exact, err := changed(doc)
		if exact {
			aside = append(aside, doc)
		} else if err == nil {
			w.out.Msg.AppendDocument(doc)
		}
		return err
	})
	return aside, err
}

func changed(doc []byte) (bool, error) {
	special, err := docwrite.Inspect(doc)
	if err != nil {
		return false, fmt.Errorf("_id %s: %w", idText(doc), err)
	}
	return special.ZeroTimestamp, nil
}

func (c *collection) command(name string) docwrite.Command {
	_, coll := mongo.SplitNS(c.Target)
	return docwrite.Command{Name: name, DB: c.targetDB, Coll: coll, Ordered: name == "insert" && c.serial()}
}

// insertInOrder writes a serial chunk: runs of documents by ordered inserts, those that an insert
// would change one by one. It continues after a refused document that somebody takes.
func (w *writer) insertInOrder(ctx context.Context, ch *chunk) error {
	c := ch.s.c
	docs, err := documents(ch.part.Each).all()
	if err != nil {
		return err
	}
	for len(docs) > 0 {
		n, err := w.insertRun(ctx, c, docs)
		if err == nil && n == 0 {
			n, err = 1, w.insertExact(ctx, c, docs[:1])
		}
		if err != nil {
			return err
		}
		docs = docs[n:]
	}
	return nil
}

// insertRun stops at the first document that an insert would change or that is refused. It returns
// the number handled.
func (w *writer) insertRun(ctx context.Context, c *collection, docs [][]byte) (n int, err error) {
	for n < len(docs) {
		exact, err := changed(docs[n])
		if err != nil {
			return 0, err
		}
		if exact {
			break
		}
		n++
	}
	asIs := func(dst, doc []byte) []byte { return append(dst, doc...) }
	res, err := w.out.Send(ctx, c.command("insert"), elements(docs[:n], asIs))
	if err != nil {
		return 0, err
	}
	if len(res.Errors) == 0 {
		return n, answered("insert", n, res)
	}
	e := res.Errors[0]
	return e.Index + 1, w.refused(ctx, c, e, docs[e.Index])
}

func elements(docs [][]byte, form func(dst, doc []byte) []byte) docwrite.Elements {
	return docwrite.Elements{N: len(docs), Size: func(i int) int { return len(docs[i]) },
		Append: func(dst []byte, i int) []byte { return form(dst, docs[i]) }}
}

func answered(command string, n int, res wire.WriteResult) error {
	if res.N+int64(len(res.Errors)) == int64(n) {
		return nil
	}
	return fmt.Errorf("%s of %d documents was answered with %d done and %d errors", command, n, res.N, len(res.Errors))
}

func (w *writer) RoundTrip(ctx context.Context, _ string, m *wire.Message) (reply bsoncore.Document, err error) {
	err = w.Gate.Do(ctx, func() (int, error) {
		reply, err = w.Conn.RoundTrip(ctx, m)
		return m.Len(), err
	})
	return reply, err
}

// SameTerm passes on the election term of an answer.
func (w *writer) SameTerm(term int64) error { return w.e.store.SameTerm(term) }
