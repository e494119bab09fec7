package scan

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// sifter fills db.c with documents of which keep chooses some by their number, and gives
// the walk's Want for them.
type sifter struct {
	*testing.T
	c    *mongo.Cluster
	db   string
	col  *schema.Collection
	ids  []any
	keep func(i int) bool
	want Want
}

// newSifter marks what is kept by {k: {$gte: 1}}.
func newSifter(t *testing.T, version, db string, n int, keep func(i int) bool) *sifter {
	t.Helper()
	s := &sifter{T: t, c: server(t, version), db: db, ids: someIDs(n), keep: keep}
	t.Cleanup(func() { _ = s.c.Client.Database(db).Drop(context.Background()) })
	s.insert(s.ids, 0)
	s.col = describe(t, s.c, db, "c")
	s.col.Bytes = max(s.col.Bytes, sampleable+1) // so that little is sampled
	match := func(doc []byte) bool {
		k, _ := bson.Raw(doc).Lookup("k").AsInt64OK()
		return k >= 1
	}
	filter, err := bson.Marshal(bson.D{{Key: "k", Value: bson.D{{Key: "$gte", Value: 1}}}})
	if err != nil {
		t.Fatal(err)
	}
	s.want = Want{Batch: 120, Measure: true, Keep: match, Prefilter: &Prefilter{Filter: filter, Match: match}}
	return s
}

func (s *sifter) insert(ids []any, from int) {
	s.Helper()
	var docs bson.A
	for i, id := range ids {
		k := 0
		if s.keep(from + i) {
			k = 1
		}
		docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "k", Value: k},
			{Key: "pad", Value: strings.Repeat("x", 60)}})
	}
	for part := range slices.Chunk(docs, 2000) {
		must(s, s.c, s.db, bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: part}})
	}
}

// kept are the keys of the _ids that are kept and not gone.
func (s *sifter) kept(gone map[string]bool) (out []string) {
	for i, k := range keys(s, s.ids) {
		if s.keep(i) && !gone[k] {
			out = append(out, k)
		}
	}
	return out
}

func (s *sifter) cut(r *Reader, n int) []Slice {
	s.Helper()
	bounds, strategy, err := r.Cut(s.Context(), s.col, ByRecord, n)
	if err != nil || strategy != ByRecord || len(bounds) == 0 {
		s.Fatal(bounds, strategy, err)
	}
	return Slices(Slice{Strategy: ByRecord}, bounds)
}

// keeping are filters: few, none, all, and those where the share changes on the way.
var keeping = []struct {
	name string
	keep func(i int) bool
}{
	{"few", func(i int) bool { return i%70 == 3 }},
	{"none", func(int) bool { return false }},
	{"all", func(int) bool { return true }},
	{"the last", func(i int) bool { return i > 5400 }},
	{"the first", func(i int) bool { return i < 2000 }},
	{"runs", func(i int) bool { return i/500%3 == 1 }},
	{"a third", func(i int) bool { return i%3 == 1 }},
}

func read(parts []*Part) (docs int, unread int64) {
	for _, p := range parts {
		docs, unread = docs+p.Docs, unread+p.Unread
	}
	return docs, unread
}

// TestSift: what the server leaves out is what would have been left out here, and each
// slice gives its own documents once.
func TestSift(t *testing.T) {
	const n = 6000
	for _, version := range lab.Versions("4.4", "5.0") {
		for i, k := range keeping {
			t.Run(version+" "+k.name, func(t *testing.T) {
				s := newSifter(t, version, fmt.Sprint("sift", i), n, k.keep)
				r := reader(t, s.c)
				var got []string
				var all int
				var unread int64
				for _, one := range s.cut(r, 4) {
					ids, parts := given(t, r, s.col, one, s.want)
					got = append(got, ids...)
					docs, left := read(parts)
					all, unread = all+docs, unread+left
				}
				once(t, s.kept(nil), got)
				t.Logf("%d documents read, about %d not", all, unread)
				share := float64(len(got)) / n
				if k.name == "all" && (all != n || unread != 0) || share < 0.1 && (all > n/5 || unread < n/5 || unread > 3*n) {
					t.Errorf("%d documents were read and %d not", all, unread)
				}
			})
		}
	}
}

