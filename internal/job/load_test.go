package job_test

import (
	"bytes"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/test/kit"
)

// testLoads: copy and changes arrive whole under low on both sides and while
// the loads change.
func testLoads(t *testing.T, s servers) {
	const docs = 6000
	low := pace.Loads{Source: pace.Low, Target: pace.Low}
	fill(t, s.srcDB, "loads", 0, docs)
	spec := s.spec("loads")
	spec.Until, spec.Loads = "", low
	j := open(t, spec)
	ended := make(chan error, 1)
	go func() { ended <- j.Run(t.Context()) }()
	kit.Until(t, "the job follows", func() bool { return j.Status().Phase == job.PhaseFollowing })
	if l := j.Status().Load; l.Loads != low || l.SourceAtOnce != 1 || l.TargetAtOnce != 1 {
		t.Errorf("loads are %+v", l)
	}
	for i, l := range []pace.Loads{low, {Source: pace.Normal, Target: pace.Max}, low} {
		if err := j.SetLoads(t.Context(), l); err != nil || j.Status().Load.Loads != l {
			t.Errorf("%+v, %v", j.Status().Load, err)
		}
		change(t, s.srcDB, "loads", docs, i)
	}
	if err := j.Finalize(t.Context(), false); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	same(t, s, "loads")
}

// testLoadsOfCopy: a copy that is held back goes on with loads that change.
func testLoadsOfCopy(t *testing.T, s servers) {
	fill(t, s.srcDB, "loadscopy", 0, 6000)
	spec := s.spec("loadscopy")
	spec.Loads = pace.Loads{Target: pace.Low}
	j, ended := copying(t, spec)
	high := pace.Loads{Source: pace.Max, Target: pace.Max}
	if err := j.SetLoads(t.Context(), high); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "the gates are steered", func() bool {
		l := j.Status().Load
		return l.SourceAtOnce > 0 &&
			l.TargetAtOnce > 0
	})
	if err := j.SetLimits(t.Context(), pace.Rates{}); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if l := j.Status().Load; l.Loads != high || l.SourceAtOnce != 0 || l.TargetAtOnce != 0 {
		t.Errorf("after the copy: %+v", l)
	}
	same(t, s, "loadscopy")
}

// fill inserts documents of 2 KB with _ids from … to-1.
func fill(t *testing.T, c *driver.Client, db string, from, to int) {
	t.Helper()
	pad := bytes.Repeat([]byte("x"), 2000)
	docs := make([]any, 0, to-from)
	for i := from; i < to; i++ {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "pad", Value: pad}})
	}
	if _, err := c.Database(db).Collection("c").InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
}

// change inserts, updates and deletes; the n-th time others than before.
func change(t *testing.T, c *driver.Client, db string, docs, n int) {
	t.Helper()
	coll := c.Database(db).Collection("c")
	fill(t, c, db, docs+n*500, docs+n*500+500)
	if _, err := coll.UpdateMany(t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$mod", Value: bson.A{7, n}}}}},
		bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}, {Key: "$set", Value: bson.D{{Key: "a.b",
			Value: n}}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := coll.DeleteMany(t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$mod", Value: bson.A{11,
		n}}}}}); err != nil {
		t.Fatal(err)
	}
}

// same compares the documents of both sides byte for byte.
func same(t *testing.T, s servers, db string) {
	t.Helper()
	sameAs(t, s, db, db)
}

// sameAs compares a database of the source with one of the target.
func sameAs(t *testing.T, s servers, db, target string) {
	t.Helper()
	sameCollection(t, s.srcDB.Database(db).Collection("c"), s.targetC.Database(target).Collection("c"))
}

// sameCollection compares two collections byte for byte.
func sameCollection(t *testing.T, from, to *driver.Collection) {
	t.Helper()
	read := func(c *driver.Collection) (out []bson.Raw) {
		cur, err := c.Find(t.Context(), bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
		if err == nil {
			err = cur.All(t.Context(), &out)
		}
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	want, got := read(from), read(to)
	if len(want) != len(got) {
		t.Fatalf("%s: %d documents, want %d", to.Name(), len(got), len(want))
	}
	for i, w := range want {
		if !bytes.Equal(w, got[i]) {
			t.Fatalf("%s: %s, want %s", to.Name(), got[i].Lookup("_id"), w.Lookup("_id"))
		}
	}
}
