package copy

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
)

// anyIDs is one _id of every type that a server takes, and many common ones.
func anyIDs(n int) []any {
	dec, _ := bson.ParseDecimal128("12.50")
	ids := []any{
		bson.MinKey{}, bson.MaxKey{}, nil, math.NaN(), math.Inf(1), math.Inf(-1), -0.5, true, false,
		bson.NewObjectID(), bson.DateTime(5), bson.Timestamp{T: 1,
			I: 2}, bson.Timestamp{}, dec, bson.Symbol("s"), bson.JavaScript("f()"),
		bson.CodeWithScope{Code: "f", Scope: bson.D{{Key: "a", Value: 1}}}, bson.Binary{Subtype: 0, Data: []byte{1, 0, 2}},
		bson.Binary{Subtype: 4, Data: bytes.Repeat([]byte{7}, 16)}, bson.D{}, bson.D{{Key: "a",
			Value: bson.A{1, nil}}}, bson.D{{Key: "b", Value: math.NaN()}},
		"", strings.Repeat("long", 300), int64(math.MaxInt64), bson.DBPointer{DB: "x", Pointer: bson.NewObjectID()},
	}
	for i := range n {
		switch i % 5 {
		case 0:
			ids = append(ids, int32(i))
		case 1:
			ids = append(ids, fmt.Sprintf("key%07d", (i*7919)%1000003))
		case 2:
			ids = append(ids, bson.NewObjectID())
		case 3:
			ids = append(ids, bson.D{{Key: "k", Value: i}, {Key: "t", Value: "x"}})
		case 4:
			ids = append(ids, float64(i)+0.25)
		}
	}
	return ids
}

func mixedDocs(n int) []any {
	var docs []any
	for i, id := range anyIDs(n) {
		docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "n", Value: i},
			{Key: "text", Value: strings.Repeat("x", i%97)}})
	}
	return docs
}

func TestMixedIDs(t *testing.T) {
	dst := server(t, "6.0")
	for _, tc := range []struct {
		version  string
		byID     bool
		strategy scan.Strategy
	}{{"6.0", false, scan.ByRecord}, {"6.0", true, scan.ByID}, {"4.2", false, scan.ByID}, {"4.4", false, scan.ByRecord}} {
		t.Run(fmt.Sprintf("%s %s", tc.version, tc.strategy), func(t *testing.T) {
			src := server(t, tc.version)
			db := "mixed_" + string(tc.strategy) + strings.ReplaceAll(tc.version, ".", "")
			insert(t, src, db, "c", mixedDocs(4000))
			e := New(src, dst, newStore(), small(t, src))
			e.noRecords.Store(tc.byID)
			if err := e.Run(t.Context(), []Task{taskOf(source(t, src, db, "c"), db+"_t.c")}); err != nil {
				t.Fatal(err)
			}
			same(t, dump(t, src, db, "c"), dump(t, dst, db+"_t", "c"))
			st := e.Stats()
			c := st.Collections[0]
			if c.Strategy != tc.strategy || c.Slices < 4 || c.SlicesDone != c.Slices || c.State != StateDone ||
				st.Replaced != 0 || c.Docs != c.TotalDocs {
				t.Errorf("stats %+v", st)
			}
		})
	}
}

func TestCollatedIDs(t *testing.T) {
	c := server(t, "6.0")
	for _, byID := range []bool{false, true} {
		db := fmt.Sprintf("collated_%v", byID)
		for _, d := range []string{db, db + "_t"} {
			must(t, c, d, bson.D{{Key: "create", Value: "c"}, {Key: "collation",
				Value: bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 2}}}})
		}
		var docs []any
		for i := range 3000 {
			s := fmt.Sprintf("key%05d", i)
			if i%2 == 0 {
				s = strings.ToUpper(s)
			}
			docs = append(docs, bson.D{{Key: "_id", Value: s}, {Key: "i", Value: i}})
		}
		insert(t, c, db, "c", docs)
		e := New(c, c, newStore(), small(t, c))
		e.noRecords.Store(byID)
		if err := e.Run(t.Context(), []Task{taskOf(source(t, c, db, "c"), db+"_t.c")}); err != nil {
			t.Fatal(err)
		}
		same(t, dump(t, c, db, "c"), dump(t, c, db+"_t", "c"))
	}
}

