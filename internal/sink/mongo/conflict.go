package mongosink

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/wire"
)

// Origin says which collection of the source a target namespace is, at the
// position of the event in hand. Its name may mean another one by now.
type Origin struct {
	Target string    // namespace
	Source string    // namespace; empty where no event told
	UUID   *[16]byte // nil where no event told
}

func (t *target) origin() Origin { return Origin{Target: t.ns, Source: t.source, UUID: t.uuid} }

// Reread is a document as the source has it now, Doc nil when it has none.
type Reread struct {
	Doc bson.Raw
	// Gone: the source has dropped the whole collection; its drop follows.
	Gone bool
	// From is a position up to which all changes are in it, Until one after
	// which none is.
	From, Until mongo.OpTime
}

// refusal is why the target does not take a document.
type refusal struct {
	cause deadletter.Cause
	code  int32
	text  string
	dup   docwrite.Duplicate // of CauseKey
}

// refusedError is a refusal on its way out of a transaction.
type refusedError struct{ r *refusal }

// Error is the server's text.
func (e refusedError) Error() string { return e.r.text }

// refusedBy tells whether a write error is about the document, and not about
// the server or the command: nil when it is not.
func refusedBy(e wire.WriteError) *refusal {
	r := &refusal{code: e.Code, text: e.Error(), cause: deadletter.CauseRefused}
	switch m := docwrite.Of(e); {
	case !m.OfDocument():
		return nil
	case m == docwrite.DuplicateID:
		r.cause = deadletter.CauseID
	case m == docwrite.DuplicateKey:
		r.cause, r.dup = deadletter.CauseKey, docwrite.ParseDuplicate(e.Raw)
	}
	return r
}

// lenient reports that a refusal does not end the job at once.
func (e *Engine) lenient() bool {
	return e.o.Letters != nil && (e.o.OnConflict == deadletter.Skip || e.o.OnConflict == deadletter.Overwrite)
}

// settled is a parked document and what it has to become; doc nil is deleted.
type settled struct {
	*parkedOp
	doc       []byte
	at, until mongo.OpTime // of doc; changes up to until may be in it
	letter    *deadletter.Letter
	refused   *refusal // known before it is tried
	met       *refusal // when it was tried
	there     bool     // the target has the very document
	window    bool     // the target may be ahead of it
}

// asLetter is the letter about a refusal.
func (s *settled) asLetter(r *refusal) deadletter.Letter {
	l := deadletter.Letter{NS: s.t.ns, Cause: r.cause, DocID: s.id, Doc: s.doc, At: s.at, Until: s.until,
		Reason: r.text, Code: r.code, Index: r.dup.Index(), Source: s.t.source, UUID: s.t.uuid}
	if s.letter != nil {
		l.ID, l.State = s.letter.ID, s.letter.State
		if s.letter.Cause.Foreign() && r.cause != deadletter.CauseRefused {
			l.Cause = s.letter.Cause
		}
	}
	return l
}

// verdict is what becomes of a refused document.
type verdict int

const (
	verdictStop verdict = iota
	verdictCarry
	verdictUndecided // kept in its letter until the target has caught up
	verdictOpen      // kept in its letter
	verdictOverwrite
)

// judge decides about a refusal at a barrier. Inside the window it may be none:
// the document that holds the key may be ahead, or behind.
func (e *Engine) judge(s *settled, r *refusal, must bool) verdict {
	s.window = s.window && e.fed.Before(*e.window.Load())
	open := s.letter != nil && s.letter.State == deadletter.Open
	switch {
	case s.window && s.letter == nil && !must:
		return verdictCarry
	case e.o.Letters == nil:
		return verdictStop
	case open && (s.window || s.t.capped || e.o.OnConflict == deadletter.Stop):
		return verdictOpen
	case s.window:
		return verdictUndecided
	case !e.lenient():
		return verdictStop
	case e.o.OnConflict == deadletter.Skip || r.cause == deadletter.CauseRefused:
		return verdictOpen
	case s.t.capped:
		return verdictStop
	case e.fed.Before(s.until):
		return verdictUndecided // what was read from the source is ahead
	}
	return verdictOverwrite
}

// refuse acts upon a refusal; carried tells that the document stays parked.
func (w *worker) refuse(ctx context.Context, s settled, r *refusal, must bool) (carried bool, err error) {
	e := w.e
	l := s.asLetter(r)
	switch e.judge(&s, r, must) {
	case verdictCarry:
		return true, nil
	case verdictOverwrite:
		return false, w.overwrite(ctx, s, r)
	case verdictUndecided:
		l.State = deadletter.Undecided
		if s.window {
			l.Until = mongo.MaxOpTime(l.Until, *e.window.Load())
		}
	case verdictOpen:
		isNew := s.letter == nil || s.letter.State != deadletter.Open
		if l.State = deadletter.Open; isNew {
			l.Other = w.holderID(ctx, s, r)
			e.o.Log.Warn("the target refuses a document; it is kept as a dead letter", "ns", s.t.ns, "_id", bsonraw.IDText(s.id),
				"position", s.at, "index", l.Index, "reason", r.text, "in", mongo.StateDB+"."+deadletter.Collection)
		}
	default:
		return false, w.stopError(ctx, s, r)
	}
	return false, e.o.Letters.Write(ctx, l)
}

// holderID is the _id of the document that holds the key, if it can be found.
func (w *worker) holderID(ctx context.Context, s settled, r *refusal) bson.RawValue {
	if r.cause != deadletter.CauseKey {
		return bson.RawValue{}
	}
	found, err := docwrite.Holders(ctx, w.e.dst, s.t.ns, r.dup, nil, s.doc, &s.id, 1)
	if err != nil || len(found) == 0 {
		return bson.RawValue{}
	}
	return found[0].Lookup("_id")
}

// stopError is the end of a job over a document.
func (w *worker) stopError(ctx context.Context, s settled, r *refusal) error {
	c := &ConflictError{Op: "write", NS: s.t.ns, ID: bsonraw.IDText(s.id), At: s.at, Reason: r.text, Index: r.dup.Index(), Doc: bsonraw.RawValue(s.id)}
	if len(s.steps) > 0 {
		c.Since = s.steps[0].first()
	}
	if other := w.holderID(ctx, s, r); other.Type != 0 {
		c.Other = bsonraw.IDText(bsonraw.FromRaw(other))
		c.Reason = fmt.Sprintf("the document with _id %s on the target holds its key: %s", c.Other, r.text)
	}
	hint := hintForeign
	switch {
	case r.cause == deadletter.CauseRefused:
		hint = docwrite.HintRefused
	case s.t.capped:
		hint = "nothing can be removed from a capped collection to make room: stop the other writer, or go on with --on-conflict skip"
	}
	return mongo.WithHint(c, hint)
}

const hintForeign = "something else writes on the target, or the target was changed before the job: stop that writer, compare with `millrace verify`, " +
	"then remove what should not be there and start again, or go on with --on-conflict skip or overwrite"
