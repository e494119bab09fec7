package verify

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/scan"
)

// sliceIDs reads the slices and returns their ids, slice by slice, in the order of
// storage.
func sliceIDs(t *testing.T, s *side, parts []scan.Slice) [][]string {
	t.Helper()
	out := make([][]string, len(parts))
	for _, sl := range parts {
		err := s.scanSlice(t.Context(), sl, reading{idsOnly: true, each: func(_, key []byte) error {
			out[sl.N] = append(out[sl.N], string(key))
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
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
	insert(t, c, b.pair.Source, docs[:800]...)
	e := New(c, c, Options{Method: Digest, RangeBytes: 2000})
	col := newCollection(e, b.pair)
	if _, err := col.tasks(t.Context()); err != nil {
		t.Fatal(err)
	}
	parts, err := col.sides[source].slices(t.Context(), 2)
	if err != nil || len(parts) != 8 {
		t.Fatalf("slices %v, error %v", parts, err)
	}
	insert(t, c, b.pair.Source, docs[800:]...) // the end moves after the cutting

	seen := map[string]int{}
	edges := map[string]bool{}
	for i, ids := range sliceIDs(t, &col.sides[source], parts) {
		if len(ids) == 0 {
			t.Errorf("slice %d of %d is empty", i, len(parts))
			continue
		}
		for _, id := range ids {
			seen[id]++
		}
		edges[ids[0]], edges[ids[len(ids)-1]] = true, true
	}
	want := map[string]expectation{}
	var copied []bson.Raw
	for _, doc := range docs {
		k, _ := appendID(nil, doc)
		if seen[string(k)] != 1 {
			t.Errorf("_id %s is in %d slices", doc.Lookup("_id"), seen[string(k)])
		}
		if edges[string(k)] {
			want[string(k)] = expectation{Content, "edge"}
			doc = replaceField(doc, "zero", nan(1))
		}
		copied = append(copied, doc)
	}
	r.Shuffle(len(copied), func(i, j int) { copied[i], copied[j] = copied[j], copied[i] })
	insert(t, c, b.pair.Target, copied...)
	if col.sides[target], err = e.describe(t.Context(), target, b.pair.Target); err != nil {
		t.Fatal(err)
	}

	d := newDigester(col, 1)
	d.layouts = [2]layout{&slicing{&col.sides[source], parts},
		&slicing{&col.sides[target], []scan.Slice{{Strategy: scan.Serial}}}}
	for i := range d.layouts {
		if err := d.sum(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.lookInto(t.Context()); err != nil {
		t.Fatal(err)
	}
	checkFound(t, e.report(col.began, []*collection{col}), want)
	for range 3 { // with cuts of its own
		rep, _ := b.run(Options{Method: Digest, RangeBytes: 2000})
		checkFound(t, rep, want)
	}
}

// Small collections are compared by ranges, others by digests.
func TestAuto(t *testing.T) {
	c := cluster(t, "6.0", "rs:1")
	for size, want := range map[int]Method{digestLeast / 4: Ranges, digestLeast * 2: Digest} {
		b := newBed(t, c, c)
		pad := make([]byte, size/100)
		for _, ns := range []string{b.pair.Source, b.pair.Target} {
			var docs []bson.Raw
			for i := range 100 {
				raw, err := bson.Marshal(bson.D{{Key: "_id", Value: i}, {Key: "pad", Value: pad}})
				if err != nil {
					t.Fatal(err)
				}
				docs = append(docs, raw)
			}
			if ns == b.pair.Target {
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
