package resolve

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/sink/mongo/write"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
)

// round resolves what waits at one barrier, over its own connection.
type round struct {
	*Resolver
	w     *write.Writer
	b     Barrier
	carry []*Document     // documents that stay parked
	added map[string]bool // documents that inTheWay has found, by parkID
	stop  error           // the first conflict that ends the job, with the others
}

func (r *Resolver) begin(b Barrier) *round {
	return &round{Resolver: r, w: r.o.Writers.New(), b: b, added: map[string]bool{}}
}

// Resolve writes parked documents. Everything before the barrier is on the target, so their final states
// are consistent. It writes them in order, repeatedly while that helps, and then replaces documents that
// trade keys in a circle in one transaction.
//
// A write that is still refused is a conflict, which policy decides. But in the overlap, the document
// that holds the key may be ahead and later give it up. Such documents are returned in carry, unless the
// barrier must decide.
func (r *Resolver) Resolve(ctx context.Context, b Barrier, docs []*Document) (carry []*Document, err error) {
	if len(docs) == 0 {
		return nil, nil
	}
	r.parked.Add(int64(len(docs)))
	round := r.begin(b)
	defer round.w.Release()
	docs = deletesFirst(docs)
	for stuck := false; len(docs) > 0; {
		left, err := round.attempt(ctx, docs, stuck)
		var more []*Document
		if err == nil && stuck && len(left) == len(docs) {
			if more = round.inTheWay(ctx, left); len(more) == 0 {
				left, err = round.together(ctx, left)
			}
		}
		if err != nil {
			return round.carry, cmp.Or(round.stop, err)
		}
		stuck = stuck || len(left) == len(docs)
		docs = more
		for _, g := range left {
			docs = append(docs, g.Document)
		}
	}
	return round.carry, round.stop
}

// mostOthers bounds ConflictError.Others.
const mostOthers = 1000

// stopped keeps the first conflict that ends the job until all others are known: after a restart the
// target may have everything that was sent except the documents of conflicts.
func (r *round) stopped(err error) error {
	var c, first *ConflictError
	if r.o.Letters == nil || !errors.As(err, &c) || c.Since.IsZero() {
		return err
	}
	if r.stop == nil {
		r.stop = err
	} else if errors.As(r.stop, &first) && len(first.Others) < mostOthers {
		first.Others = append(first.Others, c)
	}
	return nil
}

// inTheWay returns documents that hold keys of left and are due for a decision, each once.
func (r *round) inTheWay(ctx context.Context, left []*goal) (more []*Document) {
	if !r.b.over() {
		return nil
	}
	known := map[string]bool{}
	for _, g := range left {
		known[parkID(g.Target, g.ID)] = true
	}
	for _, g := range left {
		if g.duplicate == nil {
			continue
		}
		holder := r.holderID(ctx, g, g.duplicate)
		if holder.Type == 0 {
			continue
		}
		d := &Document{Target: g.Target, ID: bsonraw.FromRaw(holder)}
		if id := parkID(d.Target, d.ID); !known[id] && !r.added[id] && r.o.Letters.IsDue(d.Target.NS, d.ID, r.b.Fed) {
			r.added[id] = true
			more = append(more, d)
		}
	}
	return more
}

// ResolveDue decides about disputed documents that the target has caught up with.
func (r *Resolver) ResolveDue(ctx context.Context, b Barrier) error {
	const some = 100
	b.Must = true
	for !b.Applied.Before(b.Overlap) && r.o.Letters.AnyDue(b.Applied) {
		due, err := r.o.Letters.Due(ctx, b.Applied, some)
		if err != nil {
			return err
		}
		var docs []*Document
		for _, l := range due {
			t, err := r.target(ctx, l.Origin)
			if err != nil {
				return err
			}
			docs = append(docs, &Document{Target: t, ID: l.DocID})
		}
		if _, err := r.Resolve(ctx, b, docs); err != nil {
			return err
		}
		for _, l := range due {
			r.o.Letters.Tried(l.NS, l.DocID)
		}
	}
	return nil
}

