package mongosink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/wire"
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
	defer w.letGo()
	refuse := func(s settled, r *refusal) error {
		carried, err := w.refuse(ctx, s, r, must)
		if carried {
			carry.ops = append(carry.ops, s.parkedOp)
		}
		return err
	}
	for ops := deletesFirst(b.ops); len(ops) > 0; {
		left, err := w.attempt(ctx, ops, refuse)
		if err == nil && len(left) == len(ops) {
			left, err = nil, w.disentangle(ctx, left, refuse)
		}
		if err != nil {
			return carry, err
		}
		ops = left
	}
	if len(carry.ops) > 0 {
		carry.acks = b.acks
		return carry, nil
	}
	w.acknowledge(b.acks)
	return carry, nil
}

// deletesFirst sorts documents to be deleted before those to be written, whose
// _ids may be the same for the server.
func deletesFirst(ops []*parkedOp) []*parkedOp {
	var deletes, others []*parkedOp
	for _, p := range ops {
		if p.deletes() {
			deletes = append(deletes, p)
		} else {
			others = append(others, p)
		}
	}
	return append(deletes, others...)
}

func (p *parkedOp) deletes() bool {
	return len(p.steps) > 0 && p.steps[len(p.steps)-1].kind == opDelete
}

// attempt tries each parked document once and returns those that meet a
// duplicate key. It holds no more documents in memory than come in one reply.
func (w *worker) attempt(ctx context.Context, ops []*parkedOp, refuse func(settled, *refusal) error) (left []*parkedOp, err error) {
	for len(ops) > 0 && err == nil {
		n := 1
		for n < len(ops) && ops[n].t == ops[0].t && ops[n].deletes() == ops[0].deletes() {
			n++
		}
		of, ids := map[*op]*parkedOp{}, make([]*op, n)
		for i, p := range ops[:n] {
			ids[i] = &op{id: p.id}
			of[ids[i]] = p
		}
		err = w.read(ctx, ops[0].t, ids, bson.D{}, func(some []*op, docs []bson.Raw) error {
			var todo []settled
			for i, o := range some {
				s, ok, err := w.consider(ctx, of[o], docs[i], refuse)
				if err != nil {
					return err
				}
				if ok {
					todo = append(todo, s)
				}
			}
			again, err := w.settlePass(ctx, todo, refuse)
			for _, s := range again {
				left = append(left, s.parkedOp)
			}
			return err
		})
		ops = ops[n:]
	}
	return left, err
}

// consider makes out what is to be written, if anything is.
func (w *worker) consider(ctx context.Context, p *parkedOp, doc bson.Raw, refuse func(settled, *refusal) error) (s settled, ok bool, err error) {
	s, done, err := w.outcome(ctx, p, doc)
	if err != nil || done {
		return s, false, err
	}
	if s.refused != nil {
		return s, false, refuse(s, s.refused)
	}
	return s, true, nil
}

