package verify

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/test/kit"
)

// Servers of different versions and shapes.
func TestAcrossVersions(t *testing.T) {
	target := cluster(t, "6.0", "rs:1")
	for _, tc := range []struct{ version, topology string }{{"4.2", "rs:1"}, {"4.4", "standalone"}, {"5.0", "rs:1"}} {
		t.Run(tc.version+" "+tc.topology, func(t *testing.T) {
			r := seeded(t)
			b := newBed(t, cluster(t, tc.version, tc.topology), target)
			want := plantAll(t, b, r, idsOf(700, makeID), 8, true)
			rep, _ := b.run(Options{RangeBytes: 2000})
			checkFound(t, rep, want)
			rep, _ = b.run(Options{RangeBytes: 2000, Method: Digest})
			checkFound(t, rep, want)
			back := *b
			back.src, back.dst = b.dst, b.src
			back.pair = pairOfNames(b.pair.Target, b.pair.Source)
			if rep, _ := back.run(Options{RangeBytes: 2000}); rep.Count != int64(len(want)) {
				t.Errorf("the other way round %d differences, want %d", rep.Count, len(want))
			}
		})
	}
}

// fillTimeSeries makes a time-series collection and returns its buckets' ids.
func fillTimeSeries(t *testing.T, c *mongo.Cluster, db string) []bson.RawValue {
	t.Helper()
	_, err := c.Command(t.Context(), db, bson.D{{Key: "create", Value: "c"},
		{Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}, {Key: "metaField", Value: "m"}}}})
	if err != nil {
		t.Fatal(err)
	}
	var docs []bson.Raw
	for i := range 300 {
		docs = append(docs, kit.Raw(bson.D{{Key: "t", Value: bson.DateTime(1_700_000_000_000 + int64(i)*60_000)},
			{Key: "m", Value: i % 60}, {Key: "v", Value: i}}))
	}
	insert(t, c, db+".c", docs...)
	s, err := New(c, c, Options{}).describe(t.Context(), source, db+".system.buckets.c")
	if err != nil {
		t.Fatal(err)
	}
	var ids []bson.RawValue
	for _, k := range readRange(t, &s, scan.Slice{}) {
		ids = append(ids, idValue(k))
	}
	return ids
}

func TestTimeSeriesBuckets(t *testing.T) {
	for _, version := range []string{"5.0", "6.0"} {
		t.Run(version, func(t *testing.T) {
			src, dst := cluster(t, version, "rs:1"), cluster(t, "6.0", "rs:1")
			b := newBed(t, src, dst)
			sdb, _ := mongo.SplitNS(b.pair.Source)
			tdb, _ := mongo.SplitNS(b.pair.Target)
			b.pair = pairOfNames(sdb+".system.buckets.c", tdb+".system.buckets.c")
			ids := fillTimeSeries(t, src, sdb)
			if len(ids) < 60 {
				t.Fatalf("only %d buckets", len(ids))
			}
			copyBuckets(t, src, dst, sdb, tdb, ids[5], ids[len(ids)-1])
			want := map[string]expectation{}
			for _, id := range []bson.RawValue{ids[5], ids[len(ids)-1]} {
				want[string([]byte{byte(id.Type)})+string(id.Value)] = expectation{Missing, "bucket"}
			}
			rep, st := b.run(Options{RangeBytes: 1000})
			checkFound(t, rep, want)
			rep, _ = b.run(Options{RangeBytes: 1000, Method: Digest})
			checkFound(t, rep, want)
			if st.Ranges < 5 {
				t.Errorf("%d ranges", st.Ranges)
			}
		})
	}
}

// copyBuckets writes all buckets but those left out.
func copyBuckets(t *testing.T, src, dst *mongo.Cluster, sdb, tdb string, without ...bson.RawValue) {
	t.Helper()
	_, err := dst.Command(t.Context(), tdb, bson.D{{Key: "create", Value: "c"},
		{Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}, {Key: "metaField", Value: "m"}}}})
	if err != nil {
		t.Fatal(err)
	}
	cur, err := src.Client.Database(sdb).Collection("system.buckets.c").Find(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	var docs []bson.Raw
next:
	for cur.Next(t.Context()) {
		for _, w := range without {
			if w.Equal(cur.Current.Lookup("_id")) {
				continue next
			}
		}
		docs = append(docs, append(bson.Raw(nil), cur.Current...))
	}
	insert(t, dst, tdb+".system.buckets.c", docs...)
}

// A collection without an _id index; 4.2 allows one in database local only.
func TestWithoutIDIndex(t *testing.T) {
	old := cluster(t, "4.2", "rs:1")
	r := seeded(t)
	b := newBed(t, old, cluster(t, "6.0", "rs:1"))
	_, name := mongo.SplitNS(b.pair.Target)
	name += fmt.Sprintf("%08x", r.Uint32())
	b.pair = pairOfNames("local."+name, b.pair.Target)
	if _, err := old.Command(t.Context(), "local", bson.D{{Key: "create", Value: name},
		{Key: "autoIndexId", Value: false}}); err != nil {
		t.Fatal(err)
	}
	want := plantAll(t, b, r, idsOf(300, makeID), 8, true)
	rep, _ := b.run(Options{RangeBytes: 1000})
	checkFound(t, rep, want)
	if s, err := New(old, old, Options{}).describe(t.Context(), source, b.pair.Source); err != nil ||
		s.order != scan.Sorted {
		t.Errorf("order %s, %v", s.order, err)
	}
}