// TestSiftOverDeleted: with documents gone at which slices begin and end.
func TestSiftOverDeleted(t *testing.T) {
	for _, version := range lab.Versions("4.4", "5.0") {
		s := newSifter(t, version, "siftgone", 6000, func(i int) bool { return i%90 == 3 || i > 5900 })
		r := reader(t, s.c)
		r.Concern = nil
		parts := s.cut(r, 8)
		gone := map[string]bool{}
		for _, one := range parts[:5] {
			gone[idKey(markID(one.Upper))] = true
		}
		for i, k := range keys(t, s.ids) {
			if i%3 == 0 {
				gone[k] = true
			}
			if gone[k] {
				remove(t, s.c, s.db, s.ids[i])
			}
		}
		seen := map[string]int{}
		for _, one := range parts {
			ids, _ := given(t, r, s.col, one, s.want)
			for _, k := range ids {
				seen[k]++
			}
		}
		for _, k := range s.kept(gone) {
			if seen[k] == 0 {
				t.Errorf("%s: _id %x was not given", version, k)
			}
			delete(seen, k)
		}
		if len(seen) > 0 {
			t.Errorf("%s: %d documents too many", version, len(seen))
		}
	}
}

// TestSiftResumes ends walks after every reply, deletes the document at the position or
// not, and goes on from what was stored.
func TestSiftResumes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(testseed.Of(t), 1))
	for _, version := range lab.Versions("4.4", "5.0") {
		for i, k := range keeping {
			t.Run(version+" "+k.name, func(t *testing.T) {
				s := newSifter(t, version, fmt.Sprint("siftresume", i), 6000, k.keep)
				r := reader(t, s.c)
				r.Concern = nil
				places := map[string]any{}
				for i, k := range keys(t, s.ids) {
					places[k] = s.ids[i]
				}
				seen, gone := map[string]bool{}, map[string]bool{}
				for _, one := range s.cut(r, 3) {
					for over := false; !over; {
						w := r.Walk(s.col, &one, s.want)
						for more := 1 + rnd.IntN(3); more > 0; { // replies with something new
							p, err := w.Next(t.Context())
							if err != nil {
								t.Fatal(err)
							}
							if over = p == nil || p.Last; p == nil {
								break
							}
							_ = p.Each(func(doc []byte) error { seen[idKey(bsonraw.IDOf(doc))] = true; return nil })
							one.Advance(p.Progress)
							if p.Docs > 0 {
								more--
							}
							if over {
								break
							}
						}
						w.Close(t.Context())
						if ok, err := r.CanResume(t.Context(), s.col, []Slice{one}, Member{}); err != nil || !ok {
							t.Fatal("the position is not held", one.Position, ok, err)
						}
						if at := idKey(markID(one.Position)); !over && len(one.Position) > 0 && rnd.IntN(3) == 0 {
							gone[at] = true
							remove(t, s.c, s.db, places[at])
						}
					}
				}
				want := s.kept(nil)
				for _, k := range want {
					if !seen[k] && !gone[k] {
						t.Fatalf("_id %x was not given", k)
					}
					delete(seen, k)
				}
				if len(seen) > 0 {
					t.Errorf("%d documents too many", len(seen))
				}
			})
		}
	}
}

// TestSiftLosesCursors: a cursor with the filter that the server ends is opened again.
func TestSiftLosesCursors(t *testing.T) {
	s := newSifter(t, "6.0", "siftlost", 10_000, keeping[0].keep)
	r := reader(t, s.c)
	lost := 0
	r.Reopened = func(error) { lost++ }
	w := r.Walk(s.col, &Slice{Strategy: ByRecord}, s.want)
	defer w.Close(t.Context())
	var got []string
	for i := 0; ; i++ {
		if i%3 == 2 {
			failGetMore(t, s.c, s.db+".c", 1)
		}
		p, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if p == nil {
			break
		}
		_ = p.Each(func(doc []byte) error { got = append(got, idKey(bsonraw.IDOf(doc))); return nil })
	}
	if lost == 0 || !w.prefiltered() {
		t.Errorf("%d cursors were lost, the filter is sent: %v", lost, w.prefiltered())
	}
	once(t, s.kept(nil), got)
}

