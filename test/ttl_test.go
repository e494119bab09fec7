package test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/job"
)

// expires is a way in which documents expire, and how the target reports that
// they do.
type expires struct {
	name, since string
	create      func(*site, string)     // the collection
	old         func(id int) bson.D     // a document whose time is over
	expiry      func(*site, string) any // of the collection, nil for none
}

func expiries() []expires {
	past := bson.NewDateTimeFromTime(time.Unix(1600000000, 0))
	ofIndex := func(s *site, coll string) any {
		cur, err := s.coll(coll).Indexes().List(s.ctx)
		check(err)
		var specs []bson.Raw
		check(cur.All(s.ctx, &specs))
		for _, spec := range specs {
			if v, err := spec.LookupErr("expireAfterSeconds"); err == nil {
				return v.AsInt64()
			}
		}
		return nil
	}
	ofCollection := func(s *site, coll string) any {
		specs, err := s.db().ListCollectionSpecifications(s.ctx, d("name", coll))
		check(err)
		if len(specs) == 1 {
			if v, err := specs[0].Options.LookupErr("expireAfterSeconds"); err == nil {
				return v.AsInt64()
			}
		}
		return nil
	}
	return []expires{
		{"index", "", func(s *site, c string) { s.index(c, d("at", 1), "expireAfterSeconds", 60) },
			func(id int) bson.D { return d("_id", id, "at", past) }, ofIndex},
		{"unique", "", func(s *site, c string) { s.index(c, d("at", 1), "expireAfterSeconds", 60, "unique", true) },
			func(id int) bson.D { return d("_id", id, "at", past+bson.DateTime(id)) }, ofIndex},
		{"clustered", "6.0", func(s *site, c string) {
			s.create(c, "clusteredIndex", d("key", d("_id", 1), "unique", true), "expireAfterSeconds", 60)
		}, func(id int) bson.D { return d("_id", past+bson.DateTime(id)) }, ofCollection},
		{"series", "5.0", func(s *site, c string) {
			s.create(c, "timeseries", d("timeField", "t", "metaField", "m"), "expireAfterSeconds", int64(60))
		}, func(id int) bson.D { return d("_id", id, "t", past, "m", id) }, ofCollection},
		{"partial", "7.0", func(s *site, c string) {
			s.create(c, "timeseries", d("timeField", "t", "metaField", "m"))
			s.index(c, d("t", 1), "expireAfterSeconds", 60, "partialFilterExpression", d("m", d("$gte", 0)))
		}, func(id int) bson.D { return d("_id", id, "t", past, "m", id) }, ofIndex},
	}
}

