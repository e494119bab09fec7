package test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/verify"
)

// ttlScenarios leave out deletions of documents that have expired. An oplog tells those as
// it tells a deletion of many documents by a user, so that removing some stands for the
// monitor; TestSkipTTL has a real one.
func ttlScenarios() []scenario {
	ttl := []string{"DB.*=ttl"}
	following := []string{wayChange, wayEarly, wayLate}
	return []scenario{
		{name: "skip_ttl", skip: ttl, setup: skipTTLSetup, change: skipTTL, want: wantTTL, only: following},
		{name: "skip_ttl_settings", skip: ttl, setup: skipTTLSetup, change: skipTTLSettings, want: wantTTLSettings,
			only: []string{wayChange}},
		{name: "skip_ttl_drop", skip: []string{"DB.*=ttl,drop"}, setup: skipTTLSetup, change: skipTTLDrop, want: wantTTLDrop,
			only: []string{wayChange}},
		{name: "skip_ttl_clustered", since: "5.3", skip: ttl, setup: skipTTLClusteredSetup, change: skipTTLClustered,
			want: wantTTLClustered, only: following},
		{name: "skip_ttl_and_filter", skip: ttl, filter: []string{`DB.c={"n":{"$gte":0}}`}, setup: skipTTLSetup,
			change: skipTTL, want: wantTTL, only: following},
		{name: "skip_ttl_of_mapped", skip: ttl, fields: []string{`DB.c={"rename":{"at":"until"}}`}, setup: skipTTLSetup,
			change: skipTTL, want: wantTTLMapped, only: following},
	}
}

// ttlRow: those up to 9 have expired, those up to 19 have not, of the others some never do.
func ttlRow(i int) bson.D {
	row := d("_id", i, "n", i)
	switch {
	case i < 10:
		return append(row, d("at", bson.DateTime(1_600_000_000_000))...)
	case i < 20:
		return append(row, d("at", bson.DateTime(4_000_000_000_000))...)
	case i < 25:
		return append(row, d("at", a(bson.DateTime(4_000_000_000_000), bson.DateTime(1_600_000_000_000)))...)
	}
	return row
}

func skipTTLSetup(s *site) {
	s.index("c", d("at", 1), "expireAfterSeconds", 3600)
	s.fill("c", 40, ttlRow)
	s.index("d", d("at", 1), "expireAfterSeconds", 0, "partialFilterExpression", d("n", d("$lt", 5)))
	s.index("d", d("other", 1), "expireAfterSeconds", 60)
	s.fill("d", 40, ttlRow)
}

func skipTTL(s *site) {
	s.set("c", 0, d("$set", d("more", 1)))
	s.set("c", 1, d("$set", d("at", bson.DateTime(4_000_000_000_000)))) // is alive again
	s.set("c", 10, d("$set", d("at", bson.DateTime(1_600_000_000_000))))
	s.remove("c", d("n", d("$lt", 30)))
	s.insert("c", d("_id", 2, "n", 2, "anew", true))
	s.set("c", 2, d("$set", d("more", 1)))
	s.transaction(func(s *site) { s.remove("c", d("_id", 30)) })
	for i := range 5 { // within one batch
		s.insert("c", d("_id", 50, "n", i, "at", bson.DateTime(1_600_000_000_000)))
		s.remove("c", d("_id", 50))
		s.insert("c", d("_id", 51, "n", i, "at", bson.DateTime(4_000_000_000_000)))
		s.remove("c", d("_id", 51))
	}
	s.insert("c", d("_id", 52, "n", 1, "at", bson.DateTime(1_600_000_000_000)))
	s.transaction(func(s *site) { s.remove("c", d("_id", 52)) }) // by a user
	s.remove("d", d("n", d("$lt", 30)))
	s.insert("d", d("_id", 60, "n", 60, "other", bson.DateTime(1)))
	s.remove("d", d("_id", 60))
}

func wantTTL(s *site) {
	s.dropIndexes("c", "at_1") // the target expires nothing
	s.index("c", d("at", 1))
	s.set("c", 0, d("$set", d("more", 1)))
	s.set("c", 10, d("$set", d("at", bson.DateTime(1_600_000_000_000))))
	s.remove("c", d("_id", d("$in", a(1, 2, 30))))
	s.remove("c", d("_id", d("$gt", 10, "$lt", 20)))
	s.remove("c", d("_id", d("$gte", 25, "$lt", 30)))
	s.insert("c", d("_id", 2, "n", 2, "anew", true, "more", 1))
	s.insert("c", d("_id", 50, "n", 4, "at", bson.DateTime(1_600_000_000_000)))
	wantTTLOther(s)
	s.remove("d", d("_id", d("$gte", 5, "$lt", 30)))
	s.insert("d", d("_id", 60, "n", 60, "other", bson.DateTime(1)))
}

