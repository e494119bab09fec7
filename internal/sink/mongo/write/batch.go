package write

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/wire"
)

// Outcome says why an operation was not applied.
type Outcome uint8

const (
	Taken     Outcome = iota + 1 // an insert whose _id the target has
	Duplicate                    // a duplicate key, perhaps because of the order alone
	Refused                      // the server does not store such a document, or not with its indexes
	Missing                      // an update that found no document
	Misfit                       // an update that does not fit the document it met
)

// Result is an operation that was not applied. Reply is the server's error, if any.
type Result struct {
	Op      *fold.Op
	Outcome Outcome
	Reply   wire.WriteError
}

// Write sends a batch with each document once: deletes first, to free unique keys, then updates, then
// inserts. It returns the operations that were not applied.
func (w *Writer) Write(ctx context.Context, t *fold.Target, ops []fold.Op) (results []Result, err error) {
	p := &w.plan
	defer p.reset()
	p.fill(ops, t.Key)
	return inTurn(ctx, t, step{p.deletes, w.deletes}, step{p.spared, w.spared}, step{p.updates, w.updates},
		step{p.guarded, w.guarded}, step{p.rewrites, w.rewrite}, step{p.inserts, w.inserts})
}

type step struct {
	list []statement
	send func(context.Context, *fold.Target, []statement) ([]Result, error)
}

func inTurn(ctx context.Context, t *fold.Target, steps ...step) (results []Result, err error) {
	for _, s := range steps {
		more, err := s.send(ctx, t, s.list)
		if err != nil {
			return nil, err
		}
		results = append(results, more...)
	}
	return results, nil
}

// Put writes complete documents, whether they exist or not.
func (w *Writer) Put(ctx context.Context, t *fold.Target, puts []*fold.Op) ([]Result, error) {
	return w.updates(ctx, t, statements(puts))
}

func statements(ops []*fold.Op) []statement {
	list := make([]statement, len(ops))
	for i, o := range ops {
		list[i] = statement{op: o, suspect: true}
	}
	return list
}

// send runs one write command. Error indexes of the reply point into list.
func (w *Writer) send(
	ctx context.Context, name string, t *fold.Target, list []statement, ordered bool,
) (wire.WriteResult, error) {
	c := docwrite.Command{Name: name, DB: t.DB, Coll: t.Coll, Ordered: ordered}
	res, err := w.out.Send(ctx, c, elements(name, t, list))
	if err != nil {
		return res, mongo.Wrap(err, "%s into %s", name, t.NS)
	}
	w.Stats.Statements.Add(int64(len(list)))
	return res, nil
}

// delete sends deletes. An error of any ends the job and is about what.
func (w *Writer) delete(ctx context.Context, what string, t *fold.Target, list []statement) (n int64, err error) {
	res, err := w.send(ctx, "delete", t, list, false)
	if err == nil && len(res.Errors) > 0 {
		e := res.Errors[0]
		err = list[e.Index].op.Fail(what, t.NS, e)
	}
	return res.N, err
}

func elements(command string, t *fold.Target, list []statement) docwrite.Elements {
	return docwrite.Elements{N: len(list), Size: func(i int) int { return list[i].size() },
		Append: func(dst []byte, i int) []byte { return list[i].append(dst, command, t) }}
}

// fitting returns how many statements, at least one, fit into most and limit bytes, and their size.
func fitting(list []statement, most, limit int) (n, size int) {
	return docwrite.Elements{N: len(list), Size: func(i int) int { return list[i].size() }}.Fitting(0, most, limit)
}

// judge splits statements into applied ones and results. It returns an error for one that is not about a
// document.
func judge(
	t *fold.Target, list []statement, failed []wire.WriteError,
) (taken []statement, results []Result, err error) {
	if len(failed) == 0 {
		return list, nil, nil
	}
	bad := make(map[int]bool, len(failed))
	for _, e := range failed {
		o := list[e.Index].op
		r := Result{Op: o, Outcome: Refused, Reply: e}
		switch m := docwrite.Of(e); {
		case m == docwrite.DuplicateID && o.Kind == stream.Insert:
			r.Outcome = Taken
		case m == docwrite.DuplicateID || m == docwrite.DuplicateKey:
			r.Outcome = Duplicate
		case m == docwrite.Misfit && o.Kind == stream.Update:
			r.Outcome = Misfit
		case !m.OfDocument():
			return nil, nil, o.Fail(o.Verb(), t.NS, e)
		}
		bad[e.Index], results = true, append(results, r)
	}
	for i, s := range list {
		if !bad[i] {
			taken = append(taken, s)
		}
	}
	return taken, results, nil
}

func (w *Writer) deletes(ctx context.Context, t *fold.Target, list []statement) ([]Result, error) {
	documents := int64(len(list))
	list, err := w.located(ctx, t, list)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	if !t.Capped && w.o.Target.Info.Kind != mongo.KindSharded {
		list = w.plan.grouped(list)
	}
	res, err := w.send(ctx, "delete", t, list, false)
	if err != nil {
		return nil, err
	}
	for _, e := range res.Errors {
		// What rolls off the source rolls off here by itself.
		if !t.Capped || docwrite.Of(e) != docwrite.NoDelete {
			return nil, list[e.Index].op.Fail("delete", t.NS, e)
		}
	}
	w.Stats.Missing.Add(documents - res.N)
	return nil, nil
}