// TestSiftRefused: where the server does not take the filter, all is read.
func TestSiftRefused(t *testing.T) {
	s := newSifter(t, "6.0", "siftrefused", 3000, keeping[0].keep)
	r := reader(t, s.c)
	filter, err := bson.Marshal(bson.D{{Key: "k", Value: bson.D{{Key: "$unheardOf", Value: 1}}}})
	if err != nil {
		t.Fatal(err)
	}
	s.want.Prefilter.Filter = filter
	got, parts := given(t, r, s.col, Slice{Strategy: ByRecord}, s.want)
	once(t, s.kept(nil), got)
	if docs, unread := read(parts); docs != 3000 || unread != 0 {
		t.Errorf("%d documents read, %d not", docs, unread)
	}
}

// TestSiftLarge: replies that the server ends because of their size.
func TestSiftLarge(t *testing.T) {
	for _, version := range lab.Versions("4.4", "5.0") {
		s := newSifter(t, version, "siftlarge", 120, func(i int) bool { return i%5 < 2 })
		var large bson.A
		for i := range 16 {
			id := fmt.Sprint("large", i)
			s.ids = append(s.ids, id)
			large = append(large, bson.D{{Key: "_id", Value: id}, {Key: "k", Value: i % 5},
				{Key: "pad", Value: strings.Repeat("x", 3<<20)}})
			if len(large) == 4 {
				must(t, s.c, s.db, bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: large}})
				large = nil
			}
		}
		s.keep = func(i int) bool { return i < 120 && i%5 < 2 || i >= 120 && (i-120)%5 > 0 }
		r := reader(t, s.c)
		s.want.Batch = 60
		got, parts := given(t, r, s.col, Slice{Strategy: ByRecord}, s.want)
		once(t, s.kept(nil), got)
		if len(parts) < 5 {
			t.Errorf("%d replies", len(parts))
		}
	}
}

// TestSiftUnderCollation: texts are compared byte by byte also where the collection has a
// collation, as they are here.
func TestSiftUnderCollation(t *testing.T) {
	for _, version := range lab.Versions("4.4", "5.0") {
		c, db := server(t, version), "siftcollated"
		t.Cleanup(func() { _ = c.Client.Database(db).Drop(context.Background()) })
		must(t, c, db, bson.D{{Key: "create", Value: "c"}, {Key: "collation",
			Value: bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 2}}}})
		texts := []string{"a", "A", "b", "B", "c", "C", "D", "E", "F"}
		var docs bson.A
		var want []any
		for i := range 1200 {
			id, text := fmt.Sprint("id", i), texts[i%len(texts)]
			docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "text", Value: text}})
			if text > "F" {
				want = append(want, id)
			}
		}
		must(t, c, db, bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: docs}})
		// by the collation nothing
		filter, err := bson.Marshal(bson.D{{Key: "text", Value: bson.D{{Key: "$gt", Value: "F"}}}})
		if err != nil {
			t.Fatal(err)
		}
		match := func(doc []byte) bool { return bson.Raw(doc).Lookup("text").StringValue() > "F" }
		r, col := reader(t, c), describe(t, c, db, "c")
		bounds, _, err := r.Cut(t.Context(), col, ByRecord, 2)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		all := 0
		for _, one := range Slices(Slice{Strategy: ByRecord}, bounds) {
			ids, parts := given(t, r, col, one, Want{Batch: 40, Measure: true, Keep: match,
				Prefilter: &Prefilter{Filter: filter, Match: match}})
			got = append(got, ids...)
			docs, _ := read(parts)
			all += docs
		}
		if all > 800 {
			t.Errorf("%s: %d documents were read", version, all)
		}
		once(t, keys(t, want), got)
	}
}