// wantTTLOther has the other collection expire nothing.
func wantTTLOther(s *site) {
	s.dropIndexes("d", "*")
	s.index("d", d("at", 1), "partialFilterExpression", d("n", d("$lt", 5)))
	s.index("d", d("other", 1))
}

func wantTTLMapped(s *site) {
	wantTTL(s)
	s.update("c", d(), d("$rename", d("at", "until")), "multi", true)
	s.update("c", d("until", d("$exists", true)),
		a(d("$replaceWith", d("_id", "$_id", "n", "$n", "until", "$until", "more", "$more"))), "multi", true)
	s.dropIndexes("c", "at_1")
	s.index("c", d("until", 1), "name", "at_1")
}

// skipTTLSettings: what counts are the settings at the time of the deletion.
func skipTTLSettings(s *site) {
	s.remove("c", d("_id", 0)) // stays
	s.collMod("c", "index", d("name", "at_1", "expireAfterSeconds", 1_000_000_000))
	s.remove("c", d("_id", 1))
	s.collMod("c", "index", d("name", "at_1", "expireAfterSeconds", 3600))
	s.remove("c", d("_id", 2)) // stays
	s.rename(s.ns("c"), s.ns("e"))
	s.remove("e", d("_id", 3)) // stays
	s.dropIndexes("e", "at_1")
	s.remove("e", d("_id", 4))
	s.insert("fresh", ttlRow(0), ttlRow(1), ttlRow(10))
	s.remove("fresh", d("_id", 0))
	s.index("fresh", d("at", 1), "expireAfterSeconds", 5)
	s.remove("fresh", d())
	s.drop("d")
	s.insert("d", ttlRow(0))
	s.remove("d", d())
}

func wantTTLSettings(s *site) {
	s.rename(s.ns("c"), s.ns("e"))
	s.dropIndexes("e", "at_1")
	s.remove("e", d("_id", d("$in", a(1, 4))))
	s.insert("fresh", ttlRow(1))
	s.index("fresh", d("at", 1))
	s.drop("d")
	s.create("d")
}

// skipTTLDrop: a collection that was left and goes on as another one expires as that does.
func skipTTLDrop(s *site) {
	s.remove("c", d("_id", 0)) // stays
	s.drop("c")
	s.insert("c", d("_id", 1, "anew", true), d("_id", 2, "anew", true, "at", bson.DateTime(1)))
	s.remove("c", d())
}

func wantTTLDrop(s *site) {
	s.dropIndexes("c", "at_1")
	s.index("c", d("at", 1))
	s.remove("c", d("_id", d("$in", a(1, 2))))
	wantTTLOther(s)
}

func skipTTLClusteredSetup(s *site) {
	s.create("c", "clusteredIndex", d("key", d("_id", 1), "unique", true), "expireAfterSeconds", 3600)
	s.fill("c", 20, func(i int) bson.D {
		return d("_id", bson.DateTime(1_600_000_000_000+2_400_000_000_000*(i%2)+i), "n", i)
	})
}

func skipTTLClustered(s *site) {
	s.remove("c", d("n", d("$lt", 10)))
	s.insert("c", d("_id", "text"))
	s.remove("c", d("_id", "text"))
}

func wantTTLClustered(s *site) {
	s.collMod("c", "expireAfterSeconds", "off")
	s.remove("c", d("n", d("$lt", 10, "$mod", a(2, 1))))
}

// skipTTLSoft: what users delete is marked, what has expired stays as it was.
func skipTTLSoft(s *site) {
	s.remove("s", d("n", d("$lt", 20)))
	s.transaction(func(s *site) { s.remove("s", d("_id", 20)) })
	s.insert("s", d("_id", 10, "n", 10, "anew", true))
}

