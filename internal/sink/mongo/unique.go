package mongosink

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/state/deadletter"
)

// Untangle makes room for a unique index on the target whose build met a
// duplicate key that docs have. As the source has the index, all but one of
// them are not what the source has: with Overwrite they are removed, with Skip
// they stay and the one goes. Everything fed must be drained. An error says
// that the policy is to stop, or that it cannot be told which is which.
func (e *Engine) Untangle(ctx context.Context, ns, index string, docs []bson.Raw, reason string) error {
	c := &ConflictError{Op: "build unique index " + index, NS: ns, Index: index, At: e.Applied().At, Reason: reason}
	if len(docs) > 0 {
		c.ID = bsonraw.IDText(bsonraw.IDOf(docs[0]))
		var others []string
		for _, d := range docs[1:] {
			others = append(others, bsonraw.IDText(bsonraw.IDOf(d)))
		}
		c.Other = strings.Join(others, ", ")
		c.Reason = fmt.Sprintf("_id %s on the target has the same key: %s", c.Other, reason)
	}
	stop := mongo.WithHint(c, hintForeign)
	if !e.lenient() || len(docs) < 2 || e.o.Reread == nil {
		return stop
	}
	t, err := e.newTarget(ctx, ns)
	if err != nil {
		return err
	}
	ours, theirs, err := e.tell(ctx, t, docs)
	if err != nil {
		return err
	}
	if len(ours) > 1 || len(theirs) == 0 || len(ours) == 0 && e.o.OnConflict == deadletter.Skip {
		return &UndecidedError{stop}
	}
	w := newWorker(e, -1)
	defer w.letGo()
	if e.o.OnConflict == deadletter.Overwrite {
		s := settled{parkedOp: &parkedOp{t: t, id: bsonraw.IDOf(docs[0])}, at: c.At}
		if len(ours) > 0 {
			s.id = bsonraw.IDOf(ours[0])
		}
		return w.takeOff(ctx, s, theirs)
	}
	return w.withdraw(ctx, t, ours[0], theirs[0], c)
}

// UndecidedError is a conflict of which it cannot be told which document is in
// the way: the source has gone on since. Later it may be clear.
type UndecidedError struct{ Err error }

// Error is the conflict's.
func (u *UndecidedError) Error() string { return u.Err.Error() }

// Unwrap gives the conflict.
func (u *UndecidedError) Unwrap() error { return u.Err }

// tell separates the document that is as the source has it from those that
// the source does not have, or not like that. Of a collection whose drop follows
// it takes any for ours: the index is all that matters until then.
func (e *Engine) tell(ctx context.Context, t *target, docs []bson.Raw) (ours, theirs []bson.Raw, err error) {
	var same, other []bson.Raw
	for _, d := range docs {
		r, err := e.o.Reread(ctx, t.origin(), bsonraw.IDOf(d), e.Applied().At)
		switch {
		case err != nil:
			return nil, nil, err
		case r.Gone:
			return docs[:1], docs[1:], nil
		case r.Doc == nil:
			theirs = append(theirs, d)
		case bytes.Equal(r.Doc, d):
			same = append(same, d)
		default:
			other = append(other, d)
		}
	}
	if len(same) == 1 { // the others were changed by somebody
		return same, append(theirs, other...), nil
	}
	return append(same, other...), theirs, nil
}

// takeOff removes documents that stand in the way of s, with their letters.
func (w *worker) takeOff(ctx context.Context, s settled, theirs []bson.Raw) error {
	returning, err := w.returning(ctx, s, theirs)
	if err != nil {
		return err
	}
	var letters []deadletter.Letter
	err = w.inTransaction(ctx, func(ctx context.Context) error {
		letters = letters[:0]
		for _, d := range theirs {
			l, err := w.remove(ctx, s, bsonraw.IDOf(d))
			if err != nil {
				return err
			}
			letters = append(letters, l...)
		}
		letters = append(letters, returning...)
		return w.post(ctx, s, letters)
	})
	if err == nil {
		w.noted(s, letters)
	}
	return err
}

// withdraw takes our document off the target, where another one keeps its
// place.
func (w *worker) withdraw(ctx context.Context, t *target, ours, theirs bson.Raw, c *ConflictError) error {
	id := bsonraw.IDOf(ours)
	s := settled{parkedOp: &parkedOp{t: t, id: id}, at: c.At}
	letters := []deadletter.Letter{{NS: t.ns, State: deadletter.Open, Cause: deadletter.CauseKey, DocID: id, Doc: ours, At: c.At,
		Reason: c.Reason, Code: mongo.CodeDuplicateKey, Index: c.Index, Other: theirs.Lookup("_id")}}
	err := w.inTransaction(ctx, func(ctx context.Context) error {
		if err := w.e.deleteInTxn(ctx, t, id, c.At); err != nil {
			return err
		}
		return w.post(ctx, s, letters)
	})
	if err != nil {
		return err
	}
	w.noted(s, letters)
	w.e.o.Log.Warn("a document has no place beside another one under a unique index; it is kept as a dead letter", "ns", t.ns, "_id", bsonraw.IDText(id),
		"index", c.Index, "in", mongo.StateDB+"."+deadletter.Collection)
	return nil
}
