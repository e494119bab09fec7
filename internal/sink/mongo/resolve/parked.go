package resolve

import (
	"bytes"
	"context"
	"errors"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/sink/mongo/write"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
)

// Document waits for a barrier with all its operations since. A duplicate key in an unordered batch may
// be mere reordering: another document still has the key that it lost on the source. Equal _ids in
// different bytes (1 and 1.0) are different documents.
type Document struct {
	Target  *fold.Target
	Hash    uint64 // chooses its partition
	ID      bsonraw.ID
	Steps   []fold.Op
	refused *refusal // why the first step is no mere reordering, if known
}

// done reports that an earlier run inserted this very document.
func (d *Document) done(there []byte) bool {
	return len(d.Steps) > 0 && d.Steps[0].Kind == stream.Insert && bytes.Equal(there, d.Steps[0].Doc)
}

func (d *Document) deleted() bool {
	if len(d.Steps) == 0 {
		return false
	}
	last := &d.Steps[len(d.Steps)-1]
	return last.Kind == stream.Delete && last.Wall == 0
}

// Parked are the documents of one partition that wait for a barrier. It is for one goroutine.
type Parked struct {
	r    *Resolver
	byID map[string]*Document // by the bytes of their _ids
	keys map[string]bool      // what the _ids are equal to for the server
	// whole has collated collections with a parked document. Other _ids may be equal to the server
	// there, so everything later is parked.
	whole map[string]bool
	docs  []*Document // in order
}

func (r *Resolver) NewParked() *Parked { return &Parked{r: r} }

// Disputed reports that the event's document has an open case.
func (s *Parked) Disputed(it *fold.Item) bool {
	return s.r.o.Letters.Disputed(it.Target.NS, it.Event.Key.ID)
}

func (s *Parked) Len() int { return len(s.docs) }

func (s *Parked) Take() []*Document {
	docs := s.docs
	*s = Parked{r: s.r}
	return docs
}

// Adopt takes carried documents back.
func (s *Parked) Adopt(docs []*Document) {
	for _, d := range docs {
		s.add(d)
	}
}

func parkID(t *fold.Target, id bsonraw.ID) string {
	return string(append(append(append([]byte(t.NS), 0), byte(id.Type)), id.Data...))
}

// Key identifies a document by what its _id is equal to for the server.
func Key(ns string, id bsonraw.ID) string {
	return string(delta.AppendKey(append([]byte(ns), 0), id))
}

func (s *Parked) add(d *Document) {
	if s.byID == nil {
		s.byID, s.keys, s.whole = map[string]*Document{}, map[string]bool{}, map[string]bool{}
	}
	s.byID[parkID(d.Target, d.ID)] = d
	s.keys[Key(d.Target.NS, d.ID)] = true
	if d.Target.Collated && !d.Target.Capped {
		s.whole[d.Target.NS] = true
	}
	s.docs = append(s.docs, d)
}

// park parks an operation. why is set if the target refuses it in any order.
func (s *Parked) park(t *fold.Target, o *fold.Op, why *refusal) {
	if s.byID[parkID(t, o.ID)] != nil {
		return
	}
	t.Contested.Store(true)
	step := o.Clone() // the batch's memory is used again
	s.add(&Document{Target: t, Hash: o.Hash, ID: step.ID, Steps: []fold.Op{step}, refused: why})
}

// Park parks an event of a disputed document.
func (s *Parked) Park(it *fold.Item) error {
	o, err := fold.NewOp(it)
	if err == nil {
		s.park(it.Target, &o, nil)
	}
	return err
}

// Waits reports that an operation must not overtake what is parked.
func (s *Parked) Waits(t *fold.Target, id bsonraw.ID) bool {
	return len(s.byID) > 0 && (s.whole[t.NS] || s.keys[Key(t.NS, id)])
}

// Join parks an event that must not overtake what is parked. The event's memory stays in use.
func (s *Parked) Join(it *fold.Item) (bool, error) {
	if !s.Waits(it.Target, it.Event.Key.ID) {
		return false, nil
	}
	o, err := fold.NewOp(it)
	if err != nil {
		return false, err
	}
	s.Behind(it.Target, o)
	return true, nil
}

