package verify

import (
	"context"
	"slices"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// newWorker is a worker of an engine whose findings are at hand.
func newWorker(e *Engine) (*worker, *findings) {
	f := newFindings(e.o.MaxDifferences)
	return &worker{e: e, f: f, rc: newRechecker(e, f)}, f
}

// sliceIDs reads the slices between cuts and returns their ids, slice by slice,
// in the order of storage.
func sliceIDs(t *testing.T, w *worker, s *side, cuts []cut) [][]string {
	t.Helper()
	var mu sync.Mutex
	found := map[int64][]string{}
	err := eachSlice(t.Context(), cuts, 3, func(ctx context.Context, sl slice) error {
		var ids []string
		err := w.scanSlice(ctx, s, sl, true, func(_, key []byte) error {
			ids = append(ids, string(key))
			return nil
		}, func() {})
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
		out = append(out, found[c.record])
	}
	return out
}

// What locate returns is met again by a scan, byte for byte, whatever the _id.
func TestLocate(t *testing.T) {
	c := cluster(t, "6.0", "rs:1")
	b := newBed(t, c, c)
	var docs []bson.Raw
	var ids []bson.RawValue
	for _, id := range idsOf(140, makeID) {
		if id == nil {
			continue // a null makes the server fetch the documents anyway
		}
		doc := raw(t, bson.D{{Key: "_id", Value: id}})
		docs, ids = append(docs, doc), append(ids, doc.Lookup("_id"))
	}
	insert(t, c, b.pair.SourceNS, docs...)
	s, err := describe(t.Context(), c, b.pair.SourceNS)
	if err != nil {
		t.Fatal(err)
	}
	found, err := locate(t.Context(), &s, ids)
	if err != nil || len(found) != len(docs) {
		t.Fatalf("%d of %d documents found, error %v", len(found), len(docs), err)
	}
	want := map[string]bool{}
	for _, d := range docs {
		k, _ := appendID(nil, d)
		want[string(k)] = true
	}
	for _, f := range found {
		if !want[f.id] {
			t.Errorf("_id %s at record %d is none that was inserted", idValue(f.id), f.record)
		}
	}
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
	cuts, err := recordCuts(t.Context(), &col.src, 2)
	if err != nil || len(cuts) != 7 {
		t.Fatalf("cuts %v, error %v", cuts, err)
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
	if col.dst, err = describe(t.Context(), c, b.pair.TargetNS); err != nil {
		t.Fatal(err)
	}

	d := newDigester(w, col, 1)
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

// A slice whose last document was deleted after the cutting gives the rest of
// the reply too: some documents twice, none never.
func TestSliceWithoutItsEnd(t *testing.T) {
	s := &side{cluster: &mongo.Cluster{}}
	var elements []byte
	var keys []string
	for i := range 5 {
		raw, err := bson.Marshal(bson.D{{Key: "_id", Value: i}})
		if err != nil {
			t.Fatal(err)
		}
		elements = append(append(elements, byte(bson.TypeEmbeddedDocument), 0), raw...)
		k, _ := appendID(nil, raw)
		keys = append(keys, string(k))
	}
	reply := func(record int64, last bool) *wire.Batch {
		b := wire.BatchOf(elements)
		b.Done = last
		if record != 0 {
			token, err := bson.Marshal(bson.D{{Key: "$recordId", Value: record}})
			if err != nil {
				t.Fatal(err)
			}
			b.Token = token
		}
		return b
	}
	tests := []struct {
		name string
		sl   slice
		b    *wire.Batch
		docs int
		over bool
	}{
		{"no end", slice{}, reply(50, false), 5, false},
		{"before the end", slice{until: &cut{51, keys[2]}}, reply(50, false), 5, false},
		{"the end within", slice{until: &cut{48, keys[2]}}, reply(50, false), 3, true},
		{"the end is last", slice{until: &cut{50, keys[4]}}, reply(50, false), 5, true},
		{"the end deleted", slice{until: &cut{48, "gone"}}, reply(50, false), 5, true},
		{"the last reply", slice{until: &cut{48, keys[1]}}, reply(0, true), 2, true},
		{"the last reply, the end deleted", slice{until: &cut{60, "gone"}}, reply(50, true), 5, true},
	}
	for _, tt := range tests {
		var got []string
		at, err := tt.sl.walk(s, tt.b, func(_, key []byte) error {
			got = append(got, string(key))
			return nil
		})
		over := tt.b.Done || tt.sl.next(at, 10) == 0
		if err != nil || !slices.Equal(got, keys[:tt.docs]) || over != tt.over {
			t.Errorf("%s: %q, over %v, error %v; want %q, %v", tt.name, got, over, err, keys[:tt.docs], tt.over)
		}
	}
	for _, tt := range []struct {
		sl       slice
		at, want int64
	}{{slice{}, 7, 10}, {slice{until: &cut{50, "k"}}, 7, 10}, {slice{until: &cut{50, "k"}}, 47, 3}, {slice{until: &cut{50, "k"}}, 50, 0}, {slice{until: &cut{50, "k"}}, 60, 0}} {
		if got := tt.sl.next(tt.at, 10); int64(got) != tt.want {
			t.Errorf("%d documents are asked for after record %d, want %d", got, tt.at, tt.want)
		}
	}
	if _, err := (slice{until: &cut{48, keys[1]}}).walk(s, reply(0, false), func(_, _ []byte) error { return nil }); err == nil {
		t.Error("a reply without a resume token was taken")
	}
}

// Small collections are compared by ranges, others by digests.
func TestAuto(t *testing.T) {
	c := cluster(t, "6.0", "rs:1")
	for size, want := range map[int]Method{digestLeast / 4: Ranges, digestLeast * 2: Digest} {
		b := newBed(t, c, c)
		pad := make([]byte, size/100)
		for _, ns := range []string{b.pair.SourceNS, b.pair.TargetNS} {
			var docs []bson.Raw
			for i := range 100 {
				raw, err := bson.Marshal(bson.D{{Key: "_id", Value: i}, {Key: "pad", Value: pad}})
				if err != nil {
					t.Fatal(err)
				}
				docs = append(docs, raw)
			}
			if ns == b.pair.TargetNS {
				docs = docs[:99]
			}
			insert(t, c, ns, docs...)
		}
		rep, _ := b.run(Options{})
		if len(rep.Collections) != 1 || rep.Collections[0].Method != want || rep.Count != 1 {
			t.Errorf("%d bytes: %d differences, collections %+v; want 1 by %s", size, rep.Count, rep.Collections, want)
		}
	}
}
