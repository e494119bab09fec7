package apply

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// parkedOp is a document whose operation met a duplicate key on a secondary
// unique index, with everything that came for the document since. In an
// order-free batch this may be a mere reordering: another document still
// holds the key that the source had freed. At a barrier it is decided.
type parkedOp struct {
	t     *target
	hash  uint64
	id    bsoncore.Value
	steps []op
}

func (p *parkedOp) at() mongo.OpTime { return p.steps[len(p.steps)-1].at }

// parkedBatch is what workers hand over at a barrier: the parked documents in
// order, and the acknowledgements that wait for them.
type parkedBatch struct {
	ops  []*parkedOp
	acks []ack
}

func (b *parkedBatch) add(other parkedBatch) {
	b.ops = append(b.ops, other.ops...)
	b.acks = append(b.acks, other.acks...)
}

// parkedSet is a worker's parked documents. The zero value is ready.
type parkedSet struct {
	byKey map[string]*parkedOp
	batch parkedBatch
}

func (s *parkedSet) len() int { return len(s.batch.ops) }

func parkKey(t *target, id bsoncore.Value) string {
	return string(delta.AppendKey(append([]byte(t.ns), 0), id))
}

func (s *parkedSet) park(t *target, o *op) {
	if s.byKey == nil {
		s.byKey = map[string]*parkedOp{}
	}
	p := &parkedOp{t: t, hash: o.hash, id: o.id, steps: []op{*o}}
	s.byKey[parkKey(t, o.id)] = p
	s.batch.ops = append(s.batch.ops, p)
}

func (s *parkedSet) has(t *target, o *op) bool {
	_, ok := s.byKey[parkKey(t, o.id)]
	return ok
}

// join adds an event to its document's parked operations, if it has any, for
// it must not overtake them.
func (s *parkedSet) join(it item) (bool, error) {
	if len(s.byKey) == 0 {
		return false, nil
	}
	p, ok := s.byKey[parkKey(it.t, it.ev.ID)]
	if !ok {
		return false, nil
	}
	o, err := newOp(it)
	if err != nil {
		return false, err
	}
	p.steps = append(p.steps, o)
	s.hold([]ack{{it.seg, 1}})
	return true, nil
}

// adopt takes carried documents back in.
func (s *parkedSet) adopt(b *parkedBatch) {
	if s.byKey == nil {
		s.byKey = map[string]*parkedOp{}
	}
	for _, p := range b.ops {
		s.byKey[parkKey(p.t, p.id)] = p
	}
	s.batch.add(*b)
}

func (s *parkedSet) hold(acks []ack) { s.batch.acks = append(s.batch.acks, acks...) }

func (s *parkedSet) take() parkedBatch {
	b := s.batch
	*s = parkedSet{}
	return b
}

// settled is a parked document and what it has to become; doc nil is deleted.
type settled struct {
	*parkedOp
	doc []byte
}

// settle writes parked documents. Everything before the barrier is on the
// target, so their final states are consistent with one another: they are
// written in order, again and again while that helps; documents that trade
// keys in a circle are then replaced together in one transaction.
//
// What is refused after that is a real conflict, except inside the window: a
// document that holds the key may be ahead of this position, and give it up
// when its later events have been replayed. Such documents are returned to be
// carried on, unless must is set.
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
	for _, p := range b.ops {
		doc, err := w.finalState(ctx, p)
		if err != nil {
			return carry, err
		}
		todo = append(todo, settled{p, doc})
	}
	for len(todo) > 0 {
		left, err := w.settlePass(ctx, todo)
		if err != nil {
			return carry, err
		}
		if len(left) < len(todo) {
			todo = left
			continue
		}
		err = w.settleTogether(ctx, left)
		var refused *ConflictError
		if errors.As(err, &refused) && !must && allInWindow(left) {
			for _, s := range left {
				carry.ops = append(carry.ops, s.parkedOp)
			}
			carry.acks = b.acks
			return carry, nil
		}
		if err != nil {
			return carry, err
		}
		break
	}
	w.acknowledge(b.acks)
	return carry, nil
}

func allInWindow(list []settled) bool {
	for _, s := range list {
		if !s.steps[len(s.steps)-1].window {
			return false
		}
	}
	return true
}

// carryOn gives documents that could not be settled yet back to their
// partitions, where later events join them. Called before anything new is sent.
func (e *Engine) carryOn(ctx context.Context, carry parkedBatch) error {
	e.carried = len(carry.ops)
	byWorker := make([]parkedBatch, len(e.workers))
	for _, p := range carry.ops {
		i := p.hash % uint64(len(e.workers))
		byWorker[i].ops = append(byWorker[i].ops, p)
	}
	for i, b := range byWorker {
		if len(b.ops) == 0 {
			continue
		}
		b.acks, carry.acks = carry.acks, nil // one of them holds all acknowledgements
		if err := e.workers[i].send(ctx, message{carry: &b}); err != nil {
			return err
		}
	}
	return nil
}

