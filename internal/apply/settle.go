package apply

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/deadletter"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
)

// settle writes parked documents. Everything before the barrier is on the
// target, so their final states are consistent with one another: they are
// written in order, again and again while that helps; documents that trade
// keys in a circle are then replaced together in one transaction.
//
// What is refused after that is a real conflict and handled by policy, except
// inside the window: a document that holds the key may be ahead of this
// position, and give it up when its later events have been replayed. Such
// documents are returned to be carried on, unless must is set.
func (e *Engine) settle(ctx context.Context, b parkedBatch, must bool) (carry parkedBatch, err error) {
	if len(b.ops) == 0 {
		return carry, nil
	}
	e.n.parked.Add(int64(len(b.ops)))
	w := newWorker(e, -1)
	defer func() {
		if w.conn != nil {
			w.conn.Release()
		}
	}()
	var todo []settled
	refuse := func(s settled, r *refusal) error {
		carried, err := w.refuse(ctx, s, r, must)
		if carried {
			carry.ops = append(carry.ops, s.parkedOp)
		}
		return err
	}
	for _, p := range b.ops {
		s, done, err := w.outcome(ctx, p)
		if err == nil && !done && s.refused != nil {
			err = refuse(s, s.refused)
		}
		if err != nil {
			return carry, err
		}
		if !done && s.refused == nil {
			todo = append(todo, s)
		}
	}
	if err := w.settleAll(ctx, todo, refuse); err != nil {
		return carry, err
	}
	if len(carry.ops) > 0 {
		carry.acks = b.acks
		return carry, nil
	}
	w.acknowledge(b.acks)
	return carry, nil
}

func (w *worker) settleAll(ctx context.Context, todo []settled, refuse func(settled, *refusal) error) error {
	for len(todo) > 0 {
		left, err := w.settlePass(ctx, todo, refuse)
		if err != nil {
			return err
		}
		if len(left) < len(todo) {
			todo = left
			continue
		}
		at, r, err := w.settleTogether(ctx, left)
		if err != nil {
			return err
		}
		if r == nil {
			return w.settledLetters(ctx, left)
		}
		if err := refuse(left[at], r); err != nil {
			return err
		}
		todo = append(left[:at:at], left[at+1:]...)
	}
	return nil
}

// settledLetters closes the cases of documents that are on the target now.
func (w *worker) settledLetters(ctx context.Context, list []settled) error {
	for _, s := range list {
		if s.letter == nil {
			continue
		}
		how := "written at " + s.at.String()
		if s.doc == nil {
			how = "deleted on the source at " + s.at.String()
		}
		if err := w.e.o.Letters.Settle(ctx, *s.letter, how); err != nil {
			return err
		}
	}
	return nil
}

// outcome replays what is parked for a document on the document as it is now,
// or on its letter if it is in dispute; done tells that nothing is to be written.
func (w *worker) outcome(ctx context.Context, p *parkedOp) (s settled, done bool, err error) {
	s = settled{parkedOp: p}
	if r := p.refused; r != nil && (r.cause != deadletter.CauseRefused || p.t.capped) {
		s.refused = r // of the others, the server is asked again
	}
	l, disputed, err := w.e.o.Letters.Read(ctx, p.t.ns, p.id)
	if err != nil {
		return s, false, err
	}
	if disputed {
		s.letter, s.doc, s.at, s.until = &l, l.Doc, l.At, l.Until
	} else {
		docs, err := w.fetch(ctx, p.t, []*op{{id: p.id}})
		if err != nil {
			return s, false, err
		}
		s.doc = docs[0]
	}
	for i := range p.steps {
		o := p.steps[i]
		s.window = o.window
		if disputed && o.at.Before(l.At) {
			continue // in the letter already
		}
		o.window = o.window || disputed && (o.at == l.At || !l.Until.Before(o.at))
		s.at = o.at
		if o.kind == opUpdate && s.doc == nil && o.window {
			if err := w.skip(ctx, p.t, &o); err != nil {
				return s, false, err
			}
		}
		why, err := w.replayStep(p, &o, &s.doc)
		if err != nil {
			return s, false, err
		}
		if why != nil {
			return w.reread(ctx, s, why)
		}
	}
	return w.beside(ctx, s)
}

// replayStep applies one parked operation; a refusal says that the document is
// not what it has to be.
func (w *worker) replayStep(p *parkedOp, o *op, doc *[]byte) (*refusal, error) {
	switch o.kind {
	case opInsert, opReplace, opPut:
		*doc = o.doc
	case opDelete:
		*doc = nil
	case opUpdate:
		if *doc == nil {
			if !o.window {
				return &refusal{cause: deadletter.CauseMissing, text: textMissing}, nil
			}
			return nil, nil
		}
		out, skipped, err := delta.Apply(nil, *doc, o.upd)
		if err != nil {
			return nil, opError("update", p.t.ns, o.id, o.at, err)
		}
		if skipped > 0 && !o.window {
			return &refusal{cause: deadletter.CauseShape, text: textShape}, nil
		}
		w.e.n.skipped.Add(int64(skipped))
		*doc = out
	}
	return nil, nil
}

const (
	textMissing = "the document is not on the target"
	textShape   = "the document on the target has another shape than the update expects"
)

// reread takes the whole document from the source where the target's cannot
// be gone on from. If the source has none any more, its deletion follows.
func (w *worker) reread(ctx context.Context, s settled, why *refusal) (settled, bool, error) {
	if !w.e.lenient() || w.e.o.Reread == nil {
		return s, false, w.stopError(ctx, s, why)
	}
	r, err := w.e.o.Reread(ctx, s.t.origin(), s.id, s.at)
	if err != nil {
		return s, false, fmt.Errorf("read %s, _id %s, from the source: %w", s.t.ns, idString(s.id), err)
	}
	switch {
	case r.Gone:
		return s, true, w.goneLetter(ctx, s, why)
	case r.Doc == nil:
		w.e.n.skipped.Add(1)
		return s, true, nil
	}
	s.doc, s.at, s.until, s.refused, s.window = r.Doc, r.From, r.Until, why, false
	return s, false, nil
}

