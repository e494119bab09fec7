package verify

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
)

// TestShare: about the share of a collection is read, what is read is compared, and each
// part has its turn.
func TestShare(t *testing.T) {
	c := cluster(t, "6.0", "rs:1")
	b := newBed(t, c, c)
	var docs, target []bson.Raw
	for i := range 4000 {
		d := kit.Raw(bson.D{{Key: "_id", Value: i}, {Key: "pad", Value: make([]byte, 100)}})
		docs = append(docs, d)
		if i%2 == 0 {
			target = append(target, d)
		}
	}
	insert(t, c, b.pair.Source, docs...)
	insert(t, c, b.pair.Target, target...)
	found := map[string]bool{}
	for range 10 {
		rep, st := b.run(Options{Share: 0.1, MaxDifferences: 5000})
		if rep.Share != 0.1 || rep.Count == 0 || rep.Count > 800 || st.Docs > 2400 { // of 2000 and 6000
			t.Errorf("a tenth: %d differences, %d documents read", rep.Count, st.Docs)
		}
		for _, d := range rep.Differences {
			if d.Kind != Missing {
				t.Errorf("%+v", d)
			}
			found[d.ID.String()] = true
		}
	}
	if len(found) < 600 {
		t.Errorf("ten samples of a tenth have found %d of 2000", len(found))
	}
	if rep, _ := b.run(Options{Share: 1}); rep.Count != 2000 || rep.Share != 0 {
		t.Errorf("all of it: %+v", rep)
	}
	small := newBed(t, c, c)
	insert(t, c, small.pair.Source, kit.Raw(bson.D{{Key: "_id", Value: 1}}))
	if rep, _ := small.run(Options{Share: 0.001}); rep.Count != 1 {
		t.Errorf("a collection of one document: %+v", rep)
	}
}

func TestSample(t *testing.T) {
	all := make([]scan.Slice, 30)
	for share, want := range map[float64]int{0: 30, 1: 30, 0.5: 15, 0.001: 1, 0.99: 30} {
		o := Options{Share: share}
		if got := len(o.sample(all)); got != want {
			t.Errorf("share %g of 30: %d, want %d", share, got, want)
		}
	}
	o := Options{Share: 0.5}
	if len(o.sample(nil)) != 0 {
		t.Error("something of nothing")
	}
}

// TestFound: who listens learns of each difference, with both sides, also of those that
// the report does not list.
func TestFound(t *testing.T) {
	c := cluster(t, "6.0", "rs:1")
	b := newBed(t, c, c)
	insert(t, c, b.pair.Source, kit.Raw(bson.D{{Key: "_id", Value: 1}, {Key: "x", Value: 1}}),
		kit.Raw(bson.D{{Key: "_id", Value: 2}}))
	insert(t, c, b.pair.Target, kit.Raw(bson.D{{Key: "_id", Value: 1}, {Key: "x", Value: 2}}),
		kit.Raw(bson.D{{Key: "_id", Value: 3}}))
	reported := map[Kind]string{}
	rep, _ := b.run(Options{MaxDifferences: 1, Found: func(d Difference, source, target [][]byte) {
		text := func(docs [][]byte) (s string) {
			for _, d := range docs {
				s += bson.Raw(d).Lookup("_id").String() + bson.Raw(d).Lookup("x").String()
			}
			return s
		}
		reported[d.Kind] = fmt.Sprint(d.ID, " ", text(source), " ", text(target))
	}})
	if rep.Count != 3 || len(rep.Differences) != 1 || len(reported) != 3 {
		t.Fatalf("%+v, reported %v", rep, reported)
	}
	for kind, want := range map[Kind]string{
		Content: `{"$numberInt":"1"} {"$numberInt":"1"}{"$numberInt":"1"} {"$numberInt":"1"}{"$numberInt":"2"}`,
		Missing: `{"$numberInt":"2"} {"$numberInt":"2"} `, Extra: `{"$numberInt":"3"}  {"$numberInt":"3"}`} {
		if reported[kind] != want {
			t.Errorf("%s: %q, want %q", kind, reported[kind], want)
		}
	}
}

// TestHold: as long as replication is held nothing is called a difference, however long
// both sides stand still; what has come by its end is none.
func TestHold(t *testing.T) {
	c := cluster(t, "6.0", "rs:1")
	b := newBed(t, c, c)
	insert(t, c, b.pair.Source, kit.Raw(bson.D{{Key: "_id", Value: 1}}), kit.Raw(bson.D{{Key: "_id", Value: 2}}))
	b.createOn(c, b.pair.Target)
	var looks atomic.Int64
	late := make(chan error, 1)
	hold := func() bool {
		n := looks.Add(1)
		if n == 60 {
			db, coll := b.pair.Target[:len(b.pair.Target)-2], "c"
			_, err := c.Client.Database(db).Collection(coll).InsertOne(t.Context(), bson.D{{Key: "_id", Value: 2}})
			late <- err
		}
		return n <= 60
	}
	rep, st := b.run(Options{Online: true, Recheck: RecheckOptions{Every: 10 * time.Millisecond,
		Quiet: 50 * time.Millisecond, For: 100 * time.Millisecond, Hold: hold}})
	if err := <-late; err != nil {
		t.Fatal(err)
	}
	if rep.Count != 1 || st.Settled != 1 || looks.Load() <= 60 {
		t.Errorf("%+v, %+v after %d looks", rep, st, looks.Load())
	}
}