// relieve makes room in a full ledger by settling what is parked. Documents
// that still cannot be settled then are taken for real conflicts, for what a
// checkpoint leaves to be replayed is smaller than the ledger.
func (e *Engine) relieve(ctx context.Context) error {
	return e.drain(ctx, e.carried > 0)
}

// finalState replays the parked steps on the document as it is now.
func (w *worker) finalState(ctx context.Context, p *parkedOp) ([]byte, error) {
	docs, err := w.fetch(ctx, p.t, []*op{&p.steps[0]})
	if err != nil {
		return nil, err
	}
	doc := []byte(docs[0])
	for i := range p.steps {
		o := &p.steps[i]
		switch o.kind {
		case opInsert, opReplace, opPut:
			doc = o.doc
		case opDelete:
			doc = nil
		case opUpdate:
			if doc == nil {
				if !o.window {
					return nil, conflict("update", p.t.ns, o.id, o.at, "the document is not on the target")
				}
				continue
			}
			if doc, err = w.computed(p.t, o, doc); err != nil {
				return nil, err
			}
		}
	}
	return doc, nil
}

// settlePass writes each document once and returns those that still meet a
// duplicate key.
func (w *worker) settlePass(ctx context.Context, todo []settled) ([]settled, error) {
	var left []settled
	for _, s := range todo {
		name, each := "update", appendUpdate
		o := &op{kind: opPut, id: s.id, doc: s.doc, at: s.at()}
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
		for _, we := range res.Errors {
			if we.Code != mongo.CodeDuplicateKey {
				return nil, opError(o.kind.String(), s.t.ns, s.id, s.at(), serverError(we))
			}
			left = append(left, s)
		}
		if s.doc != nil && len(res.Errors) == 0 {
			if err := w.repair(ctx, s.t, []*op{o}); err != nil {
				return nil, err
			}
		}
	}
	return left, nil
}

// settleTogether deletes and inserts the documents in one transaction, so that
// a crash in between leaves them as they were.
func (w *worker) settleTogether(ctx context.Context, todo []settled) error {
	e := w.e
	sess, err := e.dst.Client.StartSession()
	if err != nil {
		return fmt.Errorf("start session: %w", err)
	}
	defer sess.EndSession(ctx)
	if err := w.observeTerm(ctx); err != nil {
		return err
	}
	// Like all data it becomes durable with the next checkpoint.
	txn := options.Transaction().SetReadConcern(readconcern.Local()).SetWriteConcern(writeconcern.W1())
	_, err = sess.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		for _, s := range todo {
			if err := e.inTxn(ctx, s, "delete", bson.A{bson.D{
				{Key: "q", Value: bson.D{{Key: "_id", Value: rawID(s.id)}}}, {Key: "limit", Value: 1}}}); err != nil {
				return nil, err
			}
		}
		for _, s := range todo {
			if s.doc == nil {
				continue
			}
			if err := e.inTxn(ctx, s, "insert", bson.A{bson.Raw(s.doc)}); err != nil {
				return nil, err
			}
			if err := e.repairInTxn(ctx, s); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}, txn)
	if err != nil {
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

func (e *Engine) repairInTxn(ctx context.Context, s settled) error {
	_, d, ok := delta.AppendTimestampRepair(nil, s.doc)
	if !ok {
		return nil
	}
	u, form := delta.AppendStatement(nil, d)
	if form == delta.None {
		return nil
	}
	return e.inTxn(ctx, s, "update", bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: rawID(s.id)}}}, {Key: "u", Value: bson.Raw(u)}}})
}

func (e *Engine) inTxn(ctx context.Context, s settled, name string, ops bson.A) error {
	cmd := bson.D{{Key: name, Value: s.t.coll}, {Key: sequenceName(name), Value: ops}}
	if name == "insert" {
		cmd = append(cmd, bson.E{Key: "bypassDocumentValidation", Value: true})
	}
	raw, err := e.dst.Client.Database(s.t.db).RunCommand(ctx, cmd).Raw()
	if err != nil {
		if mongo.Classify(err) == mongo.ClassDuplicate {
			return e.keyConflict(s, err)
		}
		return opError("write in transaction", s.t.ns, s.id, s.at(), err)
	}
	for _, we := range wire.ParseWriteResult(bsoncore.Document(raw)).Errors {
		return e.keyConflict(s, serverError(we))
	}
	return nil
}

// keyConflict is final: it is not marked for the driver to try again.
func (e *Engine) keyConflict(s settled, err error) error {
	var ce driver.CommandError
	if errors.As(err, &ce) && ce.HasErrorLabel("TransientTransactionError") {
		return err
	}
	return conflict("write", s.t.ns, s.id, s.at(), err.Error())
}

func rawID(id bsoncore.Value) bson.RawValue {
	return bson.RawValue{Type: bson.Type(id.Type), Value: id.Data}
}
