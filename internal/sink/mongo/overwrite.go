package mongosink

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/wire"
)

// maxHolders bounds the documents that one may displace: it can have a key in
// each of 64 indexes.
const maxHolders = 64

// overwrite writes a document and takes off the target what stands in its way.
// The letters about that belong to the same transaction.
func (w *worker) overwrite(ctx context.Context, s settled, first *refusal) error {
	var holders []bson.Raw
	r := first
	for len(holders) < maxHolders {
		if r.cause == deadletter.CauseKey {
			found, err := docwrite.Holders(ctx, w.e.dst, s.t.ns, r.dup, nil, s.doc, &s.id, maxHolders)
			if err != nil {
				return err
			}
			more := newOnes(holders, found)
			if len(more) == 0 {
				return w.stopError(ctx, s, r)
			}
			holders = append(holders, more...)
		}
		next, err := w.replace(ctx, s, holders)
		if err != nil || next == nil {
			return err
		}
		if next.cause != deadletter.CauseKey {
			return w.stopError(ctx, s, next)
		}
		r = next
	}
	return w.stopError(ctx, s, r)
}

func newOnes(known, found []bson.Raw) (more []bson.Raw) {
	for _, f := range found {
		have := false
		for _, k := range known {
			have = have || k.Lookup("_id").Equal(f.Lookup("_id"))
		}
		if !have {
			more = append(more, f)
		}
	}
	return more
}

// replace removes the holders, and what has the document's own _id if that is
// somebody else's, and writes the document, in one transaction.
func (w *worker) replace(ctx context.Context, s settled, holders []bson.Raw) (*refusal, error) {
	returning, err := w.returning(ctx, s, holders)
	if err != nil {
		return nil, err
	}
	var letters []deadletter.Letter
	err = w.inTransaction(ctx, func(ctx context.Context) error {
		letters = letters[:0]
		for _, h := range holders {
			id := h.Lookup("_id")
			l, err := w.remove(ctx, s, bsonraw.FromRaw(id))
			if err != nil {
				return err
			}
			letters = append(letters, l...)
		}
		own, err := w.remove(ctx, s, s.id)
		if err != nil {
			return err
		}
		if s.foreign() {
			letters = append(letters, own...)
		}
		if err := w.e.insertInTxn(ctx, s); err != nil {
			return err
		}
		letters = append(letters, returning...)
		if s.letter == nil && s.refused != nil && s.refused.cause == deadletter.CauseMissing {
			l := s.asLetter(s.refused) // for the record
			l.State = deadletter.Settled
			letters = append(letters, l)
		}
		return w.post(ctx, s, letters)
	})
	var refused refusedError
	if errors.As(err, &refused) {
		return refused.r, nil
	}
	if err != nil {
		return nil, err
	}
	w.noted(s, letters)
	return nil, nil
}

// foreign reports that what the target has under the same _id is somebody
// else's.
func (s *settled) foreign() bool {
	return s.refused != nil && s.refused.cause.Foreign() || s.letter != nil && s.letter.Cause.Foreign()
}

// remove deletes a document in the transaction and returns the letter about it.
func (w *worker) remove(ctx context.Context, s settled, id bsoncore.Value) ([]deadletter.Letter, error) {
	doc, err := w.e.dst.Client.Database(s.t.db).Collection(s.t.coll, options.Collection().SetReadPreference(readpref.Primary())).
		FindOne(ctx, bson.D{{Key: "_id", Value: bsonraw.RawValue(id)}}).Raw()
	if errors.Is(err, driver.ErrNoDocuments) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s, _id %s, on the target: %w", s.t.ns, bsonraw.IDText(id), err)
	}
	l := deadletter.Letter{NS: s.t.ns, State: deadletter.Removed, Cause: deadletter.CauseInWay, DocID: id, Doc: doc, At: s.at,
		Reason: "removed from the target to make room for _id " + bsonraw.IDText(s.id), Other: bsonraw.RawValue(s.id)}
	return []deadletter.Letter{l}, w.e.deleteInTxn(ctx, s.t, id, s.at)
}

// returning are the removed documents that the source has too, in its state:
// they are tried when the target has caught up with what was read.
func (w *worker) returning(ctx context.Context, s settled, holders []bson.Raw) ([]deadletter.Letter, error) {
	if w.e.o.Reread == nil {
		return nil, nil
	}
	var out []deadletter.Letter
	for _, h := range holders {
		v := h.Lookup("_id")
		id := bsonraw.FromRaw(v)
		if w.e.o.Letters.Disputed(s.t.ns, id) {
			continue // its letter knows the source's state
		}
		r, err := w.e.o.Reread(ctx, s.t.origin(), id, s.at)
		if err != nil {
			return nil, fmt.Errorf("read %s, _id %s, from the source: %w", s.t.ns, bsonraw.IDText(id), err)
		}
		if r.Doc != nil {
			out = append(out, deadletter.Letter{NS: s.t.ns, State: deadletter.Undecided, Cause: deadletter.CauseInWay, DocID: id, Doc: r.Doc,
				At: r.From, Until: r.Until, Reason: "another state of it was removed to make room for _id " + bsonraw.IDText(s.id), Other: bsonraw.RawValue(s.id)})
		}
	}
	return out, nil
}

// post stores letters in the transaction and closes the document's own.
func (w *worker) post(ctx context.Context, s settled, letters []deadletter.Letter) error {
	db := w.e.dst.Client.Database(mongo.StateDB)
	var cmds []bson.D
	for i := range letters {
		cmds = append(cmds, w.e.o.Letters.Commands(&letters[i])...)
	}
	if s.letter != nil {
		cmds = append(cmds, deadletter.SettleCommand(*s.letter, "written at "+s.at.String()))
	}
	for _, cmd := range cmds {
		if err := db.RunCommand(ctx, cmd).Err(); err != nil {
			return fmt.Errorf("write dead letter: %w", err)
		}
	}
	return nil
}

func (w *worker) noted(s settled, letters []deadletter.Letter) {
	for _, l := range letters {
		w.e.o.Letters.Noted(l)
		if l.State == deadletter.Removed {
			w.e.o.Log.Warn("a document that stood in the way was taken off the target; it is kept as a dead letter", "ns", l.NS,
				"_id", bsonraw.IDText(l.DocID), "for", bsonraw.IDText(s.id), "position", s.at, "in", mongo.StateDB+"."+deadletter.Collection)
		}
	}
	if s.letter != nil {
		w.e.o.Letters.Forgotten(*s.letter, true)
	}
}

func (e *Engine) deleteInTxn(ctx context.Context, t *target, id bsoncore.Value, at mongo.OpTime) error {
	return e.inTxn(ctx, t, id, at, docwrite.Delete(t.coll, id))
}

func (e *Engine) insertInTxn(ctx context.Context, s settled) error {
	return e.inTxn(ctx, s.t, s.id, s.at, docwrite.Insert(s.t.coll, s.doc))
}

// inTxn runs one write in the transaction of ctx; a document that the target
// does not take is a refusedError.
func (e *Engine) inTxn(ctx context.Context, t *target, id bsoncore.Value, at mongo.OpTime, cmd bson.D) error {
	err := docwrite.Run(ctx, e.dst.Client.Database(t.db), cmd)
	if err == nil {
		return nil
	}
	var we wire.WriteError
	if errors.As(err, &we) {
		return refusedError{refusedBy(we)}
	}
	return opError("write in transaction", t.ns, id, at, err)
}