// TestAllTypes copies documents that an insert or a decoder would change.
func TestAllTypes(t *testing.T) {
	c := server(t, "6.0")
	var docs []any
	for i := range 20 {
		docs = append(docs, bson.D{
			{Key: "_id", Value: i}, {Key: "a", Value: 1}, {Key: "a", Value: 2}, {Key: "", Value: "empty name"},
			{Key: "d.o.t", Value: 1}, {Key: "nan", Value: math.Float64frombits(0x7ff8000000000123)}, {Key: "z",
				Value: math.Copysign(0, -1)},
			{Key: "u", Value: bson.Undefined{}}, {Key: "re", Value: bson.Regex{Pattern: "^a", Options: "i"}},
			{Key: "sub", Value: bson.D{{Key: "t0", Value: bson.Timestamp{}}, {Key: "$x", Value: 1}}},
			{Key: "ptr", Value: bson.DBPointer{DB: "d", Pointer: bson.NewObjectID()}}, {Key: "$recordId", Value: int64(5)},
		})
	}
	insert(t, c, "types", "c", docs)
	// A zero timestamp at the top is stored by an update, not by an insert.
	for i := range 5 {
		must(t, c, "types", bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: i * 3}}},
			{Key: "u", Value: bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: "zero", Value: bson.Timestamp{}}}}}}},
		}}}})
	}
	for _, target := range []string{"c", "again"} {
		e := New(c, c, newStore(), small(t, c))
		e.noRecords.Store(target == "again")
		if err := e.Run(t.Context(), []Task{taskOf(source(t, c, "types", "c"), "types_t."+target)}); err != nil {
			t.Fatal(err)
		}
		same(t, dump(t, c, "types", "c"), dump(t, c, "types_t", target))
		if e.Stats().Exact != 5 {
			t.Errorf("stats %+v", e.Stats())
		}
	}
	// Documents that are there in another shape: those with a field name twice
	// must not be sent as an update by pipeline.
	var stubs []any
	for i := range 20 {
		stubs = append(stubs, bson.D{{Key: "_id", Value: i}, {Key: "x", Value: i}})
	}
	insert(t, c, "types_t", "there", stubs)
	e := New(c, c, newStore(), small(t, c))
	if err := e.Run(t.Context(), []Task{taskOf(source(t, c, "types", "c"), "types_t.there")}); err != nil {
		t.Fatal(err)
	}
	same(t, dump(t, c, "types", "c"), dump(t, c, "types_t", "there"))
}

func TestLargeDocuments(t *testing.T) {
	c := server(t, "6.0")
	pad := strings.Repeat("p", 16<<20-100)
	for i := range 1 {
		insert(t, c, "large", "c", []any{bson.D{{Key: "_id", Value: i}, {Key: "p", Value: pad[:len(pad)-i*40]}}})
		insert(t, c, "large", "c", []any{bson.D{{Key: "_id", Value: fmt.Sprint("small", i)}}})
	}
	largest, _ := bson.Marshal(bson.D{{Key: "_id", Value: "max"}, {Key: "p", Value: ""}})
	insert(t, c, "large", "c", []any{bson.D{{Key: "_id", Value: "max"},
		{Key: "p", Value: strings.Repeat("q", 16<<20-len(largest))}}})
	for i, byID := range []bool{false, true} {
		o := small(t, c)
		o.MaxBufferedBytes = 1 << 20
		e := New(c, c, newStore(), o)
		e.noRecords.Store(byID)
		target := fmt.Sprint("c", i)
		if err := e.Run(t.Context(), []Task{taskOf(source(t, c, "large", "c"), "large_t."+target)}); err != nil {
			t.Fatal(err)
		}
		same(t, dump(t, c, "large", "c"), dump(t, c, "large_t", target))
		if left := e.Stats().Buffered; left != 0 {
			t.Errorf("%d bytes of the budget were not given back", left)
		}
	}
}

