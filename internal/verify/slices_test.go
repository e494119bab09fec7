package verify

import (
	"context"
	"slices"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// newWorker is a worker of an engine whose findings are at hand.
func newWorker(e *Engine) (*worker, *findings) {
	f := newFindings(e.o.MaxDifferences)
	return &worker{e: e, f: f, rc: newRechecker(e, f)}, f
}

// sliceIDs reads the slices between cuts and returns their ids, slice by slice,
// in the order of storage.
func sliceIDs(t *testing.T, w *worker, s *side, cuts []int64) [][]string {
	t.Helper()
	var mu sync.Mutex
	found := map[int64][]string{}
	err := eachSlice(t.Context(), cuts, func(ctx context.Context, sl slice) error {
		var ids []string
		err := w.scanSlice(ctx, s, sl, true, func(page []sliced) error {
			for _, doc := range page {
				key, _ := appendID(nil, doc.doc)
				ids = append(ids, string(key))
			}
			return nil
		})
		mu.Lock()
		defer mu.Unlock()
		found[sl.after] = ids
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	out := [][]string{found[0]}
	for _, c := range cuts {
		out = append(out, found[c])
	}
	return out
}

// Slices in record order hold every document once, those included that come to
// the collection's end after it was cut; a difference on the first and on the
// last document of every slice is found.
func TestRecordSlices(t *testing.T) {
	c := cluster(t, "6.0", "rs:1")
	r := seeded(t)
	b := newBed(t, c, c)
	var docs []bson.Raw
	for _, id := range idsOf(900, makeID) {
		docs = append(docs, makeDoc(t, r, id))
	}
	r.Shuffle(len(docs), func(i, j int) { docs[i], docs[j] = docs[j], docs[i] })
	insert(t, c, b.pair.SourceNS, docs[:800]...)
	e := New(c, c, Options{Method: Digest, RangeBytes: 2000})
	w, f := newWorker(e)
	col := newCollection(e, b.pair)
	if _, err := col.tasks(t.Context()); err != nil {
		t.Fatal(err)
	}
	var cuts []int64
	for range 10 { // each gives few
		more, err := recordCuts(t.Context(), &col.src, e.o.RangeBytes)
		if err != nil {
			t.Fatal(err)
		}
		cuts = append(cuts, more...)
	}
	slices.Sort(cuts)
	if cuts = slices.Compact(cuts); len(cuts) < 3 {
		t.Fatalf("only %d cuts", len(cuts))
	}
	insert(t, c, b.pair.SourceNS, docs[800:]...) // the end moves after the cutting

	seen := map[string]int{}
	edges := map[string]bool{}
	for i, ids := range sliceIDs(t, w, &col.src, cuts) {
		if len(ids) == 0 {
			t.Errorf("slice %d of %d is empty", i, len(cuts)+1)
			continue
		}
		for _, id := range ids {
			seen[id]++
		}
		edges[ids[0]], edges[ids[len(ids)-1]] = true, true
	}
	want := map[string]expectation{}
	var target []bson.Raw
	for _, doc := range docs {
		k, _ := appendID(nil, doc)
		if seen[string(k)] != 1 {
			t.Errorf("_id %s is in %d slices", doc.Lookup("_id"), seen[string(k)])
		}
		if edges[string(k)] {
			want[string(k)] = expectation{Content, "edge"}
			doc = replaceField(doc, "zero", nan(1))
		}
		target = append(target, doc)
	}
	r.Shuffle(len(target), func(i, j int) { target[i], target[j] = target[j], target[i] })
	insert(t, c, b.pair.TargetNS, target...)
	var err error
	if col.dst, err = describe(t.Context(), c, b.pair.TargetNS); err != nil {
		t.Fatal(err)
	}

	d := newDigester(w, col)
	if err := d.sum(t.Context(), &col.src, &d.src, cuts, &e.c.sourceDocs); err != nil {
		t.Fatal(err)
	}
	if err := d.sum(t.Context(), &col.dst, &d.dst, nil, &e.c.targetDocs); err != nil {
		t.Fatal(err)
	}
	if err := d.lookInto(t.Context(), sideCuts{src: cuts}); err != nil {
		t.Fatal(err)
	}
	checkFound(t, f.report(col.began, false, []*collection{col}), want)
	for range 3 { // with cuts of its own
		rep, _ := b.run(Options{Method: Digest, RangeBytes: 2000})
		checkFound(t, rep, want)
	}
}
