package job_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// TestBuildsOfSource: the target does not go without indexes that the source is building
// when the job is to end, without a report of it.
func TestBuildsOfSource(t *testing.T) {
	s := start(t)
	t.Run("finalize", func(t *testing.T) { testFinalizeWaits(t, s) })
	t.Run("rejected", func(t *testing.T) { testFinalizeRejected(t, s) })
	t.Run("full", func(t *testing.T) { testEndsWithBuilds(t, s, job.ModeFull, "bfull") })
	t.Run("structure", func(t *testing.T) { testEndsWithBuilds(t, s, job.ModeStructure, "bstructure") })
	t.Run("caught up", func(t *testing.T) { testCaughtUpRejected(t, s) })
}

func testFinalizeWaits(t *testing.T, s servers) {
	insert(t, s.srcDB, "bwait", 100)
	spec := s.spec("bwait")
	spec.Until = "never"
	ended := s.buildSlowly(t, "bwait")
	j := open(t, spec)
	warned(t, j, "prepared of bwait.c, slow of bwait.c")
	done := make(chan error, 1)
	go func() { done <- j.Run(t.Context()) }()
	kit.Until(t, "the job follows", func() bool { return j.Status().Phase == job.PhaseFollowing })
	asked := make(chan error, 1)
	go func() { asked <- j.Finalize(t.Context(), false) }()
	kit.Until(t, "the status names the builds", func() bool {
		st := j.Status()
		return strings.Contains(st.Waiting, "prepared of bwait.c, slow of bwait.c") && st.Phase == job.PhaseFollowing
	})
	// It is not begun yet: it can be taken back.
	if err := j.CancelFinalize(t.Context()); err != nil {
		t.Error(err)
	}
	<-asked
	kit.Until(t, "the wait ends", func() bool { return j.Status().Waiting == "" })
	go func() { asked <- j.Finalize(t.Context(), false) }()
	kit.Until(t, "it waits again", func() bool { return j.Status().Waiting != "" })
	ended()
	if err := errors.Join(<-asked, <-done); err != nil {
		t.Fatal(err)
	}
	if got := s.indexesOf(t, "bwait"); got != "prepared slow" {
		t.Errorf("indexes of the target: %s", got)
	}
	if d := j.Status().Differences; len(d) > 0 {
		t.Errorf("differences: %v", d)
	}
}

func testFinalizeRejected(t *testing.T, s servers) {
	insert(t, s.srcDB, "breject", 100)
	spec := s.spec("breject")
	spec.Until, spec.IndexWait = "never", time.Second
	j := open(t, spec)
	done := make(chan error, 1)
	go func() { done <- j.Run(t.Context()) }()
	kit.Until(t, "the job follows", func() bool { return j.Status().Phase == job.PhaseFollowing })
	ended := s.buildSlowly(t, "breject")
	rejected(t, j.Finalize(t.Context(), false), "prepared of breject.c, slow of breject.c")
	if st := j.Status(); st.Phase != job.PhaseFollowing || st.FinalizeWanted || !st.CanFinalize {
		t.Errorf("after a rejection: phase %s, wanted %v, can %v", st.Phase, st.FinalizeWanted, st.CanFinalize)
	}
	insert(t, s.srcDB, "breject", 10)
	kit.Until(t, "it goes on", func() bool { return count(t, s.targetC, "breject") == 110 })
	ended()
	if err := errors.Join(j.Finalize(t.Context(), false), <-done); err != nil {
		t.Fatal(err)
	}
	if got := s.indexesOf(t, "breject"); got != "prepared slow" {
		t.Errorf("indexes of the target: %s", got)
	}
}

// testEndsWithBuilds: so does a job that ends by itself.
func testEndsWithBuilds(t *testing.T, s servers, mode job.Mode, db string) {
	insert(t, s.srcDB, db, 100)
	spec := s.spec(db)
	spec.Mode = mode
	ended := s.buildSlowly(t, db)
	j := open(t, spec)
	done := make(chan error, 1)
	go func() { done <- j.Run(t.Context()) }()
	kit.Until(t, "the status names the builds", func() bool {
		return strings.Contains(j.Status().Waiting, "prepared of "+db+".c, slow of "+db+".c")
	})
	ended()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := s.indexesOf(t, db); got != "prepared slow" {
		t.Errorf("indexes of the target: %s", got)
	}
	if d := j.Status().Differences; len(d) > 0 {
		t.Errorf("differences: %v", d)
	}
}