func TestClusteredAndTimeSeries(t *testing.T) {
	dst := server(t, "6.0")
	for _, version := range []string{"6.0", "5.0"} {
		src := server(t, version)
		db := "ts" + strings.ReplaceAll(version, ".", "")
		ts := bson.D{{Key: "create", Value: "w"}, {Key: "timeseries",
			Value: bson.D{{Key: "timeField", Value: "t"}, {Key: "metaField", Value: "m"}}}}
		must(t, src, db, ts)
		must(t, dst, db+"_t", ts)
		var docs []any
		for i := range 3000 {
			docs = append(docs, bson.D{{Key: "t", Value: bson.DateTime(1.7e12 + i*1000)}, {Key: "m", Value: i % 1500},
				{Key: "v", Value: i}})
		}
		insert(t, src, db, "w", docs)
		tasks := []Task{taskOf(source(t, src, db, "w"), db+"_t.w")}
		if version == "6.0" {
			create := bson.D{{Key: "create", Value: "c"}, {Key: "clusteredIndex",
				Value: bson.D{{Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "unique", Value: true}}}}
			must(t, src, db, create)
			must(t, dst, db+"_t", create)
			var docs []any
			for _, d := range mixedDocs(3000) {
				if d.(bson.D)[0].Value != nil {
					docs = append(docs, d)
				}
			}
			insert(t, src, db, "c", docs)
			tasks = append(tasks, taskOf(source(t, src, db, "c"), db+"_t.c"))
		}
		// Twice, so that the second run meets every document on the target.
		for round := range 2 {
			e := New(src, dst, newStore(), small(t, src))
			if err := e.Run(t.Context(), tasks); err != nil {
				t.Fatal(err)
			}
			st := e.Stats()
			if round == 1 && st.Replaced != st.Docs {
				t.Errorf("round 2: %+v", st)
			}
			for i, c := range st.Collections {
				_, from := mongo.SplitNS(tasks[i].Source.DataNS())
				_, to := mongo.SplitNS(c.Target)
				same(t, dump(t, src, db, from), dump(t, dst, db+"_t", to))
				if c.Slices < 3 {
					t.Errorf("%s: %+v", version, c)
				}
			}
		}
	}
}

func TestManySmallCollections(t *testing.T) {
	c := server(t, "6.0")
	var tasks []Task
	for i := range 120 {
		name := fmt.Sprintf("c%03d", i)
		if i%4 == 0 {
			must(t, c, "many", bson.D{{Key: "create", Value: name}})
		} else {
			insert(t, c, "many", name, []any{bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: "b"}}})
		}
		s := source(t, c, "many", name)
		if i%2 == 0 {
			s.Bytes, s.Count = 0, 0
		}
		tasks = append(tasks, taskOf(s, "many_t."+name))
	}
	store := newStore()
	e := New(c, c, store, Options{})
	if err := e.Run(t.Context(), tasks); err != nil {
		t.Fatal(err)
	}
	for i := range tasks {
		name := fmt.Sprintf("c%03d", i)
		same(t, dump(t, c, "many", name), dump(t, c, "many_t", name))
	}
	c.Pool.SetGuard(func() error { return errors.New("a finished copy asks the server again") })
	defer c.Pool.SetGuard(func() error { return nil })
	e = New(c, c, store, Options{})
	if err := e.Run(t.Context(), tasks); err != nil {
		t.Fatal(err)
	}
	if st := e.Stats(); st.Docs != 180 || st.SlicesDone != 120 || st.Slices != 120 {
		t.Errorf("stats of a finished copy: %d documents, slices %d of %d", st.Docs, st.SlicesDone, st.Slices)
	}
}

// TestWithoutEstimates copies a collection whose size the catalog does not know.
func TestWithoutEstimates(t *testing.T) {
	c := server(t, "6.0")
	insert(t, c, "unknown", "c", mixedDocs(4000))
	s := source(t, c, "unknown", "c")
	s.Count, s.Bytes = 0, 0
	e := New(c, c, newStore(), small(t, c))
	if err := e.Run(t.Context(), []Task{taskOf(s, "unknown_t.c")}); err != nil {
		t.Fatal(err)
	}
	same(t, dump(t, c, "unknown", "c"), dump(t, c, "unknown_t", "c"))
	if st := e.Stats(); st.Slices < 4 || st.Collections[0].TotalDocs != st.Docs {
		t.Errorf("stats %+v", st)
	}
}
