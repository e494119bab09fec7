package job_test

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// TestTargetExpires: collections of the target that expire documents already,
// long before the source does. The application refreshes them.
func TestTargetExpires(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	s := servers{src: lab.ForTest(t, lab.Options{}), dst: lab.ForTest(t,
		lab.Options{SetParameters: map[string]string{"ttlMonitorSleepSecs": "1"}})}
	s.srcDB, s.targetC = kit.Client(t, s.src.URI()), kit.Client(t, s.dst.URI())
	t.Run("merge", func(t *testing.T) { testExpiresMerge(t, s) })
	t.Run("filled", func(t *testing.T) { testExpiresFilled(t, s) })
	t.Run("removed before", func(t *testing.T) { testRemovedBefore(t, s) })
	t.Run("made later", func(t *testing.T) { testExpiresMadeLater(t, s) })
}

// ttlPasses waits until the target has looked for what to remove.
func (f *following) ttlPasses() {
	f.t.Helper()
	passes := func() int64 {
		raw, err := f.s.targetC.Database("admin").RunCommand(f.t.Context(), bson.D{{Key: "serverStatus", Value: 1}}).Raw()
		f.must(nil, err)
		return raw.Lookup("metrics", "ttl", "passes").AsInt64()
	}
	from := passes()
	kit.Until(f.t, "the target looks for expired documents", func() bool { return passes() >= from+2 })
}

func (f *following) ttlMonitor(on bool) {
	f.t.Helper()
	f.do(f.s.targetC, "admin", bson.D{{Key: "setParameter", Value: 1}, {Key: "ttlMonitorEnabled", Value: on}})
}

var hoursAgo = time.Now().Add(-3 * time.Hour).UTC().Truncate(time.Millisecond)

// expiring makes a collection with an index, a clustered one and a time series,
// all of which expire.
func (f *following) expiring(c *driver.Client, after int32) {
	f.t.Helper()
	db := c.Database(f.db)
	f.must(db.Collection("index").Indexes().CreateOne(f.t.Context(), driver.IndexModel{Keys: bson.D{{Key: "at", Value: 1}},
		Options: options.Index().SetExpireAfterSeconds(after)}))
	f.do(c, f.db, bson.D{{Key: "create", Value: "clustered"}, {Key: "clusteredIndex", Value: bson.D{{Key: "key",
		Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "unique", Value: true}}},
		{Key: "expireAfterSeconds", Value: after}})
	f.do(c, f.db, bson.D{{Key: "create", Value: "series"}, {Key: "timeseries", Value: bson.D{{Key: "timeField",
		Value: "t"}, {Key: "metaField", Value: "m"}}},
		{Key: "expireAfterSeconds", Value: after}})
}

const expiringDocs = 20

func (f *following) expiringDocs(c *driver.Client) {
	f.t.Helper()
	for i := range expiringDocs {
		db := c.Database(f.db)
		f.must(db.Collection("index").InsertOne(f.t.Context(), bson.D{{Key: "_id", Value: i}, {Key: "at", Value: hoursAgo}}))
		f.must(db.Collection("clustered").InsertOne(f.t.Context(),
			bson.D{{Key: "_id", Value: hoursAgo.Add(time.Duration(i) * time.Second)}}))
		f.must(db.Collection("series").InsertOne(f.t.Context(), bson.D{{Key: "t", Value: hoursAgo}, {Key: "m", Value: i},
			{Key: "n", Value: 1}}))
	}
}

// refresh changes all documents on the source.
func (f *following) refresh() {
	f.t.Helper()
	db := f.s.srcDB.Database(f.db)
	f.must(db.Collection("index").UpdateMany(f.t.Context(), bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "at",
		Value: time.Now()}}}}))
	f.must(db.Collection("clustered").UpdateMany(f.t.Context(), bson.D{}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n",
		Value: 1}}}}))
	for i := range expiringDocs {
		f.must(db.Collection("series").InsertOne(f.t.Context(), bson.D{{Key: "t", Value: hoursAgo}, {Key: "m", Value: i},
			{Key: "n", Value: 2}}))
	}
}

// complete wants all that the source has on the target.
func (f *following) complete(when string) {
	f.t.Helper()
	for _, coll := range []string{"index", "clustered", "series"} {
		var n [2]int64
		for i, c := range []*driver.Client{f.s.srcDB, f.s.targetC} {
			var err error
			n[i], err = c.Database(f.db).Collection(coll).CountDocuments(f.t.Context(), bson.D{})
			f.must(nil, err)
		}
		if n[0] < expiringDocs || n[0] != n[1] {
			f.t.Errorf("%s: %s: source has %d, target %d", when, coll, n[0], n[1])
		}
	}
}

// expiry wants the target's collections to expire again.
func (f *following) expiry(want int64) {
	f.t.Helper()
	db := f.s.targetC.Database(f.db)
	specs, err := db.ListCollectionSpecifications(f.t.Context(), bson.D{{Key: "name", Value: bson.D{{Key: "$in",
		Value: bson.A{"clustered", "series"}}}}})
	f.must(nil, err)
	got := map[string]int64{}
	for _, spec := range specs {
		got[spec.Name], _ = spec.Options.Lookup("expireAfterSeconds").AsInt64OK()
	}
	cur, err := db.Collection("index").Indexes().List(f.t.Context())
	f.must(nil, err)
	for cur.Next(f.t.Context()) {
		if v, err := cur.Current.LookupErr("expireAfterSeconds"); err == nil {
			got["index"] = v.AsInt64()
		}
	}
	for _, coll := range []string{"index", "clustered", "series"} {
		if got[coll] != want {
			f.t.Errorf("%s expires after %d, want %d", coll, got[coll], want)
		}
	}
}

