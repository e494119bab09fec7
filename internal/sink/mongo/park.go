package mongosink

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/delta"
)

// parkedOp is a document whose operation met a duplicate key on a secondary
// unique index, with everything that came for the document since. In an
// order-free batch this may be a mere reordering: another document still
// holds the key that the source had freed. At a barrier it is decided. _ids of
// different bytes (1 and 1.0) are different documents here, which follow one
// another on the source.
type parkedOp struct {
	t     *target
	hash  uint64
	id    bsoncore.Value
	steps []op
	// refused is why the first step is no mere reordering, if that is known.
	refused *refusal
}

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
	byID map[string]*parkedOp // by the bytes of their _ids
	keys map[string]bool      // what the _ids are equal to for the server
	// whole are the collections of which everything waits. Under a collation
	// one document can stand in the way of another with other bytes as its _id,
	// and only the server knows which: there all that comes later is parked too.
	whole map[string]bool
	batch parkedBatch
}

func (s *parkedSet) len() int { return len(s.batch.ops) }

func parkID(t *target, id bsoncore.Value) string {
	return string(append(append(append([]byte(t.ns), 0), byte(id.Type)), id.Data...))
}

func parkKey(t *target, id bsoncore.Value) string {
	return string(delta.AppendKey(append([]byte(t.ns), 0), id))
}

func (s *parkedSet) park(t *target, o *op) { s.parkRefused(t, o, nil) }

// parkRefused parks an operation that the target refuses whatever the order.
func (s *parkedSet) parkRefused(t *target, o *op, r *refusal) {
	if s.has(t, o) {
		return
	}
	t.contested.Store(true)
	step := o.clone() // the batch's memory is used again
	p := &parkedOp{t: t, hash: o.hash, id: step.id, steps: []op{step}, refused: r}
	s.file(p)
	s.batch.ops = append(s.batch.ops, p)
}

// file has later operations find the document.
func (s *parkedSet) file(p *parkedOp) {
	if s.byID == nil {
		s.byID, s.keys, s.whole = map[string]*parkedOp{}, map[string]bool{}, map[string]bool{}
	}
	s.byID[parkID(p.t, p.id)] = p
	s.keys[parkKey(p.t, p.id)] = true
	if p.t.collated && !p.t.capped {
		s.whole[p.t.ns] = true
	}
}

// parkItem parks an event before it is tried: its document is in dispute.
func (s *parkedSet) parkItem(it item) error {
	o, err := newOp(it)
	if err != nil {
		return err
	}
	s.park(it.t, &o)
	s.hold([]ack{{seg: it.seg, n: 1}})
	return nil
}

func (s *parkedSet) has(t *target, o *op) bool {
	_, ok := s.byID[parkID(t, o.id)]
	return ok
}

// join adds an event to its document's parked operations, if it has any, for
// it must not overtake them.
func (s *parkedSet) join(it item) (bool, error) {
	if !s.waits(it.t, it.ev.Key.ID) {
		return false, nil
	}
	o, err := newOp(it)
	if err != nil {
		return false, err
	}
	s.behind(it.t, o)
	s.hold([]ack{{seg: it.seg, n: 1}})
	return true, nil
}

// waits tells that an operation on a document must not overtake what is parked.
func (s *parkedSet) waits(t *target, id bsoncore.Value) bool {
	return len(s.byID) > 0 && (s.whole[t.ns] || s.keys[parkKey(t, id)])
}

// behind adds an operation, which owns its memory or has it held, to what is
// parked.
func (s *parkedSet) behind(t *target, o op) {
	o.untried = true
	p := s.byID[parkID(t, o.id)]
	if p == nil {
		p = &parkedOp{t: t, hash: o.hash, id: o.id}
		s.file(p)
		s.batch.ops = append(s.batch.ops, p)
	}
	p.steps = append(p.steps, o)
}

// adopt takes carried documents back in.
func (s *parkedSet) adopt(b *parkedBatch) {
	for _, p := range b.ops {
		s.file(p)
	}
	s.batch.add(*b)
}

func (s *parkedSet) hold(acks []ack) { s.batch.acks = append(s.batch.acks, acks...) }

func (s *parkedSet) take() parkedBatch {
	b := s.batch
	*s = parkedSet{}
	return b
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