// testCaughtUpRejected: where no operator asked to finalize, the job ends.
func testCaughtUpRejected(t *testing.T, s servers) {
	for _, mode := range []job.Mode{job.ModeAll, job.ModeStructure} {
		db := "bcaught" + string(mode)
		insert(t, s.srcDB, db, 100)
		spec := s.spec(db)
		spec.Mode, spec.IndexWait = mode, time.Second
		ended := s.buildSlowly(t, db)
		rejected(t, open(t, spec).Run(t.Context()), "prepared of "+db+".c, slow of "+db+".c")
		ended()
	}
}

func rejected(t *testing.T, err error, names string) {
	t.Helper()
	var r *job.Refusal
	if !errors.As(err, &r) || r.Code != job.CodeBuilding || mongo.HintOf(err) == "" ||
		!strings.Contains(err.Error(), names) {
		t.Errorf("%v, want it rejected because of %s, with a hint", err, names)
	}
}

// warned looks for the builds in the plan.
func warned(t *testing.T, j *job.Job, names string) {
	t.Helper()
	p, err := j.Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range p.Checks {
		if c.Level == precheck.Warn && strings.Contains(c.Message, names) {
			return
		}
	}
	t.Errorf("the plan does not name %s: %+v", names, p.Checks)
}

// buildSlowly begins to build two indexes of the source, which do not end before ended
// is called.
func (s servers) buildSlowly(t *testing.T, db string) (ended func()) {
	t.Helper()
	failPoint := func(mode string) {
		err := s.srcDB.Database("admin").RunCommand(context.Background(), bson.D{{Key: "configureFailPoint",
			Value: "hangAfterStartingIndexBuild"}, {Key: "mode", Value: mode}}).Err()
		if err != nil {
			t.Error(err)
		}
	}
	failPoint("alwaysOn")
	done := make(chan error, 2)
	for _, spec := range []bson.D{
		{{Key: "key", Value: bson.D{{Key: "i", Value: 1}}}, {Key: "name", Value: "prepared"},
			{Key: "prepareUnique", Value: true}},
		{{Key: "key", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "name", Value: "slow"}},
	} {
		go func() {
			done <- s.srcDB.Database(db).RunCommand(context.Background(), bson.D{{Key: "createIndexes", Value: "c"},
				{Key: "indexes", Value: bson.A{spec}}, {Key: "commitQuorum", Value: 1}}).Err()
		}()
	}
	ended = sync.OnceFunc(func() {
		failPoint("off")
		if err := errors.Join(<-done, <-done); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(ended)
	kit.Until(t, "the builds begin", func() bool {
		specs, err := s.srcDB.Database(db).Collection("c").Indexes().ListSpecifications(t.Context())
		return err == nil && len(specs) == 3
	})
	return ended
}

// indexesOf names the indexes of a collection of the target but for that on _id.
func (s servers) indexesOf(t *testing.T, db string) string {
	t.Helper()
	specs, err := s.targetC.Database(db).Collection("c").Indexes().ListSpecifications(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, spec := range specs {
		if spec.Name != "_id_" {
			names = append(names, spec.Name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// TestTargetMemberDown: one dead secondary of the target delays neither the copy's
// indexes nor an index that the source makes later, which is a barrier for all changes.
func TestTargetMemberDown(t *testing.T) {
	s := servers{src: lab.ForTest(t, lab.Options{}), dst: lab.ForTest(t, lab.Options{Topology: "rs:3", LeanJournal: true})}
	s.srcDB, s.targetC = kit.Client(t, s.src.URI()), kit.Client(t, s.dst.URI())
	index := func(field string) {
		t.Helper()
		if _, err := s.srcDB.Database("down").Collection("c").Indexes().CreateOne(t.Context(),
			driver.IndexModel{Keys: bson.D{{Key: field, Value: 1}}}); err != nil {
			t.Fatal(err)
		}
	}
	insert(t, s.srcDB, "down", 100)
	index("i")
	primary, err := s.dst.Primary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.dst.Members()[(primary+1)%3].Kill(); err != nil {
		t.Fatal(err)
	}
	spec := s.spec("down")
	spec.Until = "never"
	j, end := running(t, spec)
	index("x")
	insert(t, s.srcDB, "down", 10)
	kit.Until(t, "changes after the index are applied", func() bool { return count(t, s.targetC, "down") == 110 })
	if err := errors.Join(j.Finalize(t.Context(), true), <-end); err != nil {
		t.Fatal(err)
	}
	if got := s.indexesOf(t, "down"); got != "i_1 x_1" {
		t.Errorf("indexes of the target: %s", got)
	}
}