// goneLetter keeps what cannot be gone on from and cannot be read any more
// either. The drop of its collection settles it.
func (w *worker) goneLetter(ctx context.Context, s settled, why *refusal) error {
	s.doc = nil
	l := s.asLetter(why)
	l.State, l.Reason = deadletter.Open, why.text+"; the source has dropped the collection since, so the document cannot be read any more; the drop follows"
	w.e.o.Log.Info("a document cannot be brought up to date: its collection is gone from the source, and its drop follows", "ns", s.t.ns,
		"_id", idString(s.id), "position", s.at, "reason", why.text)
	return w.e.o.Letters.Write(ctx, l)
}

// beside looks at what the target has under the same _id where that is
// somebody else's, and at capped collections, which take nothing later.
func (w *worker) beside(ctx context.Context, s settled) (settled, bool, error) {
	if s.refused != nil && s.doc == nil {
		return s, true, nil // ours is gone again
	}
	if s.letter == nil || s.refused != nil {
		return s, false, nil
	}
	if s.t.capped {
		if s.doc == nil {
			return s, true, w.settledLetters(ctx, []settled{s})
		}
		s.refused = &refusal{cause: s.letter.Cause, code: s.letter.Code, text: s.letter.Reason}
		return s, false, nil
	}
	if !s.letter.Cause.Foreign() {
		return s, false, nil
	}
	docs, err := w.fetch(ctx, s.t, []*op{{id: s.id}})
	if err != nil {
		return s, false, err
	}
	if there := docs[0]; s.doc == nil || bytes.Equal(there, s.doc) {
		return s, true, w.settledLetters(ctx, []settled{s})
	} else if there != nil {
		s.refused = &refusal{cause: s.letter.Cause, code: s.letter.Code, text: s.letter.Reason}
	}
	return s, false, nil
}

// settlePass writes each document once and returns those that meet a duplicate
// key.
func (w *worker) settlePass(ctx context.Context, todo []settled, refuse func(settled, *refusal) error) ([]settled, error) {
	var left []settled
	for _, s := range todo {
		name, each := "update", appendUpdate
		o := &op{kind: opPut, id: s.id, doc: s.doc, at: s.at}
		if s.doc == nil {
			name, each, o.kind = "delete", appendDelete, opDelete
		}
		if s.doc != nil && hasDollarField(s.doc) {
			left = append(left, s) // only the transaction can write it
			continue
		}
		res, err := w.sendOps(ctx, name, s.t, []*op{o}, true, each)
		if err != nil {
			return nil, err
		}
		if len(res.Errors) == 0 {
			down, err := w.putDown(ctx, s, o)
			if err != nil {
				return nil, err
			}
			if !down {
				left = append(left, s)
			}
			continue
		}
		we := res.Errors[0]
		switch r := refusedBy(we); {
		case we.Code == mongo.CodeDuplicateKey:
			left = append(left, s)
		case r == nil:
			return nil, opError(o.kind.String(), s.t.ns, s.id, s.at, serverError(we))
		default:
			if err := refuse(s, r); err != nil {
				return nil, err
			}
		}
	}
	return left, nil
}

// putDown completes a document just written; false when that meets a
// duplicate key.
func (w *worker) putDown(ctx context.Context, s settled, o *op) (bool, error) {
	if s.doc != nil {
		if duplicate, err := w.repair(ctx, s.t, []*op{o}); err != nil || len(duplicate) > 0 {
			return false, err
		}
	}
	return true, w.settledLetters(ctx, []settled{s})
}

// settleTogether deletes and inserts the documents in one transaction, so that
// a crash in between leaves them as they were. A refusal is told with the
// index of the refused document; nothing is changed then.
func (w *worker) settleTogether(ctx context.Context, todo []settled) (at int, r *refusal, err error) {
	err = w.inTransaction(ctx, func(ctx context.Context) error {
		for _, s := range todo {
			if err := w.e.deleteInTxn(ctx, s.t, s.id, s.at); err != nil {
				return err
			}
		}
		for i, s := range todo {
			at = i
			if s.doc == nil {
				continue
			}
			if err := w.e.insertInTxn(ctx, s); err != nil {
				return err
			}
		}
		return nil
	})
	var refused refusedError
	if errors.As(err, &refused) {
		return at, refused.r, nil
	}
	return at, nil, err
}

// inTransaction runs fn in a transaction on the target and observes the terms
// around it. Like all data it becomes durable with the next checkpoint.
func (w *worker) inTransaction(ctx context.Context, fn func(context.Context) error) error {
	txn := w.e.o.Transactions
	if txn == nil {
		var err error
		if txn, err = w.e.dst.NewTransactions(); err != nil {
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

// observeTerm notes the primary's present term. The driver does not tell under
// which one a transaction committed; with the terms before and after it noted,
// a checkpoint cannot miss a change between.
func (w *worker) observeTerm(ctx context.Context) error {
	if w.e.o.ObserveTerm == nil {
		return nil
	}
	conn, err := w.connection(ctx)
	if err != nil {
		return err
	}
	reply, err := conn.Run(ctx, "admin", bson.D{{Key: "isMaster", Value: 1}})
	if err != nil {
		return fmt.Errorf("read the target's term: %w", err)
	}
	if t, ok := reply.Lookup("lastWrite", "opTime", "t").AsInt64OK(); ok {
		w.e.o.ObserveTerm(t)
	}
	return nil
}
