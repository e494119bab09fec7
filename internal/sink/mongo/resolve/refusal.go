package resolve

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/sink/mongo/write"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/wire"
)

// Reread is a document as the source has it now; Doc is nil if it has none.
type Reread struct {
	Doc  bson.Raw
	Gone bool // the source has dropped the collection; its drop follows
	// Doc contains all changes up to From and none after Until.
	From, Until mongo.OpTime
}

// ConflictError is a permanent refusal: the target differs from the source.
type ConflictError struct {
	Op     string
	NS     string
	ID     string // extended JSON
	At     mongo.OpTime
	Reason string
	// Index is the unique index, Other the _id of the document with the key, in extended JSON, if known.
	Index, Other string
	// Doc is the _id and Since the document's first event that is not on the target, if it is about one
	// event.
	Doc   bson.RawValue
	Since mongo.OpTime
	// Undecided: the blocking document is unknown, as the source has moved on. It may be clear later.
	Undecided bool
	Others    []*ConflictError // further conflicts, at most 1,000
	// Applied is the target's position, Sent the last position of which anything was sent.
	Applied, Sent mongo.OpTime
	Sourced       bool // the source itself has several of the documents, as a shard lacks the unique index
}

// Error names the operation, namespace, _id, position and reason.
func (c *ConflictError) Error() string {
	text := fmt.Sprintf("%s in %s, _id %s, at %s: %s", c.Op, c.NS, c.ID, c.At, c.Reason)
	const named = 3
	for _, other := range c.Others[:min(named, len(c.Others))] {
		text += "; also " + other.Error()
	}
	if more := len(c.Others) - named; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

const hintForeign = "something else writes on the target, the target was changed before the job, or it alone has " +
	"this index: stop that writer, compare with `millrace verify`, then remove what should not be there and start " +
	"again, or go on with --on-conflict skip or overwrite"

const (
	textTaken   = "a document with this _id is on the target already"
	textMissing = "the document is not on the target"
	textShape   = "the document on the target has another shape than the update expects"
)

func conflict(ns string, o *fold.Op, reason string) error {
	return mongo.WithHint(&ConflictError{Op: o.Verb(), NS: ns, ID: bsonraw.IDText(o.ID), At: o.At, Reason: reason,
		Doc: bsonraw.RawValue(o.ID), Since: o.First()}, hintForeign)
}

type refusal struct {
	cause deadletter.Cause
	code  int32
	text  string
	dup   docwrite.Duplicate // of CauseKey
}

// refusedBy reads a write error about a document.
func refusedBy(e wire.WriteError) *refusal {
	r := &refusal{cause: deadletter.CauseRefused, code: e.Code, text: e.Error()}
	switch docwrite.Of(e) {
	case docwrite.DuplicateID:
		r.cause = deadletter.CauseID
	case docwrite.DuplicateKey:
		r.cause, r.dup = deadletter.CauseKey, docwrite.ParseDuplicate(e.Raw)
	}
	return r
}

func refusalOf(l *deadletter.Letter) *refusal {
	return &refusal{cause: l.Cause, code: l.Code, text: l.Reason}
}

// goal is a parked document and what it has to become; doc nil is deleted.
type goal struct {
	*Document
	doc       []byte
	at, until mongo.OpTime // of doc; changes up to until may be in it
	letter    *deadletter.Letter
	refused   *refusal // known before it is tried
	duplicate *refusal // when it was tried
	there     bool     // the target has the very document
	overlap   bool     // the target may be ahead of it
	whole     bool     // it takes the place of what is there
	same      bool     // the target has it so already; of one that is held
}

func (g *goal) document() write.Document {
	return write.Document{Target: g.Target, ID: g.ID, Doc: g.doc, At: g.at}
}

func (g *goal) asLetter(why *refusal) deadletter.Letter {
	l := deadletter.Letter{Origin: g.Target.Origin, Cause: why.cause, DocID: g.ID, Doc: g.doc, At: g.at, Until: g.until,
		Reason: why.text, Code: why.code, Index: why.dup.Index()}
	if g.letter != nil {
		l.ID, l.State = g.letter.ID, g.letter.State
		if g.letter.Cause.Foreign() && why.cause != deadletter.CauseRefused {
			l.Cause = g.letter.Cause
		}
	}
	return l
}

type verdict int

const (
	verdictStop verdict = iota
	verdictCarry
	verdictUndecided // kept in its letter until the target has caught up
	verdictOpen      // kept in its letter
	verdictOverwrite
)

// ahead reports a document whose dead letter was read from the source in a state that the stream has yet
// to reach. On the target it would meet its own events. A repair also waits for the end of the overlap,
// so that it brings nothing that was there before.
func (r *round) ahead(g *goal) bool {
	return g.letter != nil && r.b.Fed.Before(g.until) && (g.held() || r.b.Overlap.Before(g.until))
}

// held reports that the document was read for a repair.
func (g *goal) held() bool { return g.letter != nil && g.letter.State == deadletter.Held }

// judge decides about a refusal at a barrier. In the overlap the document with the key may be ahead or
// behind.
func (r *round) judge(g *goal, why *refusal) verdict {
	g.overlap = g.overlap && !r.b.over()
	open := g.letter != nil && g.letter.State == deadletter.Open
	switch {
	case g.overlap && g.letter == nil && !r.b.Must:
		return verdictCarry
	case r.o.Letters == nil:
		return verdictStop
	case g.held() && !g.overlap && !r.ahead(g) && r.o.OnConflict == deadletter.Stop:
		return verdictOpen // it was not on the target before either
	case open && (r.ahead(g) || g.overlap || g.Target.Capped || r.o.OnConflict == deadletter.Stop):
		return verdictOpen
	case g.overlap || r.ahead(g):
		return verdictUndecided
	case !r.lenient():
		return verdictStop
	case r.o.OnConflict == deadletter.Skip || why.cause == deadletter.CauseRefused:
		return verdictOpen
	case g.Target.Capped:
		return verdictStop
	case r.b.Fed.Before(g.until):
		return verdictUndecided // what was read from the source is ahead
	}
	return verdictOverwrite
}

func (r *round) refuse(ctx context.Context, g *goal, why *refusal) error {
	return r.stopped(r.decide(ctx, g, why))
}

func (r *round) decide(ctx context.Context, g *goal, why *refusal) error {
	l := g.asLetter(why)
	verdict := r.judge(g, why)
	if verdict != verdictCarry {
		if err := r.o.Source.whole(ctx); err != nil {
			return err
		}
	}
	switch verdict {
	case verdictCarry:
		r.carry = append(r.carry, g.Document)
		return nil
	case verdictOverwrite:
		return r.overwrite(ctx, g, why)
	case verdictUndecided:
		if l.State = deadletter.Undecided; g.held() {
			l.State, l.Cause, l.Until = deadletter.Held, deadletter.CauseRepair, mongo.MaxOpTime(l.Until, l.At)
		}
		if g.overlap {
			l.Until = mongo.MaxOpTime(l.Until, r.b.Overlap)
		}
	case verdictOpen:
		isNew := g.letter == nil || g.letter.State != deadletter.Open
		if l.State = deadletter.Open; isNew {
			l.Other = r.holderID(ctx, g, why)
			r.o.Log.Warn("the target refuses a document; it is kept as a dead letter", "ns", l.NS,
				"documentId", bsonraw.IDText(g.ID), "position", g.at, "index", l.Index, "reason", why.text, "in", deadletter.Where)
		}
	default:
		return r.stopError(ctx, g, why)
	}
	return r.o.Letters.Write(ctx, l)
}

func (r *round) holders(ctx context.Context, g *goal, why *refusal, most int64) ([]bson.Raw, error) {
	return why.dup.Holders(ctx, r.o.Cluster, docwrite.Holding{NS: g.Target.NS, Doc: g.doc, Except: &g.ID, Most: most})
}

// holderID returns the _id of the document that has the key, if found.
func (r *round) holderID(ctx context.Context, g *goal, why *refusal) bson.RawValue {
	if why.cause != deadletter.CauseKey {
		return bson.RawValue{}
	}
	found, err := r.holders(ctx, g, why, 1)
	if err != nil || len(found) == 0 {
		return bson.RawValue{}
	}
	return found[0].Lookup("_id")
}

// stopError returns the error that ends the job over a document.
func (r *round) stopError(ctx context.Context, g *goal, why *refusal) error {
	c := &ConflictError{Op: "write", NS: g.Target.NS, ID: bsonraw.IDText(g.ID), At: g.at, Reason: why.text,
		Index: why.dup.Index(), Doc: bsonraw.RawValue(g.ID)}
	if len(g.Steps) > 0 {
		c.Op, c.Since = g.Steps[0].Verb(), g.Steps[0].First()
	}
	if other := r.holderID(ctx, g, why); other.Type != 0 {
		c.Other = bsonraw.IDText(bsonraw.FromRaw(other))
		c.Reason = fmt.Sprintf("the document with _id %s on the target holds its key: %s", c.Other, why.text)
	}
	hint := hintForeign
	switch {
	case why.cause == deadletter.CauseRefused:
		hint = docwrite.HintRefused
	case g.Target.Capped:
		hint = "nothing can be removed from a capped collection to make room: stop the other writer, " +
			"or go on with --on-conflict skip"
	}
	return mongo.WithHint(c, hint)
}
