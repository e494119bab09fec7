package test

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
)

// TestChangeStreams copies and follows by change streams while writers work. The job is stopped during the copy
// and while it follows, and goes on by what it began with.
func TestChangeStreams(t *testing.T) {
	if !reportsSchema() {
		t.Skip("its writers change the schema; TestHistories has what change streams report before 6.0")
	}
	ctx := t.Context()
	const base = "streamed"
	db := shared.sourceDB.Database(base)
	cleanUp(t, []*trial{{base: base}})
	defer cleanUp(t, []*trial{{base: base}})
	LoadChurn(t, db)
	churn := StartChurn(t, db, ChurnOptions{SchemaEvery: 200 * time.Millisecond, Pause: 3 * time.Millisecond})
	defer churn.Stop()
	spec := job.Spec{Job: newJob(base), Rules: rulesOf(base), Capture: job.CaptureStreams}
	for _, p := range []job.Phase{job.PhaseCopying, job.PhaseFollowing} {
		live, err := startJob(t, spec)
		if err == nil {
			err = live.reach(job.PhaseCopying)
		}
		if err == nil && p != job.PhaseCopying {
			goOn := churn.Hold() // on busy processors the writers would run away from the job
			err = live.reach(p)
			goOn()
			at := churn.Operations()
			kit.Until(t, "something is written meanwhile", func() bool { return churn.Operations() > at+500 })
		}
		if err != nil {
			t.Fatal(err)
		}
		live.stop()
		spec.Capture = job.CaptureAuto
	}
	live, err := startJob(t, spec)
	churn.Stop()
	if err == nil {
		err = live.reach(job.PhaseFollowing)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := live.finalize(ctx); err != nil {
		t.Fatal(err)
	}
	owned := func(ns string) bool { return (&trial{base: base}).owns(ns) }
	diffs, err := Compare(ctx, shared.sourceDB, shared.targetDB, CompareOptions{Source: owned, Target: owned})
	if err != nil || len(diffs) > 0 {
		t.Errorf("after %d operations: %v, %v", churn.Operations(), diffs, err)
	}
}

// TestStreamsReject: the precheck rejects rules that change streams cannot serve, and nothing is written.
func TestStreamsReject(t *testing.T) {
	s := &site{ctx: t.Context(), client: shared.sourceDB, base: "rejected"}
	cleanUp(t, []*trial{{base: s.base}})
	defer cleanUp(t, []*trial{{base: s.base}})
	s.insert("c", d("_id", 1))
	all := []transform.Config{{Skip: []string{"rejected.c=ttl"}}}
	if !reportsSchema() {
		all = append(all, transform.Config{Skip: []string{"rejected.c=update"}},
			transform.Config{SoftDelete: []string{"rejected.c=gone"}}, transform.Config{History: []string{"rejected.c"}})
	}
	for _, rules := range all {
		rules.Include = []string{s.base}
		live, err := startJob(t, job.Spec{Job: newJob("rejected"), Rules: rules, Capture: job.CaptureStreams})
		if err == nil {
			err = live.wait()
			live.stop()
		}
		if err == nil || !strings.Contains(err.Error(), "precheck capture: ") {
			t.Errorf("%+v: %v", rules, err)
		}
	}
	dbs, err := shared.targetDB.ListDatabaseNames(t.Context(), d("name", s.base))
	if err != nil || len(dbs) > 0 {
		t.Errorf("the target has %q, %v", dbs, err)
	}
}
