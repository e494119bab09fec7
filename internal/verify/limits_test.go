package verify

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/kit"
)

// What waits for a partner is bounded, however lopsided the sides are.
func TestMemoryBound(t *testing.T) {
	c := cluster(t, "6.0", "rs:1")
	const docs, bound = 2_000, 2 << 20
	pad := bytes.Repeat([]byte{'x'}, 10_000)
	b := newBed(t, c, c)
	for i := 0; i < docs; i += 1000 {
		part := make([]bson.Raw, 1000)
		for j := range part {
			part[j] = kit.Raw(bson.D{{Key: "_id", Value: i + j}, {Key: "pad", Value: pad}})
		}
		insert(t, c, b.pair.Source, part...)
	}
	for name, p := range map[string]Pair{"target empty": b.pair, "source empty": pairOfNames(b.pair.Target, b.pair.Source),
		"same": pairOfNames(b.pair.Source, b.pair.Source)} {
		one := *b
		one.pair = p
		rep, st := one.run(Options{MaxBufferedBytes: bound, MaxDifferences: 3})
		want := int64(docs)
		if name == "same" {
			want = 0
		}
		if rep.Count != want || st.PeakBytes > bound {
			t.Errorf("%s: %d differences, %d bytes held; want %d, at most %d", name, rep.Count, st.PeakBytes, want, bound)
		}
		t.Logf("%s: peak %d KiB", name, st.PeakBytes>>10)
	}
}

// fed is a stream whose pages are there already.
func fed(e *Engine, docs [][]byte) *stream {
	st := newStream(e)
	st.pages = make(chan *page, 1)
	size := 0
	for _, d := range docs {
		size += len(d)
	}
	if len(docs) > 0 {
		st.pages <- &page{docs: slices.Clone(docs), size: size}
		e.c.account(size)
	}
	close(st.pages)
	return st
}

func manyDocs(t testing.TB, n int) [][]byte {
	docs := make([][]byte, n)
	for i := range docs {
		docs[i] = kit.Raw(bson.D{{Key: "_id", Value: fmt.Sprintf("user%d", uint64(i)*0x9e3779b97f4a7c15)},
			{Key: "f", Value: bytes.Repeat([]byte{1}, 100)}})
	}
	return docs
}

// Documents that are the same cost no allocation each.
func TestEqualPathDoesNotAllocate(t *testing.T) {
	docs := manyDocs(t, 10_000)
	e := New(nil, nil, Options{})
	allocs := testing.AllocsPerRun(5, func() {
		j := &join{collection: newCollection(e, pairOfNames("d.a", "d.b"))}
		j.left.stream, j.right.stream = fed(e, docs), fed(e, docs)
		if err := j.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		j.free()
	})
	if allocs > float64(len(docs))/20 { // clients of other tests allocate beside us
		t.Errorf("%.0f allocations for %d equal documents", allocs, len(docs))
	}
}

func BenchmarkJoinEqual(b *testing.B) {
	docs := manyDocs(b, 10_000)
	e := New(nil, nil, Options{})
	b.SetBytes(int64(len(docs) * len(docs[0]) * 2))
	for b.Loop() {
		j := &join{collection: newCollection(e, pairOfNames("d.a", "d.b"))}
		j.left.stream, j.right.stream = fed(e, docs), fed(e, docs)
		if err := j.run(b.Context()); err != nil {
			b.Fatal(err)
		}
		j.free()
	}
}