// deletesFirst puts deletions first: a written document may have an equal _id.
func deletesFirst(docs []*Document) []*Document {
	deletes := slices.DeleteFunc(slices.Clone(docs), func(d *Document) bool { return !d.deleted() })
	return append(deletes, slices.DeleteFunc(slices.Clone(docs), (*Document).deleted)...)
}

// attempt tries each document once and returns those that meet a duplicate key. Without keep, only one
// reply's documents are in memory.
func (r *round) attempt(ctx context.Context, docs []*Document, keep bool) (left []*goal, err error) {
	for len(docs) > 0 && err == nil {
		n := 1
		for n < len(docs) && docs[n].Target == docs[0].Target && docs[n].deleted() == docs[0].deleted() {
			n++
		}
		group, ids := docs[:n], make([]bsonraw.ID, n)
		for i, d := range group {
			ids[i] = d.ID
		}
		err = r.w.Read(ctx, docs[0].Target, ids, bson.D{}, func(some []int, docs []bson.Raw) error {
			var todo []*goal
			for i, doc := range docs {
				g, err := r.aim(ctx, group[some[i]], doc)
				if err = r.stopped(err); err == nil && g != nil && g.refused != nil {
					g, err = nil, r.refuse(ctx, g, g.refused)
				}
				if err != nil {
					return err
				}
				if g != nil {
					todo = append(todo, g)
				}
			}
			again, err := r.pass(ctx, todo)
			for _, g := range again {
				if !keep {
					g = &goal{Document: g.Document}
				}
				left = append(left, g)
			}
			return err
		})
		docs = docs[n:]
	}
	return left, err
}

// together replaces documents in one transaction. If one is refused, it returns the others.
func (r *round) together(ctx context.Context, todo []*goal) ([]*goal, error) {
	todo, err := r.refuseCapped(ctx, todo)
	if err != nil || len(todo) == 0 {
		return nil, err
	}
	docs := make([]write.Document, len(todo))
	for i, g := range todo {
		docs[i] = g.document()
	}
	at, refused, err := r.w.Exchange(ctx, docs)
	switch {
	case err != nil:
		return nil, err
	case refused == nil:
		return nil, r.close(ctx, todo...)
	}
	err = r.refuse(ctx, todo[at], refusedBy(*refused))
	return append(todo[:at:at], todo[at+1:]...), err
}

// refuseCapped refuses duplicates in capped collections, where nothing can be replaced.
func (r *round) refuseCapped(ctx context.Context, left []*goal) (others []*goal, err error) {
	for _, g := range left {
		if !g.Target.Capped || g.duplicate == nil {
			others = append(others, g)
		} else if err := r.refuse(ctx, g, g.duplicate); err != nil {
			return nil, err
		}
	}
	return others, nil
}

// close settles the dead letters of documents that were written.
func (r *round) close(ctx context.Context, list ...*goal) error {
	for _, g := range list {
		if g.letter == nil {
			continue
		}
		r.repaired(g)
		how := "written at " + g.at.String()
		if g.doc == nil {
			how = "deleted on the source at " + g.at.String()
		}
		if err := r.o.Letters.Settle(ctx, *g.letter, how); err != nil {
			return err
		}
	}
	return nil
}

// maxDocument is the largest document that a client may write.
const maxDocument = 16 << 20

// aim replays a document's parked operations on the target's state, or on its dead letter if it is
// disputed. It returns nil if there is nothing to write.
func (r *round) aim(ctx context.Context, d *Document, doc bson.Raw) (*goal, error) {
	g := &goal{Document: d, there: bsonraw.IDOf(doc).Equal(d.ID)} // in the same bytes
	if why := d.refused; why != nil && (why.cause != deadletter.CauseRefused || d.Target.Capped) && !d.done(doc) {
		g.refused = why // of the others, the server is asked again
	}
	l, disputed, err := r.o.Letters.Read(ctx, d.Target.NS, d.ID)
	if err != nil {
		return nil, err
	}
	if disputed {
		g.letter, g.doc, g.at, g.until = &l, l.Doc, l.At, l.Until
	} else if g.there {
		g.doc = doc
	}
	for _, o := range d.Steps {
		g.overlap = o.Overlap
		if disputed && o.At.Before(l.At) {
			continue // in the letter already
		}
		o.Overlap = o.Overlap || disputed && (o.At == l.At || !l.Until.Before(o.At))
		g.at = o.At
		why, err := r.replay(g, &o)
		if err != nil {
			return nil, err
		}
		if why != nil {
			return r.reread(ctx, g, why)
		}
	}
	if g.overlap && len(g.doc) > maxDocument {
		g.refused = &refusal{cause: deadletter.CauseRefused,
			text: "the document would be larger than 16 MB, for the target has what the source set later"}
		return g, nil
	}
	if g.held() {
		g.whole, g.same = true, g.there && bytes.Equal(doc, g.doc)
	}
	return r.look(ctx, g)
}