// TestOnly: some of the collections that the rules keep are compared, and their
// structure.
func TestOnly(t *testing.T) {
	src, dst := cluster(t, "6.0", "rs:1"), cluster(t, "5.0", "rs:1")
	db := newBed(t, src, dst).pair.Source
	db = db[:len(db)-2]
	t.Cleanup(func() { newBed(t, src, dst).drop(dst, db+".x") })
	for _, coll := range []string{".a", ".b"} {
		insert(t, src, db+coll, kit.Raw(bson.D{{Key: "_id", Value: 1}}))
	}
	insert(t, dst, db+".a", kit.Raw(bson.D{{Key: "_id", Value: 1}}))
	rules, err := transform.New(transform.Config{Include: []string{db + ".*"}})
	if err != nil {
		t.Fatal(err)
	}
	of := func(names ...string) Options {
		for i, name := range names {
			names[i] = db + "." + name
		}
		only, err := transform.New(transform.Config{Include: names})
		if err != nil {
			t.Fatal(err)
		}
		return Options{Only: only}
	}
	for only, same := range map[string]bool{"a": true, "b": false} {
		r, err := New(src, dst, of(only)).compareClusters(t.Context(), rules, nil)
		if err != nil || r.Same != same || len(r.Collections) != 1 || (len(r.Schema) == 0) != same {
			t.Errorf("only %s: %+v, %v", only, r, err)
		}
	}
	for _, names := range [][]string{{"aa"}, {"a", "aa"}} {
		if _, err := New(src, dst, of(names...)).compareClusters(t.Context(), rules, nil); err == nil ||
			!strings.Contains(err.Error(), db+".aa matches nothing") {
			t.Errorf("%q: a comparison of nothing proves something: %v", names, err)
		}
	}
}

// TestMadeMeanwhile: a collection and an index that the target gets while it is compared
// are no differences, nor is what the collection holds; those that it does not get are.
func TestMadeMeanwhile(t *testing.T) {
	src, dst := cluster(t, "6.0", "rs:1"), cluster(t, "5.0", "rs:1")
	for _, made := range []bool{true, false} {
		ns := newBed(t, src, dst).pair.Source
		db, coll := mongo.SplitNS(ns)
		b := newBed(t, src, dst)
		t.Cleanup(func() { b.drop(dst, ns) })
		rules, err := transform.New(transform.Config{Include: []string{db + ".*"}})
		if err != nil {
			t.Fatal(err)
		}
		fill := func(c *mongo.Cluster) {
			for i := range 20 {
				insert(t, c, ns, kit.Raw(bson.D{{Key: "_id", Value: i}, {Key: "a", Value: i}}))
			}
		}
		index := func(c *mongo.Cluster) {
			if _, err := c.Client.Database(db).Collection(coll).Indexes().CreateOne(t.Context(),
				driver.IndexModel{Keys: bson.D{{Key: "a", Value: 1}}}); err != nil {
				t.Error(err)
			}
		}
		fill(src)
		index(src)
		looks := 0 // by one goroutine at a time: the documents are decided before the catalogs are compared
		hold := func() bool {
			switch looks++; {
			case made && looks == 1:
				fill(dst)
			case made && looks == 60:
				index(dst)
			}
			return made && looks < 60
		}
		r, err := New(src, dst, Options{Online: true, Recheck: RecheckOptions{Every: 10 * time.Millisecond,
			Quiet: 500 * time.Millisecond, Hold: hold}}).compareClusters(t.Context(), rules, nil)
		if err != nil || r.Same != made || (len(r.Schema) == 0) != made {
			t.Errorf("made: %t, %d looks: %+v, %v", made, looks, r, err)
		}
	}
}

// TestRate: scans wait for their turn.
func TestRate(t *testing.T) {
	c := cluster(t, "6.0", "rs:1")
	b := newBed(t, c, c)
	d := kit.Raw(bson.D{{Key: "_id", Value: 1}, {Key: "pad", Value: make([]byte, 300_000)}})
	insert(t, c, b.pair.Source, d)
	insert(t, c, b.pair.Target, d)
	// twice 300 kB, of which a second's worth may run ahead
	for rate, least := range map[int64]time.Duration{0: 0, 300_000: 900 * time.Millisecond} {
		for _, method := range []Method{Ranges, Digest} {
			rep, _ := b.run(Options{BytesPerSecond: rate, Method: method})
			if took := rep.End.Sub(rep.Start); took < least || !rep.Same {
				t.Errorf("%d bytes a second, %s: %s", rate, method, took)
			}
		}
	}
}