// Until cut-over the source alone decides when a document expires; afterwards
// the target does so by itself.
func TestExpiryIsHeldUntilCutOver(t *testing.T) {
	rejectedBy(t, true)
	expiry := func(client *mongo.Client, on bool) {
		t.Helper()
		if err := client.Database("admin").RunCommand(t.Context(), d("setParameter", 1, "ttlMonitorEnabled", on)).
			Err(); err != nil {
			t.Fatal(err)
		}
	}
	src := &site{ctx: t.Context(), client: shared.sourceDB, base: "ttl"}
	dst := &site{ctx: t.Context(), client: shared.targetDB, base: "ttl"}
	defer func() { _, _ = src.db().Drop(t.Context()), dst.db().Drop(t.Context()) }()
	var kinds []expires
	for _, e := range expiries() {
		if (scenario{since: e.since}).runs(wayCopy) {
			kinds = append(kinds, e)
		}
	}
	fill := func(phase string) {
		t.Helper()
		if err := attempt(func() {
			for _, e := range kinds {
				e.create(src, e.name+phase)
				src.fill(e.name+phase, 10, e.old)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	fill("_copied")
	expiry(shared.targetDB, true)
	defer expiry(shared.targetDB, false)
	defer expiry(shared.sourceDB, false)
	live, err := startJob(t, job.Spec{Job: newJob("ttl"), Rules: rulesOf("ttl")})
	if err == nil {
		err = live.reach(job.PhaseFollowing)
	}
	if err != nil {
		t.Fatal(err)
	}
	fill("_followed")
	if err := live.caughtUp(t.Context(), connect(t, shared.source)); err != nil {
		t.Fatal(err)
	}
	passes(t, shared.targetDB, 2)
	same := func(when string) {
		t.Helper()
		ours := func(ns string) bool { return ns[:4] == "ttl." }
		diffs, err := Compare(t.Context(), shared.sourceDB, shared.targetDB, CompareOptions{Source: ours, Target: ours})
		if err != nil {
			t.Fatal(err)
		}
		for _, diff := range diffs {
			if when == "before the cut-over" && !isDocuments(diff) {
				continue // the expiry itself is held back
			}
			t.Errorf("%s: %s", when, diff)
		}
	}
	same("before the cut-over")

	// What expires on the source goes from the target too.
	expiry(shared.sourceDB, true)
	passes(t, shared.sourceDB, 2)
	expiry(shared.sourceDB, false)
	if err := live.caughtUp(t.Context(), connect(t, shared.source)); err != nil {
		t.Fatal(err)
	}
	same("before the cut-over")
	if err := live.finalize(t.Context()); err != nil {
		t.Fatal(err)
	}
	same("after the cut-over")
	if err := attempt(func() {
		for _, e := range kinds {
			for _, phase := range []string{"_copied", "_followed"} {
				if got := e.expiry(dst, e.name+phase); fmt.Sprint(got) != "60" {
					t.Errorf("%s%s: the target's expiry is %v", e.name, phase, got)
				}
				dst.fill(e.name+phase, 10, e.old)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	passes(t, shared.targetDB, 2)
	if err := attempt(func() {
		for _, e := range kinds {
			for _, phase := range []string{"_copied", "_followed"} {
				if n := dst.count(e.name+phase, d()); n > 0 {
					t.Errorf("%s%s: the target still has %d expired documents after the cut-over", e.name, phase, n)
				}
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// isDocuments tells differences of documents from those of settings.
func isDocuments(diff Difference) bool {
	var n int
	var what string
	_, err := fmt.Sscanf(diff.What, "%d %s", &n, &what)
	return err == nil && what == "documents"
}

// passes waits until the server has looked n times for what has expired.
func passes(t *testing.T, client *mongo.Client, n int64) {
	t.Helper()
	count := func() int64 {
		var r struct {
			Metrics struct {
				TTL struct {
					Passes int64 `bson:"passes"`
				} `bson:"ttl"`
			} `bson:"metrics"`
		}
		if err := client.Database("admin").RunCommand(t.Context(), d("serverStatus", 1)).Decode(&r); err != nil {
			t.Fatal(err)
		}
		return r.Metrics.TTL.Passes
	}
	deadline := time.Now().Add(waitLimit)
	for first := count(); count() < first+n; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the server does not look for expired documents")
		}
	}
}

// Servers before 6.0 take an index that expires documents of a capped
// collection, though it expires none; newer ones refuse it. A job that meets
// one on its way ends in order and reports.
func TestExpiryOfCappedCollection(t *testing.T) {
	if shared.sourceVer.AtLeast(6, 0) || !shared.targetVer.AtLeast(6, 0) {
		t.Skip("needs a source before 6.0 and a target that is not")
	}
	src := &site{ctx: t.Context(), client: shared.sourceDB, base: "ttlcapped"}
	dst := &site{ctx: t.Context(), client: shared.targetDB, base: "ttlcapped"}
	defer func() { _, _ = src.db().Drop(t.Context()), dst.db().Drop(t.Context()) }()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(attempt(func() { src.create("c", "capped", true, "size", 8192) }))
	spec := job.Spec{Job: newJob("ttlcapped"), Rules: rulesOf("ttlcapped")}
	live, err := startJob(t, spec)
	must(err)
	must(live.reach(job.PhaseFollowing))
	must(attempt(func() { src.index("c", d("a", 1), "expireAfterSeconds", 60) }))
	if err := live.finalize(t.Context()); live.err != nil || err == nil ||
		!strings.Contains(err.Error(), "expireAfterSeconds") {
		t.Errorf("the job ended with %v, %v", live.err, err)
	}
	live.stop()
	must(dst.db().Drop(t.Context()))
	spec.Job = newJob("ttlcapped")
	live, err = startJob(t, spec)
	must(err)
	if err := live.wait(); err == nil || !strings.Contains(err.Error(), "a_1 expires documents of a capped collection") {
		t.Errorf("the precheck says %v", err)
	}
}