// replay applies one parked operation. It returns a refusal if the document does not fit.
func (r *round) replay(g *goal, o *fold.Op) (*refusal, error) {
	if o.Wall != 0 && (g.doc == nil || o.Spares(g.Target, g.doc)) {
		r.skipped.remove(Key(g.Target.NS, o.ID))
		return nil, nil
	}
	switch o.Kind {
	case stream.Delete:
		g.doc = nil
		r.skipped.remove(Key(g.Target.NS, o.ID))
	case stream.Update:
		return r.replayUpdate(g, o)
	default:
		if o.Kind == stream.Insert && o.Untried && !o.Overlap && g.doc != nil && !r.o.Overwrite {
			return &refusal{cause: deadletter.CauseID, text: textTaken}, nil
		}
		if g.doc != nil || o.Kind != stream.Replace || !g.Target.Stale { // else its insert was left out
			g.doc, g.whole = o.Doc, o.Kind == stream.Put
		}
	}
	return nil, nil
}

func (r *round) replayUpdate(g *goal, o *fold.Op) (*refusal, error) {
	if g.doc == nil && o.Upsert {
		g.doc = o.Made()
	}
	if g.doc == nil {
		if !r.excused(g.Target, o) {
			return &refusal{cause: deadletter.CauseMissing, text: textMissing}, nil
		}
		r.skip(g.Target, o)
		return nil, nil
	}
	apply := delta.Apply
	if o.Overlap {
		apply = delta.ApplyAhead
	}
	out, skipped, err := apply(nil, g.doc, o.Delta)
	if err != nil {
		return nil, o.Fail("update", g.Target.NS, err)
	}
	if skipped > 0 && !o.Overlap && !g.Target.Stale {
		return &refusal{cause: deadletter.CauseShape, text: textShape}, nil
	}
	r.skips.Add(int64(skipped))
	g.doc = out
	return nil, nil
}

// askSource reads a document from the source, in a state at or after a position.
func (r *Resolver) askSource(ctx context.Context, t *fold.Target, id bsonraw.ID, at mongo.OpTime) (Reread, error) {
	re, err := r.o.Source.Reread(ctx, t.Origin, id, at)
	if err != nil {
		return re, fmt.Errorf("read %s, _id %s, from the source: %w", t.NS, bsonraw.IDText(id), err)
	}
	return re, nil
}

// reread reads the document from the source if the operations do not fit the target's. If the source has
// none, its deletion follows.
func (r *round) reread(ctx context.Context, g *goal, why *refusal) (*goal, error) {
	if !r.lenient() || r.o.Source.Reread == nil {
		return nil, r.stopError(ctx, g, why)
	}
	now, err := r.askSource(ctx, g.Target, g.ID, g.at)
	switch {
	case err != nil:
		return nil, err
	case now.Gone:
		return nil, r.goneLetter(ctx, g, why)
	case now.Doc == nil:
		r.skips.Add(1)
		return nil, nil
	}
	g.doc, g.at, g.until, g.refused, g.overlap = now.Doc, now.From, now.Until, why, false
	return g, nil
}

// goneLetter keeps a document that cannot be reread. The drop of its collection settles it.
func (r *round) goneLetter(ctx context.Context, g *goal, why *refusal) error {
	g.doc = nil
	l := g.asLetter(why)
	l.State, l.Reason = deadletter.Open, why.text+"; the source has dropped the collection since, "+
		"so the document cannot be read any more; the drop follows"
	r.o.Log.Info("a document cannot be brought up to date: its collection is gone from the source, and its drop follows",
		"ns", g.Target.NS, "documentId", bsonraw.IDText(g.ID), "position", g.at, "reason", why.text)
	return r.o.Letters.Write(ctx, l)
}

