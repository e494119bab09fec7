package test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
)

// compareDatabase fails the test for each difference in databases that begin
// with a prefix.
func compareDatabase(t *testing.T, prefix string) {
	t.Helper()
	ours := func(ns string) bool { return strings.HasPrefix(ns, prefix) }
	diffs, err := Compare(t.Context(), shared.sourceDB, shared.targetDB, CompareOptions{Source: ours, Target: ours})
	if err != nil {
		t.Fatal(err)
	}
	for _, diff := range diffs {
		t.Error(diff)
	}
}

// Transactions stay open, prepared or not, while millrace ends and starts
// again, and while everything else goes on.
func TestTransactionsOpenAcrossRestart(t *testing.T) {
	src := &site{ctx: t.Context(), client: shared.sourceDB, base: "openTxn"}
	dst := &site{ctx: t.Context(), client: shared.targetDB, base: "openTxn"}
	defer func() { _, _ = src.db().Drop(t.Context()), dst.db().Drop(t.Context()) }()
	spec := job.Spec{Job: newJob("openTxn"), Rules: rulesOf("openTxn")}
	source := connect(t, shared.source)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	restart := func(live *running) *running {
		t.Helper()
		must(live.caughtUp(t.Context(), source)) // so that a checkpoint lies after the entries
		live.stop()
		live, err := startJob(t, spec)
		must(err)
		must(live.reach(job.PhaseFollowing))
		return live
	}
	must(attempt(func() { docsSetup(src) }))
	live, err := startJob(t, spec)
	must(err)
	must(live.reach(job.PhaseFollowing))

	var committed, aborted, plain *txn
	var commit func()
	must(attempt(func() {
		committed = src.open(func(x *site) {
			x.insert("c", d("_id", "committed", "k", "committed"))
			x.set("c", 1, d("$set", d("n", "committed")))
			x.insert("other", d("_id", "large", "pad", pad(12<<20)))
			x.insert("other", d("_id", "large2", "pad", pad(12<<20)))
		})
		aborted = src.open(func(x *site) {
			x.insert("c", d("_id", "aborted", "k", "aborted"))
			x.remove("c", d("_id", 2))
		})
		plain = src.open(func(x *site) { x.set("c", 3, d("$set", d("n", "plain"))) })
		commit = committed.prepare()
		aborted.prepare()
		src.fill("more", 2000, func(i int) bson.D { return d("_id", i, "pad", pad(500)) })
	}))
	defer committed.end()
	defer aborted.end()
	defer plain.end()
	live = restart(live)
	must(attempt(func() {
		src.update("more", d("_id", d("$lt", 500)), d("$set", d("x", 1)), "multi", true)
		src.create("while open")
		src.insert("while open", d("_id", 1)) // change streams before 6.0 do not report the creation
	}))
	live = restart(live)
	must(attempt(func() {
		commit()
		aborted.abort()
		src.set("c", "committed", d("$set", d("after", true)))
		plain.commit()
	}))
	live = restart(live)
	must(live.finalize(t.Context()))
	compareDatabase(t, "openTxn.")
}

// A transaction that is prepared before the job starts commits while the job
// copies, or after.
func TestTransactionPreparedBeforeStart(t *testing.T) {
	src := &site{ctx: t.Context(), client: shared.sourceDB, base: "early"}
	dst := &site{ctx: t.Context(), client: shared.targetDB, base: "early"}
	defer func() { _, _ = src.db().Drop(t.Context()), dst.db().Drop(t.Context()) }()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var x, y *txn
	var commit func()
	must(attempt(func() {
		docsSetup(src)
		src.fill("many", 5000, func(i int) bson.D { return d("_id", i, "pad", pad(100)) })
		x = src.open(func(x *site) {
			x.insert("c", d("_id", "x", "k", "x"))
			x.set("c", 1, d("$set", d("n", "x")))
			x.remove("many", d("_id", 4000))
		})
		y = src.open(func(y *site) { y.set("many", 10, d("$set", d("y", 1))) })
		commit = x.prepare()
		y.prepare()
		src.insert("many", d("_id", -1))
	}))
	defer x.end()
	defer y.end()
	live, err := startJob(t, job.Spec{Job: newJob("early"), Rules: rulesOf("early")})
	must(err)
	must(live.reach(job.PhaseCopying))
	must(attempt(func() {
		src.insert("many", d("_id", -2))
		commit()
		y.abort()
		src.insert("many", d("_id", -3))
	}))
	must(live.reach(job.PhaseFollowing))
	must(live.finalize(t.Context()))
	compareDatabase(t, "early.")
}