// Behind parks an operation behind others. Its memory stays in use.
func (s *Parked) Behind(t *fold.Target, o fold.Op) {
	o.Untried = true
	d := s.byID[parkID(t, o.ID)]
	if d == nil {
		d = &Document{Target: t, Hash: o.Hash, ID: o.ID}
		s.add(d)
	}
	d.Steps = append(d.Steps, o)
}

// Decide handles operations that were not applied: it parks, rewrites or skips them, or fails.
func (s *Parked) Decide(ctx context.Context, w *write.Writer, t *fold.Target, results []write.Result) error {
	var puts []*fold.Op
	for _, res := range results {
		o := res.Op
		var err error
		switch over := res.Outcome == write.Taken && (o.Overlap || s.r.o.Overwrite); {
		case over && !t.Serial():
			o.Kind = stream.Put
			puts = append(puts, o)
		case over, o.Kind == stream.Put && docwrite.Of(res.Reply) == docwrite.OtherID: // it takes the place of what is there
			err = s.overTaken(ctx, w, t, o)
		default:
			err = s.decide(t, res)
		}
		if err != nil {
			return err
		}
	}
	if len(puts) == 0 {
		return nil
	}
	more, err := w.Put(ctx, t, puts)
	if err != nil {
		return err
	}
	return s.Decide(ctx, w, t, more)
}

// overTaken inserts over the _id that a serial collection has.
func (s *Parked) overTaken(ctx context.Context, w *write.Writer, t *fold.Target, o *fold.Op) (err error) {
	var results []write.Result
	if o.Overlap && t.Capped {
		// The document is there, in its place; later events update it.
		s.r.skips.Add(1)
		results, err = w.Repair(ctx, t, []*fold.Op{o})
	} else {
		results, err = w.Reinsert(ctx, t, o)
	}
	for _, res := range results {
		if res.Outcome == write.Taken {
			res.Outcome = write.Duplicate // another document is ahead
		}
		if err == nil {
			err = s.decide(t, res)
		}
	}
	return err
}

func (s *Parked) decide(t *fold.Target, res write.Result) error {
	o := res.Op
	switch res.Outcome {
	case write.Taken:
		return s.lost(t, o, deadletter.CauseID, textTaken)
	case write.Missing:
		if s.r.excused(t, o) {
			s.r.skip(t, o)
			return nil
		}
		return s.lost(t, o, deadletter.CauseMissing, textMissing)
	case write.Misfit:
		return s.lost(t, o, deadletter.CauseShape, textShape)
	case write.Duplicate:
		return s.duplicate(t, res)
	}
	return s.refused(t, res)
}

// lost parks a document whose state is wrong. Even if policy is to stop, everything sent is decided
// first.
func (s *Parked) lost(t *fold.Target, o *fold.Op, cause deadletter.Cause, text string) error {
	if s.r.o.Letters == nil {
		return conflict(t.NS, o, text)
	}
	s.park(t, o, &refusal{cause: cause, text: text})
	return nil
}

// duplicate parks an operation that met a duplicate key. A capped collection takes no document later, so
// there the refusal counts.
func (s *Parked) duplicate(t *fold.Target, res write.Result) error {
	o := res.Op
	if t.Serial() && !o.Overlap && s.r.o.Letters == nil { // nothing is reordered here: no second chance
		return conflict(t.NS, o, "duplicate key on a unique index: "+res.Reply.Message)
	}
	var why *refusal
	if t.Capped && (o.Kind == stream.Insert || !o.Overlap) && res.Reply.Code != 0 {
		why = refusedBy(res.Reply)
	}
	s.park(t, o, why)
	return nil
}

// refused parks an operation that the server refuses for its document. In the overlap an index may
// refuse a mixture of old and new values.
func (s *Parked) refused(t *fold.Target, res write.Result) error {
	o, why := res.Op, refusedBy(res.Reply)
	if s.r.o.Letters != nil || o.Overlap && !t.Capped {
		s.park(t, o, why)
		return nil
	}
	if why.cause == deadletter.CauseID || t.Serial() && o.Kind == stream.Insert {
		return conflict(t.NS, o, why.text)
	}
	return mongo.WithHint(o.Fail(o.Verb(), t.NS, errors.New(why.text)), docwrite.HintRefused)
}
