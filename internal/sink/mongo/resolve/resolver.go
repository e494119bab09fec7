// Package resolve decides about operations that the target does not take at once. It parks them until a
// barrier and retries them in order. Then policy decides: dead letters, overwriting, or the end of the
// job.
//
// It writes through package write, except in transactions with dead letters. Its caller drains first.
package resolve

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/sink/mongo/write"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
)

// Policy decides about documents that the target refuses.
type Policy struct {
	Overwrite bool // replaces documents that others wrote on the target (merge mode)
	// OnConflict decides about refused documents, which Letters keep. Without Letters each refusal is an
	// error.
	OnConflict deadletter.Policy
	Letters    *deadletter.Store
}

// Source answers questions about the source's documents. Its functions may be nil.
type Source struct {
	// Reread reads a document in a state at or after a position.
	Reread func(ctx context.Context, from stream.Origin, id bsonraw.ID, at mongo.OpTime) (Reread, error)
	// Has reports which documents, by their _ids, the source has at or after a position.
	Has func(ctx context.Context, from stream.Origin, ids []bson.RawValue, at mongo.OpTime) ([]bool, error)
	// Whole returns an error if the stream turns out to be incomplete, so that conflicts do not count.
	Whole func(ctx context.Context) error
}

func (s Source) whole(ctx context.Context) error {
	if s.Whole == nil {
		return nil
	}
	return s.Whole(ctx)
}

// Options configure a Resolver.
type Options struct {
	Policy
	Source  Source
	Writers *write.Writers
	Cluster *mongo.Cluster // the target
	// Target describes a collection of the target.
	Target  func(ctx context.Context, ns string) (*fold.Target, error)
	Skipped []stream.Place // what Resolver.Skipped returned in an earlier run
	Log     *slog.Logger
}

// Resolver decides for all partitions of one target. What Parked calls is safe for concurrent use. The
// rest is for one goroutine, at barriers.
type Resolver struct {
	o       Options
	skipped *skipped
	skips   atomic.Int64
	parked  atomic.Int64
	repairs map[string]Repaired // by parkID, of those that nobody has asked about
}

func New(o Options) *Resolver {
	return &Resolver{o: o, skipped: newSkipped(o.Skipped), repairs: map[string]Repaired{}}
}

// Skips returns how many updates were skipped, as their documents or paths were gone.
func (r *Resolver) Skips() int64 { return r.skips.Load() }

// Resolved returns how many parked documents were tried at barriers.
func (r *Resolver) Resolved() int64 { return r.parked.Load() }

func (r *Resolver) target(ctx context.Context, of stream.Origin) (*fold.Target, error) {
	t, err := r.o.Target(ctx, of.NS)
	if err == nil {
		t.Origin = of
	}
	return t, err
}

// lenient reports that a refusal does not end the job.
func (r *Resolver) lenient() bool {
	return r.o.Letters != nil && (r.o.OnConflict == deadletter.Skip || r.o.OnConflict == deadletter.Overwrite)
}

// Due reports that dead letters or skipped documents can be decided at a barrier.
func (r *Resolver) Due(applied mongo.OpTime) bool {
	return !r.skipped.empty() || r.o.Letters.AnyDue(applied)
}

// Barrier is a moment at which everything fed is on the target or parked.
type Barrier struct {
	Fed     mongo.OpTime // up to where everything was fed
	Applied mongo.OpTime // up to where nothing is parked either
	Overlap mongo.OpTime // until where the target may be ahead
	// RereadUntil: the source repairs updates that find no document up to here; later ones are
	// conflicts.
	RereadUntil mongo.OpTime
	Must        bool // no document may stay parked
}

// over reports that the target is no longer ahead.
func (b Barrier) over() bool { return !b.Fed.Before(b.Overlap) }

// Repaired is the result of a repair.
type Repaired string

// Results of a repair.
const (
	RepairNothing Repaired = ""        // it is not known here
	RepairWritten Repaired = "written" // as the source has it
	RepairDeleted Repaired = "deleted" // the source has none
	RepairSame    Repaired = "same"    // the target had it so
)

// Hold keeps a document of the source, or its absence, as a dead letter to repair the target's. It is
// written when the stream has passed everything that may be in it. Everything fed must be drained. why
// says why there is no repair.
func (r *Resolver) Hold(ctx context.Context, t *fold.Target, l deadletter.Letter) (why string, err error) {
	switch {
	case t.Capped:
		return "a capped collection takes a document at its end only, where it does not belong", nil
	case !t.Key.IsZero():
		return "its collection is sharded on the target, where nothing is repaired", nil
	case l.Doc == nil && !deadletter.Nameable(l.DocID):
		return "its _id cannot be noted", nil
	case l.Doc != nil && !bsonraw.IDOf(l.Doc).Equal(l.DocID):
		return "the source has it under an _id that is equal but has other bytes: verify again", nil
	}
	l.NS, l.State, l.Cause = t.NS, deadletter.Held, deadletter.CauseRepair
	l.Reason = "to be as the source has it, on request"
	return "", r.o.Letters.Write(ctx, l)
}

func (r *Resolver) repaired(g *goal) {
	if !g.held() {
		return
	}
	how := RepairWritten
	switch {
	case g.same, g.doc == nil && !g.there:
		how = RepairSame
	case g.doc == nil:
		how = RepairDeleted
	}
	r.repairs[parkID(g.Target, g.ID)] = how
}

// Repaired returns the result of a repair, once.
func (r *Resolver) Repaired(ns string, id bsonraw.ID) Repaired {
	key := parkID(fold.NewTarget(ns), id)
	how := r.repairs[key]
	delete(r.repairs, key)
	return how
}

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
			DocID: g.ID, Doc: ours, At: c.At, Reason: c.Reason, Code: mongo.CodeDuplicateKey, Index: c.Index,
			Other: theirs.Lookup("_id")}
		return []deadletter.Letter{l}, r.w.DeleteIn(ctx, g.document())
	})
	if err != nil {
		return err
	}
	r.o.Log.Warn("a document has no place beside another one under a unique index; it is kept as a dead letter",
		"ns", t.NS, "documentId", bsonraw.IDText(g.ID), "index", c.Index, "in", deadletter.Where)
	return nil
}