// spared sends deletions of documents that have not expired, or marks in their place. An unmatched one
// met an expired document or none.
func (w *Writer) spared(ctx context.Context, t *fold.Target, list []statement) ([]Result, error) {
	deletes, marks := split(list, func(s *statement) bool { return s.op.Kind == stream.Delete })
	matched := int64(0)
	deletes, err := w.located(ctx, t, deletes)
	if err == nil {
		matched, err = w.delete(ctx, "delete", t, deletes)
	}
	if err == nil {
		marks, err = w.located(ctx, t, marks)
	}
	if err != nil {
		return nil, err
	}
	res, err := w.send(ctx, "update", t, marks, false)
	if err != nil {
		return nil, err
	}
	_, results, err := judge(t, marks, res.Errors)
	n := int64(len(deletes)+len(marks)-len(results)) - matched - res.N
	if err == nil && n > 0 && t.Left != nil {
		t.Left(n)
	}
	return results, err
}

// updates sends updates and complete documents. It computes updates that do not fit.
func (w *Writer) updates(ctx context.Context, t *fold.Target, list []statement) ([]Result, error) {
	list, results, err := w.special(ctx, t, list)
	if err != nil || len(list) == 0 {
		return results, err
	}
	if err := w.elsewhere(ctx, t, list); err != nil {
		return nil, err
	}
	if list, err = w.located(ctx, t, list); err != nil {
		return nil, err
	}
	res, err := w.sendUpdates(ctx, t, list)
	if err != nil {
		return nil, err
	}
	list, failed, err := judge(t, list, res.Errors)
	if err != nil {
		return nil, err
	}
	var again, unmatched []statement
	for _, r := range failed {
		if r.Outcome == Misfit {
			again = append(again, statement{op: r.Op})
		} else {
			results = append(results, r)
		}
	}
	// In a filtered collection updates may be of documents that are not there.
	if int64(len(list)) > res.N && !(t.Stale || t.Partial && t.Key.IsZero()) {
		unmatched = list
	}
	more, err := inTurn(ctx, t, step{unmatched, w.missing}, step{list, w.repair}, step{again, w.rewrite})
	return append(results, more...), err
}

// missing finds the updates that matched no document.
func (w *Writer) missing(ctx context.Context, t *fold.Target, list []statement) (results []Result, err error) {
	list = slices.DeleteFunc(slices.Clone(list), func(s statement) bool { return s.op.Kind == stream.Put })
	err = w.Read(ctx, t, ids(list), OnlyIDs(), func(some []int, docs []bson.Raw) error {
		for i, doc := range docs {
			if doc == nil {
				results = append(results, Result{Op: list[some[i]].op, Outcome: Missing})
			}
		}
		return nil
	})
	return results, err
}

// guarded sends updates that require the fields they insert to be absent. If any did not match, it
// computes all of them, which repeats the others.
func (w *Writer) guarded(ctx context.Context, t *fold.Target, list []statement) ([]Result, error) {
	list, err := w.located(ctx, t, list)
	if err != nil {
		return nil, err
	}
	res, err := w.send(ctx, "update", t, list, false)
	if err != nil || res.N == int64(len(list)) {
		return nil, err
	}
	return w.rewrite(ctx, t, list)
}

func (w *Writer) inserts(ctx context.Context, t *fold.Target, list []statement) ([]Result, error) {
	res, err := w.sendInserts(ctx, t, list, false)
	if err != nil {
		return nil, err
	}
	taken, results, err := judge(t, list, res.Errors)
	if err != nil {
		return nil, err
	}
	if int64(len(taken)) != res.N {
		n := res.N + int64(len(res.Errors))
		return nil, fmt.Errorf("insert into %s: the server answered for %d of %d documents", t.NS, n, len(list))
	}
	more, err := w.repair(ctx, t, taken)
	return append(results, more...), err
}

// InsertOrdered inserts documents in order, up to and including the first refused one. n counts the
// tried ones; the last result is of that one.
func (w *Writer) InsertOrdered(
	ctx context.Context, t *fold.Target, ops []*fold.Op,
) (n int, results []Result, err error) {
	list := statements(ops)
	res, err := w.sendInserts(ctx, t, list, true)
	if err != nil {
		return 0, nil, err
	}
	if n = len(list); len(res.Errors) > 0 {
		n = res.Errors[0].Index + 1
	}
	taken, refused, err := judge(t, list[:n], res.Errors)
	if err == nil {
		results, err = w.repair(ctx, t, taken)
	}
	return n, append(results, refused...), err
}

// Reinsert replaces a document with an equal _id in other bytes, which no update can change.
func (w *Writer) Reinsert(ctx context.Context, t *fold.Target, o *fold.Op) ([]Result, error) {
	if _, err := w.delete(ctx, "delete", t, []statement{{op: o}}); err != nil {
		return nil, err
	}
	_, results, err := w.InsertOrdered(ctx, t, []*fold.Op{o})
	return results, err
}

// sendInserts is send for inserts. It asks the target whether an unclear error is a duplicate _id.
func (w *Writer) sendInserts(
	ctx context.Context, t *fold.Target, list []statement, ordered bool,
) (res wire.WriteResult, err error) {
	if err = w.elsewhere(ctx, t, list); err == nil {
		res, err = w.send(ctx, "insert", t, list, ordered)
	}
	if err == nil {
		err = docwrite.FindDuplicates(res.Errors, func(i int) (bool, error) {
			doc, err := w.ReadOne(ctx, t, list[i].op.ID)
			return doc != nil, err
		})
	}
	return res, err
}