// look decides what must not be written: documents that are ahead of the stream, already there, or
// blocked by a foreign document or a capped collection.
func (r *round) look(ctx context.Context, g *goal) (*goal, error) {
	switch {
	case r.ahead(g) && (g.held() || g.refused == nil && g.doc != nil): // a held one may be a deletion
		g.refused = refusalOf(g.letter)
		return g, nil
	case g.held() && g.same:
		return nil, r.close(ctx, g)
	case g.refused != nil && g.doc == nil:
		return nil, nil // ours is gone again
	case g.letter == nil || g.refused != nil || !g.Target.Capped && !g.letter.Cause.Foreign():
		return g, nil
	}
	var there bson.Raw
	var err error
	if !g.Target.Capped {
		there, err = r.w.ReadOne(ctx, g.Target, g.ID)
	}
	if err != nil {
		return nil, err
	}
	if g.doc == nil || bytes.Equal(there, g.doc) {
		return nil, r.close(ctx, g)
	}
	if there != nil || g.Target.Capped {
		g.refused = refusalOf(g.letter)
	}
	return g, nil
}

// pass writes each document once and returns those that meet a duplicate key.
func (r *round) pass(ctx context.Context, todo []*goal) (left []*goal, err error) {
	var puts []*goal
	for _, g := range todo {
		switch {
		case g.doc == nil:
			if err := r.delete(ctx, g); err != nil {
				return nil, err
			}
		case write.Dollar(g.doc):
			left = append(left, g) // only the transaction can write it
		default:
			puts = append(puts, g)
		}
	}
	for len(puts) > 0 {
		n := 1
		for n < len(puts) && puts[n].Target == puts[0].Target {
			n++
		}
		again, err := r.put(ctx, puts[:n])
		if err != nil {
			return nil, err
		}
		left, puts = append(left, again...), puts[n:]
	}
	return left, nil
}

// delete deletes the document, but not another one with an equal _id.
func (r *round) delete(ctx context.Context, g *goal) error {
	if g.there {
		ops := []fold.Op{{Kind: stream.Delete, ID: g.ID, At: g.at, Overlap: true}}
		if _, err := r.w.Write(ctx, g.Target, ops); err != nil {
			return err
		}
	}
	return r.close(ctx, g)
}

// put writes documents of one collection and returns those that meet a duplicate key.
func (r *round) put(ctx context.Context, goals []*goal) (left []*goal, err error) {
	ops, of := make([]*fold.Op, len(goals)), map[*fold.Op]*goal{}
	for i, g := range goals {
		// A sharded target may have it in two places.
		ops[i] = &fold.Op{Kind: stream.Put, ID: g.ID, Doc: g.doc, At: g.at, Overlap: true}
		of[ops[i]] = g
	}
	results, err := r.w.Put(ctx, goals[0].Target, ops)
	if err != nil {
		return nil, err
	}
	for _, res := range results {
		g := of[res.Op]
		again, err := r.putFailed(ctx, g, res)
		if err != nil {
			return nil, err
		}
		if again {
			left = append(left, g)
		}
		delete(of, res.Op)
	}
	return left, r.close(ctx, slices.Collect(maps.Values(of))...)
}

// putFailed handles a refused write. again reports that a later try may succeed.
func (r *round) putFailed(ctx context.Context, g *goal, res write.Result) (again bool, err error) {
	switch {
	case res.Outcome == write.Duplicate:
		if res.Reply.Code != 0 {
			g.duplicate = refusedBy(res.Reply)
		}
		return true, nil
	case docwrite.Of(res.Reply) != docwrite.OtherID:
		return false, r.refuse(ctx, g, refusedBy(res.Reply))
	case g.overlap || g.whole || r.o.Overwrite:
		return true, nil // a document whose _id has other bytes is ahead, or was left
	}
	g.refused = &refusal{cause: deadletter.CauseID, code: res.Reply.Code, text: textTaken}
	return false, r.refuse(ctx, g, g.refused)
}
