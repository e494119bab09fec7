package resolve

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/write"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/wire"
)

// maxHolders bounds the documents that one may displace: it can have a key in each of 64 indexes.
const maxHolders = 64

// overwrite writes a document and removes what is in its way, in one transaction with the dead letters.
func (r *round) overwrite(ctx context.Context, g *goal, why *refusal) error {
	var holders []bson.Raw
	for {
		if why.cause == deadletter.CauseKey {
			found, err := r.holders(ctx, g, why, maxHolders)
			if err != nil {
				return err
			}
			more := newOnes(holders, found)
			if len(more) == 0 {
				return r.stopError(ctx, g, why)
			}
			holders = append(holders, more...)
		}
		next, err := r.replace(ctx, g, holders)
		if err != nil || next == nil {
			return err
		}
		if why = next; why.cause != deadletter.CauseKey || len(holders) >= maxHolders {
			return r.stopError(ctx, g, why)
		}
	}
}

func newOnes(known, found []bson.Raw) []bson.Raw {
	return slices.DeleteFunc(found, func(f bson.Raw) bool {
		return slices.ContainsFunc(known, func(k bson.Raw) bool { return k.Lookup("_id").Equal(f.Lookup("_id")) })
	})
}

// replace writes the document in one transaction that removes the holders and a foreign document with
// its _id.
func (r *round) replace(ctx context.Context, g *goal, holders []bson.Raw) (*refusal, error) {
	err := r.takeOff(ctx, g, holders, func(ctx context.Context) (letters []deadletter.Letter, err error) {
		own, err := r.remove(ctx, g, g.ID)
		if err != nil {
			return nil, err
		}
		if g.refused != nil && g.refused.cause.Foreign() || g.letter != nil && g.letter.Cause.Foreign() {
			letters = own
		}
		if g.letter == nil && g.refused != nil && g.refused.cause == deadletter.CauseMissing {
			l := g.asLetter(g.refused) // for the record
			l.State = deadletter.Settled
			letters = append(letters, l)
		}
		return letters, r.w.InsertIn(ctx, g.document())
	})
	if reply, ok := errors.AsType[wire.WriteError](err); ok {
		return refusedBy(reply), nil
	}
	return nil, err
}

// takeOff removes theirs, runs then and stores the dead letters, in one transaction.
func (r *round) takeOff(
	ctx context.Context, g *goal, theirs []bson.Raw, then func(context.Context) ([]deadletter.Letter, error),
) error {
	returning, err := r.returning(ctx, g, theirs)
	if err != nil {
		return err
	}
	var letters []deadletter.Letter
	err = r.w.Transaction(ctx, func(ctx context.Context) error {
		letters = letters[:0] // a transaction may be run again
		for _, d := range theirs {
			l, err := r.remove(ctx, g, bsonraw.IDOf(d))
			if err != nil {
				return err
			}
			letters = append(letters, l...)
		}
		more, err := then(ctx)
		if err != nil {
			return err
		}
		letters = append(append(letters, more...), returning...)
		return r.post(ctx, g, letters)
	})
	if err == nil {
		r.noted(g, letters)
	}
	return err
}

// remove deletes a document in the transaction and returns its dead letter.
func (r *round) remove(ctx context.Context, g *goal, id bsonraw.ID) ([]deadletter.Letter, error) {
	primary := options.Collection().SetReadPreference(readpref.Primary())
	doc, err := r.o.Cluster.Client.Database(g.Target.DB).Collection(g.Target.Coll, primary).
		FindOne(ctx, bson.D{{Key: "_id", Value: bsonraw.RawValue(id)}}).Raw()
	if errors.Is(err, driver.ErrNoDocuments) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s, _id %s, on the target: %w", g.Target.NS, bsonraw.IDText(id), err)
	}
	l := g.inWay(deadletter.Removed, id, doc, "removed from the target")
	l.At = g.at
	return []deadletter.Letter{l}, r.w.DeleteIn(ctx, write.Document{Target: g.Target, ID: id, At: g.at})
}

// inWay returns the dead letter of a document that is in the way of g.
func (g *goal) inWay(s deadletter.State, id bsonraw.ID, doc []byte, what string) deadletter.Letter {
	return deadletter.Letter{Origin: stream.Origin{NS: g.Target.NS}, State: s, Cause: deadletter.CauseInWay,
		DocID: id, Doc: doc, Reason: what + " to make room for _id " + bsonraw.IDText(g.ID), Other: bsonraw.RawValue(g.ID)}
}

// returning returns dead letters with the source's state of removed documents, to be retried later.
func (r *round) returning(ctx context.Context, g *goal, holders []bson.Raw) ([]deadletter.Letter, error) {
	if r.o.Source.Reread == nil {
		return nil, nil
	}
	var out []deadletter.Letter
	for _, h := range holders {
		id := bsonraw.IDOf(h)
		if r.o.Letters.Disputed(g.Target.NS, id) {
			continue // its letter knows the source's state
		}
		now, err := r.askSource(ctx, g.Target, id, g.at)
		if err != nil {
			return nil, err
		}
		if now.Doc != nil {
			l := g.inWay(deadletter.Undecided, id, now.Doc, "another state of it was removed")
			l.At, l.Until = now.From, now.Until
			out = append(out, l)
		}
	}
	return out, nil
}

// post stores dead letters in the transaction and settles the document's own.
func (r *round) post(ctx context.Context, g *goal, letters []deadletter.Letter) error {
	db := r.o.Cluster.Client.Database(mongo.StateDB)
	var cmds []bson.D
	for i := range letters {
		cmds = append(cmds, r.o.Letters.Commands(&letters[i])...)
	}
	if g.letter != nil {
		cmds = append(cmds, deadletter.SettleCommand(*g.letter, "written at "+g.at.String()))
	}
	for _, cmd := range cmds {
		if err := db.RunCommand(ctx, cmd).Err(); err != nil {
			return fmt.Errorf("write dead letter: %w", err)
		}
	}
	return nil
}

func (r *round) noted(g *goal, letters []deadletter.Letter) {
	for _, l := range letters {
		r.o.Letters.Noted(l)
		if l.State == deadletter.Removed {
			r.o.Log.Warn("a document that stood in the way was taken off the target; it is kept as a dead letter", "ns", l.NS,
				"documentId", bsonraw.IDText(l.DocID), "for", bsonraw.IDText(g.ID), "position", g.at, "in", deadletter.Where)
		}
	}
	if g.letter != nil {
		r.repaired(g)
		r.o.Letters.Forgotten(*g.letter, true)
	}
}