// disentangle writes documents of which each meets a key that another one holds.
func (w *worker) disentangle(ctx context.Context, ops []*parkedOp, refuse func(settled, *refusal) error) error {
	var todo []settled
	for _, p := range ops {
		docs, err := w.fetch(ctx, p.t, []*op{{id: p.id}})
		if err != nil {
			return err
		}
		s, ok, err := w.consider(ctx, p, docs[0], refuse)
		if err != nil {
			return err
		}
		if ok {
			todo = append(todo, s)
		}
	}
	return w.settleAll(ctx, todo, refuse)
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
		if left, err = w.refuseCapped(left, refuse); err != nil || len(left) == 0 {
			return err
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

// refuseCapped refuses what met a duplicate key in a capped collection, where
// nothing can be deleted and inserted again, and returns the others.
func (w *worker) refuseCapped(left []settled, refuse func(settled, *refusal) error) (others []settled, err error) {
	for _, s := range left {
		if !s.t.capped || s.met == nil {
			others = append(others, s)
		} else if err := refuse(s, s.met); err != nil {
			return nil, err
		}
	}
	return others, nil
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

// outcome replays what is parked for a document on the document as the target has
// it now, or on its letter if it is in dispute; done tells that nothing is to be written.
func (w *worker) outcome(ctx context.Context, p *parkedOp, doc bson.Raw) (s settled, done bool, err error) {
	s = settled{parkedOp: p, there: sameID(doc, p.id)}
	if r := p.refused; r != nil && (r.cause != deadletter.CauseRefused || p.t.capped) {
		s.refused = r // of the others, the server is asked again
	}
	l, disputed, err := w.e.o.Letters.Read(ctx, p.t.ns, p.id)
	if err != nil {
		return s, false, err
	}
	if disputed {
		s.letter, s.doc, s.at, s.until = &l, l.Doc, l.At, l.Until
	} else if s.there {
		s.doc = doc
	}
	for i := range p.steps {
		o := p.steps[i]
		s.window = o.window
		if disputed && o.at.Before(l.At) {
			continue // in the letter already
		}
		o.window = o.window || disputed && (o.at == l.At || !l.Until.Before(o.at))
		s.at = o.at
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
		if o.kind == opInsert && o.untried && !o.window && *doc != nil && !w.e.o.Overwrite {
			return &refusal{cause: deadletter.CauseID, text: textTaken}, nil
		}
		*doc = o.doc
	case opDelete:
		*doc = nil
	case opUpdate:
		if *doc == nil && o.upsert {
			*doc = o.made()
		}
		if *doc == nil {
			if !w.excused(p.t, o) {
				return &refusal{cause: deadletter.CauseMissing, text: textMissing}, nil
			}
			w.skip(p.t, o)
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
		return s, false, fmt.Errorf("read %s, _id %s, from the source: %w", s.t.ns, bsonraw.IDText(s.id), err)
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
		"_id", bsonraw.IDText(s.id), "position", s.at, "reason", why.text)
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
	var left, puts []settled
	for _, s := range todo {
		switch {
		case s.doc == nil:
			if err := w.settleDelete(ctx, s, refuse); err != nil {
				return nil, err
			}
		case hasDollarField(s.doc):
			left = append(left, s) // only the transaction can write it
		default:
			puts = append(puts, s)
		}
	}
	for len(puts) > 0 {
		n := 1
		for n < len(puts) && puts[n].t == puts[0].t {
			n++
		}
		again, err := w.settlePuts(ctx, puts[:n], refuse)
		if err != nil {
			return nil, err
		}
		left, puts = append(left, again...), puts[n:]
	}
	return left, nil
}

// settleDelete deletes the very document, and not another one whose _id is equal
// for the server.
func (w *worker) settleDelete(ctx context.Context, s settled, refuse func(settled, *refusal) error) error {
	if !s.there {
		return w.settledLetters(ctx, []settled{s})
	}
	res, err := w.sendOps(ctx, "delete", s.t, []*op{{kind: opDelete, id: s.id, at: s.at}}, true, appendDelete)
	if err != nil {
		return err
	}
	if len(res.Errors) > 0 && !(s.t.capped && docwrite.Of(res.Errors[0]) == docwrite.NoDelete) {
		if r := refusedBy(res.Errors[0]); r != nil {
			return refuse(s, r)
		}
		return opError("delete", s.t.ns, s.id, s.at, res.Errors[0])
	}
	return w.settledLetters(ctx, []settled{s})
}

// settlePuts writes documents of one collection and returns those that meet a
// duplicate key.
func (w *worker) settlePuts(ctx context.Context, puts []settled, refuse func(settled, *refusal) error) (left []settled, err error) {
	ops := make([]*op, len(puts))
	for i, s := range puts {
		ops[i] = &op{kind: opPut, id: s.id, doc: s.doc, at: s.at}
	}
	res, err := w.sendOps(ctx, "update", puts[0].t, ops, false, appendUpdate)
	if err != nil {
		return nil, err
	}
	failed := make(map[*op]bool, len(res.Errors))
	for _, e := range res.Errors {
		failed[ops[e.Index]] = true
		again, err := w.putRefused(&puts[e.Index], e, refuse)
		if err != nil {
			return nil, err
		}
		if again {
			left = append(left, puts[e.Index])
		}
	}
	written := make([]*op, 0, len(ops))
	for _, o := range ops {
		if !failed[o] {
			written = append(written, o)
		}
	}
	duplicate, err := w.repair(ctx, puts[0].t, written)
	if err != nil {
		return nil, err
	}
	for i, o := range ops {
		switch {
		case failed[o]:
		case slices.Contains(duplicate, o):
			left = append(left, puts[i])
		default:
			if err := w.settledLetters(ctx, puts[i:i+1]); err != nil {
				return nil, err
			}
		}
	}
	return left, nil
}

// putRefused acts upon the error of one document; again tells that it may be
// taken later.
func (w *worker) putRefused(s *settled, e wire.WriteError, refuse func(settled, *refusal) error) (again bool, err error) {
	r := refusedBy(e)
	switch {
	case e.Code == mongo.CodeDuplicateKey:
		s.met = r
		return true, nil
	case docwrite.Of(e) == docwrite.OtherID && (s.window || w.e.o.Overwrite):
		return true, nil // a document whose _id has other bytes is ahead
	case docwrite.Of(e) == docwrite.OtherID:
		s.refused = &refusal{cause: deadletter.CauseID, code: e.Code, text: textTaken}
		return false, refuse(*s, s.refused)
	case r == nil:
		return false, opError("replace", s.t.ns, s.id, s.at, e)
	}
	return false, refuse(*s, r)
}

// sameID tells whether a document has an _id in the same bytes.
func sameID(doc bson.Raw, id bsoncore.Value) bool {
	v, ok := bsonraw.Field(doc, "_id")
	return ok && bsoncore.Type(v.Type) == id.Type && bytes.Equal(v.Value, id.Data)
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
	if w.e.o.SameTerm == nil {
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
		return w.e.o.SameTerm(t)
	}
	return nil
}
