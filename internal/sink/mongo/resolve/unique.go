package resolve

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/state/deadletter"
)

// Clash is a build of a unique index of target namespace NS that met documents
// with one key.
type Clash struct {
	NS, Index string
	Docs      []bson.Raw
	Reason    string // of the server
}

// Untangle makes room for a unique index on the target whose build met a
// duplicate key. As the source has the index, all but one of
// them are not what the source has: with Overwrite they are removed, with Skip
// they stay and the one goes. Everything fed must be drained. An error says
// that the policy is to stop, or that it cannot be told which is which.
func (r *Resolver) Untangle(ctx context.Context, b Barrier, dup Clash) error {
	if err := r.o.Source.whole(ctx); err != nil {
		return err
	}
	docs := dup.Docs
	c := &ConflictError{Op: "build unique index " + dup.Index, NS: dup.NS, Index: dup.Index, At: b.Applied, Reason: dup.Reason}
	if len(docs) > 0 {
		c.ID = bsonraw.IDText(bsonraw.IDOf(docs[0]))
		var others []string
		for _, d := range docs[1:] {
			others = append(others, bsonraw.IDText(bsonraw.IDOf(d)))
		}
		c.Other = strings.Join(others, ", ")
		c.Reason = fmt.Sprintf("_id %s on the target has the same key: %s", c.Other, dup.Reason)
	}
	stop := mongo.WithHint(c, hintForeign)
	if !r.lenient() || len(docs) < 2 || r.o.Source.Reread == nil {
		return stop
	}
	t, err := r.o.Target(ctx, dup.NS)
	if err != nil {
		return err
	}
	ours, theirs, err := r.separate(ctx, t, b.Applied, docs)
	if err != nil {
		return err
	}
	if len(ours) > 1 || len(theirs) == 0 || len(ours) == 0 && r.o.OnConflict == deadletter.Skip {
		c.Undecided = true
		return stop
	}
	round := r.begin(b)
	defer round.w.Release()
	if r.o.OnConflict == deadletter.Overwrite {
		kept := docs[0]
		if len(ours) > 0 {
			kept = ours[0]
		}
		g := &goal{Document: &Document{Target: t, ID: bsonraw.IDOf(kept)}, at: c.At}
		return round.takeOff(ctx, g, theirs, func(context.Context) ([]deadletter.Letter, error) { return nil, nil })
	}
	return round.withdraw(ctx, t, ours[0], theirs[0], c)
}

// separate tells the document that is as the source has it from those that
// the source does not have, or not like that. Of a collection whose drop follows
// it takes any for ours: the index is all that matters until then.
func (r *Resolver) separate(ctx context.Context, t *fold.Target, at mongo.OpTime, docs []bson.Raw) (ours, theirs []bson.Raw, err error) {
	var same, other []bson.Raw
	for _, d := range docs {
		now, err := r.askSource(ctx, t, bsonraw.IDOf(d), at)
		switch {
		case err != nil:
			return nil, nil, err
		case now.Gone:
			return docs[:1], docs[1:], nil
		case now.Doc == nil:
			theirs = append(theirs, d)
		case bytes.Equal(now.Doc, d):
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

// withdraw takes our document off the target, where another one keeps its
// place.
func (r *round) withdraw(ctx context.Context, t *fold.Target, ours, theirs bson.Raw, c *ConflictError) error {
	g := &goal{Document: &Document{Target: t, ID: bsonraw.IDOf(ours)}, at: c.At}
	err := r.takeOff(ctx, g, nil, func(ctx context.Context) ([]deadletter.Letter, error) {
		l := deadletter.Letter{NS: t.NS, State: deadletter.Open, Cause: deadletter.CauseKey, DocID: g.ID, Doc: ours, At: c.At,
			Reason: c.Reason, Code: mongo.CodeDuplicateKey, Index: c.Index, Other: theirs.Lookup("_id")}
		return []deadletter.Letter{l}, r.w.DeleteIn(ctx, g.document())
	})
	if err != nil {
		return err
	}
	r.o.Log.Warn("a document has no place beside another one under a unique index; it is kept as a dead letter", "ns", t.NS, "documentId", bsonraw.IDText(g.ID),
		"index", c.Index, "in", mongo.StateDB+"."+deadletter.Collection)
	return nil
}