func (f *following) noDifferences() {
	f.t.Helper()
	f.must(nil, f.j.Finalize(f.t.Context(), false))
	if st := f.j.Status(); len(st.Differences) > 0 {
		f.t.Errorf("differences: %v", st.Differences)
	}
}

func testExpiresMerge(t *testing.T, s servers) {
	f := newFollowing(t, s, "merged", transform.Config{Include: []string{"merged"}})
	f.spec.OnExisting = job.ExistingMerge
	f.expiring(s.srcDB, 24*3600)
	f.expiringDocs(s.srcDB)
	f.expiring(s.targetC, 1)
	f.run()
	f.caughtUp()
	f.ttlPasses()
	f.complete("copied")
	f.end()
	// While no process runs, somebody gives the target an expiry again.
	f.do(s.targetC, f.db, bson.D{{Key: "collMod", Value: "clustered"}, {Key: "expireAfterSeconds", Value: 24 * 3600}})
	f.ttlPasses()
	f.refresh()
	f.run()
	f.caughtUp()
	f.do(s.targetC, f.db, bson.D{{Key: "collMod", Value: "clustered"}, {Key: "expireAfterSeconds", Value: "off"}})
	f.refresh()
	f.caughtUp()
	f.complete("refreshed")
	f.noDifferences()
	f.expiry(24 * 3600)
}

// testExpiresFilled: changes of before the job's start and of later meet a
// target that was filled by other means, its monitor off.
func testExpiresFilled(t *testing.T, s servers) {
	f := newFollowing(t, s, "filled", transform.Config{Include: []string{"filled"}})
	f.ttlMonitor(false)
	defer f.ttlMonitor(true)
	f.expiring(s.srcDB, 24*3600)
	f.expiring(s.targetC, 1)
	f.expiringDocs(s.srcDB)
	f.fill()
	f.spec.Mode, f.spec.StartAt = job.ModeIncremental, lastOp(t, s.srcDB).String()
	f.refresh()
	f.run()
	f.caughtUp()
	f.ttlMonitor(true)
	f.ttlPasses()
	f.refresh()
	f.caughtUp()
	f.complete("refreshed")
	f.must(nil, f.j.Finalize(t.Context(), false))
	f.expiry(1)
}

// fill copies the documents of the source, buckets and all.
func (f *following) fill() {
	f.t.Helper()
	for _, coll := range []string{"index", "clustered", "system.buckets.series"} {
		cur, err := f.s.srcDB.Database(f.db).Collection(coll).Find(f.t.Context(), bson.D{})
		f.must(nil, err)
		var docs []bson.D
		f.must(nil, cur.All(f.t.Context(), &docs))
		f.must(f.s.targetC.Database(f.db).Collection(coll).InsertMany(f.t.Context(), docs,
			options.InsertMany().SetBypassDocumentValidation(true)))
	}
}

// testExpiresMadeLater: the source makes a collection that the target has, and
// expires, while the job follows.
func testExpiresMadeLater(t *testing.T, s servers) {
	f := newFollowing(t, s, "later", transform.Config{Include: []string{"later"}})
	f.spec.OnExisting = job.ExistingMerge
	f.expiring(s.targetC, 1)
	f.put(s.srcDB, "later", "c", 1)
	f.run()
	f.caughtUp()
	f.expiring(s.srcDB, 24*3600)
	f.expiringDocs(s.srcDB)
	f.caughtUp()
	f.ttlPasses()
	f.refresh()
	f.caughtUp()
	f.complete("refreshed")
	f.noDifferences()
	f.expiry(24 * 3600)
}

// testRemovedBefore: the target's expiry took documents before the job began,
// which the source changed since. Nothing is wrong with those it deleted.
func testRemovedBefore(t *testing.T, s servers) {
	f := newFollowing(t, s, "removed", transform.Config{Include: []string{"removed"}})
	f.spec.Mode, f.spec.StartAt = job.ModeIncremental, lastOp(t, s.srcDB).String()
	f.expiring(s.srcDB, 24*3600)
	f.expiring(s.targetC, 24*3600)
	f.expiringDocs(s.srcDB)
	f.put(s.srcDB, "removed", "index", "deleted", "renamed")
	f.spec.StartAt = lastOp(t, s.srcDB).String()
	f.refresh()
	index := s.srcDB.Database("removed").Collection("index")
	f.must(index.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "deleted"}}))
	f.rename("removed.index", "removed.later")
	f.update("removed", "later", 1)
	f.rename("removed.later", "removed.index")
	f.update("removed", "index", 2)
	f.run()
	f.caughtUp()
	f.await("all is read again", func() bool {
		st := f.j.Status().Conflicts
		return st.Undecided == 0 &&
			st.Settled == 3*expiringDocs+1
	})
	f.complete("read again")
	f.src, f.dst = index, s.targetC.Database("removed").Collection("index")
	f.same(1, 2, 3, "renamed")
	f.refresh()
	f.caughtUp()
	f.same(1, 2, 3)
	f.noDifferences()
}
