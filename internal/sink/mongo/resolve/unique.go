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
	"github.com/millrace/millrace/internal/stream"
)

// Clash is a unique index build on target namespace NS that met documents with one key.
type Clash struct {
	NS, Index string
	Docs      []bson.Raw
	Reason    string // of the server
	Partial   bool   // shards of the source may lack the index, so that the source may have the duplicates, too
}

// Untangle makes room for a unique index whose build met a duplicate key. The source has the index, so
// all but one of the documents are wrong. Overwrite removes them, Skip removes the one. Everything fed
// must be drained. Untangle returns an error if the policy is to stop, if it cannot tell which is right,
// or if the source has several of them and the index is Partial.
func (r *Resolver) Untangle(ctx context.Context, b Barrier, dup Clash) error {
	if err := r.o.Source.whole(ctx); err != nil {
		return err
	}
	docs := dup.Docs
	c := &ConflictError{Op: "build unique index " + dup.Index, NS: dup.NS, Index: dup.Index, At: b.Applied,
		Reason: dup.Reason}
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
	if !r.lenient() && !dup.Partial || len(docs) < 2 || r.o.Source.Reread == nil {
		return stop
	}
	t, err := r.o.Target(ctx, dup.NS)
	if err != nil {
		return err
	}
	of, err := r.separate(ctx, t, b.Applied, docs)
	if err != nil {
		return err
	}
	switch {
	case !dup.Partial:
	case len(of.same)+len(of.other) > 1:
		c.Sourced = true
		return stop
	case of.gone, b.Applied.Before(of.until): // the source may have had the others here
		c.Undecided = true
		return stop
	}
	if !r.lenient() {
		return stop
	}
	ours, theirs := of.sides()
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

// separated are target documents that equal the source's, differ from it, or are absent there.
type separated struct {
	same, other, absent []bson.Raw
	until               mongo.OpTime // those that are not there went up to here, or earlier
	gone                bool         // with the collection
}

// sides returns the source's documents and the others. If one equals the source's, those that differ are
// foreign.
func (s separated) sides() (ours, theirs []bson.Raw) {
	if len(s.same) == 1 {
		return s.same, append(s.absent, s.other...)
	}
	return append(s.same, s.other...), s.absent
}

// separate compares documents with the source's. If a drop of the collection follows, any of them will
// do.
func (r *Resolver) separate(
	ctx context.Context, t *fold.Target, at mongo.OpTime, docs []bson.Raw,
) (of separated, err error) {
	for _, d := range docs {
		now, err := r.askSource(ctx, t, bsonraw.IDOf(d), at)
		switch {
		case err != nil:
			return separated{}, err
		case now.Gone:
			return separated{same: docs[:1], absent: docs[1:], gone: true}, nil
		case now.Doc == nil:
			of.absent, of.until = append(of.absent, d), mongo.MaxOpTime(of.until, now.Until)
		case bytes.Equal(now.Doc, d):
			of.same = append(of.same, d)
		default:
			of.other = append(of.other, d)
		}
	}
	return of, nil
}

// withdraw removes our document, as a foreign one keeps its place.
func (r *round) withdraw(ctx context.Context, t *fold.Target, ours, theirs bson.Raw, c *ConflictError) error {
	g := &goal{Document: &Document{Target: t, ID: bsonraw.IDOf(ours)}, at: c.At}
	err := r.takeOff(ctx, g, nil, func(ctx context.Context) ([]deadletter.Letter, error) {
		l := deadletter.Letter{Origin: stream.Origin{NS: t.NS}, State: deadletter.Open, Cause: deadletter.CauseKey,
			DocID: g.ID, Doc: ours, At: c.At, Reason: c.Reason, Code: mongo.CodeDuplicateKey, Index: c.Index, Other: theirs.Lookup("_id")}
		return []deadletter.Letter{l}, r.w.DeleteIn(ctx, g.document())
	})
	if err != nil {
		return err
	}
	r.o.Log.Warn("a document has no place beside another one under a unique index; it is kept as a dead letter",
		"ns", t.NS, "documentId", bsonraw.IDText(g.ID), "index", c.Index, "in", deadletter.Where)
	return nil
}