// Sides whose orders differ are compared in one range, and nothing is invented.
func TestCollationsDiffer(t *testing.T) {
	c := cluster(t, "6.0", "rs:1")
	b := newBed(t, c, c)
	b.createOn(c, b.pair.Target, bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "en"},
		{Key: "numericOrdering", Value: true}}})
	r := seeded(t)
	want := plantAll(t, b, r, idsOf(500, func(i int) any { return makeID(i*14 + 3) }), 10, true)
	rep, _ := b.run(Options{RangeBytes: 1000, MaxBufferedBytes: 1})
	checkFound(t, rep, want)
}

func TestCappedOrder(t *testing.T) {
	c := cluster(t, "6.0", "rs:1")
	for name, tc := range map[string]struct {
		target []int
		kinds  []Kind
	}{
		"same":             {[]int{1, 2, 3, 4, 5, 6}, nil},
		"missing ones":     {[]int{1, 3, 4, 6}, []Kind{Missing, Missing}},
		"extra, rolled on": {[]int{3, 4, 7, 5, 6}, []Kind{Missing, Missing, Extra}},
		"swapped":          {[]int{1, 2, 4, 3, 5, 6}, []Kind{Order}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, c, c)
			b.create(bson.E{Key: "capped", Value: true}, bson.E{Key: "size", Value: 1 << 20})
			for _, i := range []int{1, 2, 3, 4, 5, 6} {
				insert(t, c, b.pair.Source, kit.Raw(bson.D{{Key: "_id", Value: i}}))
			}
			for _, i := range tc.target {
				insert(t, c, b.pair.Target, kit.Raw(bson.D{{Key: "_id", Value: i}}))
			}
			rep, _ := b.run(Options{})
			got := map[Kind]int{}
			for _, d := range rep.Differences {
				got[d.Kind]++
			}
			for _, k := range tc.kinds {
				got[k]--
			}
			for k, n := range got {
				if n != 0 {
					t.Errorf("%d too many of %s: %+v", n, k, rep.Differences)
				}
			}
		})
	}
}

// A cursor that the server loses costs another one, and nothing is read twice.
func TestRetries(t *testing.T) {
	for _, m := range []Method{Ranges, Digest} {
		t.Run(string(m), func(t *testing.T) { testRetries(t, m) })
	}
}

func testRetries(t *testing.T, m Method) {
	c := cluster(t, "6.0", "rs:1")
	r := seeded(t)
	b := newBed(t, c, c)
	want := plantAll(t, b, r, idsOf(1000, makeID), 30, true)
	failCommand(t, c, "getMore", b.pair.Target, 43, 3)
	var log bytes.Buffer
	rep, _ := b.run(Options{Method: m, MaxBufferedBytes: 1, Log: slog.New(slog.NewTextHandler(&log, nil))})
	checkFound(t, rep, want)
	if n := strings.Count(log.String(), "cursor opened again"); n != 3 {
		t.Errorf("%d cursors opened again, want 3: the test shows nothing\n%s", n, &log)
	}
	if col := rep.Collections[0]; col.SourceDocs == 0 || col.SourceDocs > 1000 {
		t.Errorf("%d source documents: tries that failed count", col.SourceDocs)
	}
}

// failCommand makes so many commands of a collection fail with a code.
func failCommand(t *testing.T, c *mongo.Cluster, name, ns string, code, times int) {
	t.Helper()
	_, err := c.Command(t.Context(), "admin", bson.D{{Key: "configureFailPoint", Value: "failCommand"},
		{Key: "mode", Value: bson.D{{Key: "times", Value: times}}},
		{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{name}}, {Key: "errorCode", Value: code},
			{Key: "namespace", Value: ns}}}})
	if err != nil {
		t.Fatal(err)
	}
}

// A server that cannot draw a sample is asked again; if it never can, the
// collection is compared in one piece.
func TestSampleFails(t *testing.T) {
	c := cluster(t, "6.0", "rs:1")
	r := seeded(t)
	b := newBed(t, c, c)
	want := plantAll(t, b, r, idsOf(1000, makeID), 30, true)
	larger := b.pair.Source
	if size := func(ns string) int64 {
		s, _ := New(c, c, Options{}).describe(t.Context(), source, ns)
		return s.Bytes
	}; size(b.pair.Target) > size(larger) {
		larger = b.pair.Target
	}
	for _, tc := range []struct{ times, ranges int }{{2, 0}, {5, 1}} {
		failCommand(t, c, "aggregate", larger, mongo.CodeSampleFailed, tc.times)
		rep, st := b.run(Options{Method: Ranges, RangeBytes: 2000})
		checkFound(t, rep, want)
		if tc.ranges != 0 && st.Ranges != int64(tc.ranges) || tc.ranges == 0 && st.Ranges < 20 {
			t.Errorf("%d failures: %d ranges", tc.times, st.Ranges)
		}
	}
}

func TestViewIsRefused(t *testing.T) {
	c := cluster(t, "6.0", "rs:1")
	b := newBed(t, c, c)
	b.createOn(c, b.pair.Source, bson.E{Key: "viewOn", Value: "x"}, bson.E{Key: "pipeline", Value: bson.A{}})
	_, err := New(c, c, Options{}).Run(t.Context(), []Pair{b.pair})
	if mongo.HintOf(err) == "" {
		t.Errorf("error %v without a hint", err)
	}
}