// TestSkipTTL: with a real monitor, the target keeps what expires on the source, and goes on
// keeping it after the cut-over; what users delete goes. verify tells the ones from the others.
func TestSkipTTL(t *testing.T) {
	rejectedBy(t, false)
	expiry := func(s *site, on bool) { s.admin(d("setParameter", 1, "ttlMonitorEnabled", on)) }
	src := &site{ctx: t.Context(), client: shared.sourceDB, base: "skipttl"}
	dst := &site{ctx: t.Context(), client: shared.targetDB, base: "skipttl"}
	defer func() { _, _ = src.db().Drop(t.Context()), dst.db().Drop(t.Context()) }()
	defer expiry(src, false)
	defer expiry(dst, false)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(attempt(func() {
		skipTTLSetup(src)
		src.index("s", d("at", 1), "expireAfterSeconds", 3600)
		src.fill("s", 40, ttlRow)
	}))
	rules := rulesOf("skipttl")
	rules.Skip = []string{"skipttl.*=ttl"}
	rules.SoftDelete = []string{"skipttl.s=deletedAt"}
	spec := job.Spec{Job: newJob("skipttl"), Rules: rules}
	live, err := startJob(t, spec)
	must(err)
	must(live.reach(job.PhaseFollowing))
	must(attempt(func() {
		skipTTLSoft(src)
		src.insert("c", d("_id", 100, "at", bson.DateTime(1_600_000_000_000)))
		src.insert("c", d("_id", 101, "at", bson.DateTime(4_000_000_000_000)))
		expiry(src, true)
		expiry(dst, true)
	}))
	passes(t, shared.sourceDB, 2)
	must(attempt(func() { src.remove("c", d("_id", d("$in", a(11, 101)))) }))
	must(live.caughtUp(t.Context(), connect(t, shared.source)))
	for _, c := range live.Status().Skips {
		if n := c.Skipped["ttl"]; n != 35 { // 16 of c, 5 of d, 14 of s
			t.Errorf("%d deletions were left out", n)
		}
	}
	live.stop()
	must(attempt(func() {
		src.remove("c", d("_id", 30))
		src.insert("c", d("_id", 102, "at", bson.DateTime(1_600_000_000_000)))
	}))
	passes(t, shared.sourceDB, 2)
	live, err = startJob(t, spec)
	must(err)
	must(live.reach(job.PhaseFollowing))
	must(live.caughtUp(t.Context(), connect(t, shared.source)))
	must(live.finalize(t.Context()))
	passes(t, shared.targetDB, 2)
	must(attempt(func() {
		for coll, want := range map[string]int64{"c": 40, "d": 40, "s": 40} {
			if n := dst.count(coll, d()); n != want {
				t.Errorf("the target has %d documents of %s, want %d", n, coll, want)
			}
		}
		marked, unmarked := d("$exists", true), d("$exists", false)
		for _, c := range []struct {
			filter bson.D
			want   int64
		}{
			{d("deletedAt", marked), 10}, // 11 to 19, and 20
			{d("deletedAt", marked, "_id", d("$lt", 11)), 0},
			{d("deletedAt", unmarked, "at", marked, "_id", d("$lt", 10)), 10},
			{d("_id", 10, "anew", true), 1},
		} {
			if n := dst.count("s", c.filter); n != c.want {
				t.Errorf("%v: the target has %d documents of s, want %d", c.filter, n, c.want)
			}
		}
	}))
	judge := func() *verify.Report {
		t.Helper()
		r, err := verify.Clusters(t.Context(),
			verify.Spec{Source: shared.source.URI(), Target: shared.target.URI(), Rules: rules})
		must(err)
		return r
	}
	r := judge()
	if !r.Same || len(r.Expected) != 4 {
		t.Errorf("verify: %+v %+v, expected %+v", r.Schema, r.Differences, r.Expected)
	}
	for _, c := range r.Collections {
		want := map[string]string{"skipttl.c": "left on the target: 17, ttl skipped",
			"skipttl.s": "left on the target: 14, ttl skipped", "skipttl.d": "left on the target: 5, ttl skipped"}[c.NS]
		if got := fmt.Sprint(c.Skipped); got != want {
			t.Errorf("verify says of %s %q, want %q", c.NS, got, want)
		}
	}
	// One that did not expire has no reason to be there.
	must(attempt(func() { dst.insert("c", d("_id", 300, "at", bson.DateTime(4_000_000_000_000))) }))
	if r = judge(); r.Same || len(r.Differences) != 1 {
		t.Errorf("verify finds %+v", r.Differences)
	}
}
