package bench

import (
	"bytes"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestShapes(t *testing.T) {
	for _, c := range []struct {
		shape  *shape
		fields int
		size   int // exact, 0 for about
	}{{ycsb(), 11, 0}, {small(), 7, 140}, {mixedIDs(), 11, 0}, {texts(), 11, 0}, {unique(), 13, 0}} {
		seen := map[string]bool{}
		types := map[bson.Type]bool{}
		total := 0
		const n = 20_000
		for key := range uint32(n) {
			doc := bson.Raw(c.shape.appendDoc(nil, key, nil))
			if err := doc.Validate(); err != nil {
				t.Fatalf("%s: %v", c.shape.name, err)
			}
			elems, _ := doc.Elements()
			if len(elems) != c.fields || c.size > 0 && len(doc) != c.size {
				t.Fatalf("%s: %d fields, %d bytes: %s", c.shape.name, len(elems), len(doc), doc)
			}
			id := doc.Lookup("_id")
			types[id.Type] = true
			seen[string(byte(id.Type))+string(id.Value)] = true
			total += len(doc)
		}
		if len(seen) != n {
			t.Errorf("%s: %d different _ids of %d", c.shape.name, len(seen), n)
		}
		if mean := total / n; mean < c.shape.size*98/100 || mean > c.shape.size*102/100 {
			t.Errorf("%s: %d bytes on average, said to be %d", c.shape.name, mean, c.shape.size)
		}
		if want := map[bool]int{true: 8, false: 1}[c.fields == 11 && len(types) > 1]; len(types) != want {
			t.Errorf("%s: %d types of _id, want %d", c.shape.name, len(types), want)
		}
	}
}

func TestDocumentsAreTheSameAgain(t *testing.T) {
	a, b := ycsb(), ycsb()
	if !bytes.Equal(a.appendDoc(nil, 77, nil), b.appendDoc(nil, 77, nil)) {
		t.Error("the same number gives another document")
	}
}

func workloads() []workload {
	return []workload{
		{shape: ycsb(), collections: 1, operations: 20_000, inserts: 0.7},
		{shape: small(), collections: 10, operations: 20_000, inserts: 0.5, deletes: 0.1},
		{shape: ycsb(), collections: 1, operations: 20_000, hot: 10},
	}
}

// TestWorkloadOrder checks that an operation only meets documents that are
// there, and that the mix is as said.
func TestWorkloadOrder(t *testing.T) {
	for _, w := range workloads() {
		alive, gone := map[uint32]bool{}, map[uint32]bool{}
		kinds := map[opKind]int{}
		hits := map[uint32]int{}
		for o := range w.ops() {
			kinds[o.kind]++
			if (o.kind == opInsert) == alive[o.key] || gone[o.key] {
				t.Fatalf("operation %d of kind %d on a document that is there: %v, gone: %v", o.n, o.kind, alive[o.key],
					gone[o.key])
			}
			alive[o.key] = o.kind != opDelete
			gone[o.key] = o.kind == opDelete
			if o.kind == opUpdate {
				hits[o.key]++
			}
		}
		share := func(k opKind) float64 { return float64(kinds[k]) / float64(w.operations) }
		if w.hot > 0 {
			if kinds[opInsert] != w.hot || len(hits) != w.hot {
				t.Errorf("hot: %v, %d documents", kinds, len(hits))
			}
			continue
		}
		if d := share(opInsert) - w.inserts; d < -0.02 || d > 0.02 {
			t.Errorf("%.2f inserts, want %.2f", share(opInsert), w.inserts)
		}
		if d := share(opDelete) - w.deletes; d < -0.02 || d > 0.02 {
			t.Errorf("%.2f deletes, want %.2f", share(opDelete), w.deletes)
		}
		if most := maxOf(hits); w.deletes == 0 && most < kinds[opUpdate]/100 {
			t.Errorf("the most popular document has %d of %d updates: not zipfian", most, kinds[opUpdate])
		}
	}
}

func maxOf(m map[uint32]int) (most int) {
	for _, n := range m {
		most = max(most, n)
	}
	return most
}

// TestFold checks that plans, folded or not, lead to the same documents.
func TestFold(t *testing.T) {
	for _, w := range workloads() {
		want := state(newPlan(w.fold(w.ops(), 0), 1))
		for name, p := range map[string]plan{
			"windows":    newPlan(w.fold(w.ops(), 200_000), 3),
			"one window": newPlan(w.fold(w.ops(), 0), 4),
			"unfolded":   w.unfolded(3),
		} {
			got := state(p)
			if len(got) != len(want) {
				t.Fatalf("%s: %d documents, want %d", name, len(got), len(want))
			}
			for key, v := range want {
				if got[key] != v {
					t.Fatalf("%s: document %d has %v, want %v", name, key, got[key], v)
				}
			}
		}
		if n := w.unfolded(3).statements(); n != w.operations {
			t.Errorf("unfolded has %d statements for %d operations", n, w.operations)
		}
		if folded := newPlan(w.fold(w.ops(), 0), 1).statements(); folded >= w.operations {
			t.Errorf("folding left %d statements of %d operations", folded, w.operations)
		}
	}
}

// state is what a plan leaves: the versions of each document's fields.
func state(p plan) map[uint32][maxFields]uint32 {
	docs := map[uint32][maxFields]uint32{}
	for _, windows := range p {
		for _, changes := range windows {
			for _, kind := range []opKind{opInsert, opUpdate, opDelete} {
				for _, c := range changes {
					switch {
					case c.kind != kind:
					case kind == opDelete:
						delete(docs, c.key)
					default:
						v := docs[c.key]
						for f := range v {
							if kind == opInsert || c.set&(1<<f) != 0 {
								v[f] = c.version[f]
							}
						}
						docs[c.key] = v
					}
				}
			}
		}
	}
	return docs
}

func TestLimit(t *testing.T) {
	n := 0
	for range limit(workloads()[0].ops(), 17) {
		n++
	}
	if n != 17 {
		t.Errorf("%d operations", n)
	}
	for range limit(workloads()[0].ops(), 0) {
		t.Error("an operation of none")
	}
}

func TestSpanCut(t *testing.T) {
	var s span
	s.to.TS.T = 100
	if got := s.cut(4); len(got) != 1 || got[0].to != s.to {
		t.Errorf("without marks: %v", got)
	}
	for i := range 10 {
		m := s.to
		m.TS.T = uint32(10 * (i + 1))
		s.marks = append(s.marks, m)
	}
	parts := s.cut(4)
	if len(parts) != 4 || parts[0].from != s.from || parts[3].to != s.to {
		t.Fatalf("parts: %v", parts)
	}
	for i := range 3 {
		if parts[i].to != parts[i+1].from {
			t.Errorf("a gap after part %d: %v", i, parts)
		}
	}
}
