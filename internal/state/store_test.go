package state

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/workshop/lab"
)

func connect(t *testing.T) *mongo.Cluster {
	return dial.Cluster(t, lab.ForTest(t, lab.Options{}).URI(), mongo.Options{})
}

func TestStore(t *testing.T) {
	c := connect(t)
	t.Run("job", func(t *testing.T) { testJob(t, c) })
	t.Run("terms", func(t *testing.T) { testTerms(t, c) })
	t.Run("owner", func(t *testing.T) { testOwner(t, c) })
	t.Run("catalog and slices", func(t *testing.T) { testCatalogAndSlices(t, c) })
}

// started is the store of a new job under its first attempt.
func started(t *testing.T, c *mongo.Cluster, name string, job Job) *Mongo {
	t.Helper()
	s := opened(c, name)
	if taken, err := s.TakeNew(t.Context(), job); err != nil || !taken {
		t.Fatal(taken, err)
	}
	begin(t, s)
	return s
}

func begin(t *testing.T, s *Mongo) Job {
	t.Helper()
	job, err := s.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// opened is the store of a new run, where no other run has anything under way.
func opened(c *mongo.Cluster, job string) *Mongo {
	return Open(c, Options{Job: job, Run: NewRun(), Write: "majority",
		EndOthers: func(ctx context.Context, _ int64, then bson.D) (bson.Raw, error) {
			return c.Command(ctx, mongo.StateDB, then)
		}})
}

func testJob(t *testing.T, c *mongo.Cluster) {
	s := opened(c, "a")
	if _, found, err := s.Load(t.Context()); found || err != nil {
		t.Fatalf("unknown job: %v, %v", found, err)
	}
	s = started(t, c, "a", Job{Phase: "catalog", Rules: "r"})
	at := mongo.OpTime{TS: bson.Timestamp{T: 7, I: 9}, Term: 3}
	if err := s.Save(t.Context(), bson.D{{Key: "applied", Value: at}, {Key: "phase", Value: "copying"}}); err != nil {
		t.Fatal(err)
	}
	job, found, err := s.Load(t.Context())
	if err != nil || !found || job.Applied != at || job.Phase != "copying" || job.Rules != "r" ||
		job.Owner != ThisProcess(s.o.Run) {
		t.Errorf("loaded %+v, %v, %v", job, found, err)
	}
	fence := job.Fence
	if err := s.Reset(t.Context(), Job{Phase: "catalog", Rules: "other"}); err != nil {
		t.Fatal(err)
	}
	job, found, err = s.Load(t.Context())
	if err != nil || !found || !job.Applied.IsZero() || job.Phase != "catalog" || job.Rules != "other" || !job.Restarted ||
		job.Fence != fence || job.Owner != ThisProcess(s.o.Run) {
		t.Errorf("after a reset: %+v, %v, %v", job, found, err)
	}
}

// testTerms: data written under another term than the attempt's may be lost. No
// position is stored then, neither by this save nor by a later one.
func testTerms(t *testing.T, c *mongo.Cluster) {
	s := started(t, c, "terms", Job{})
	if err := s.SameTerm(-1); err != nil { // not told
		t.Error(err)
	}
	if err := s.Save(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if err := s.SameTerm(0); err == nil || mongo.Classify(err) != mongo.ClassRetry { // an older primary's
		t.Errorf("a write of another term: %v", err)
	}
	untrue := bson.D{{Key: "phase", Value: "untrue"}}
	for range 2 {
		err := s.Save(t.Context(), untrue)
		if err == nil || mongo.Classify(err) != mongo.ClassRetry {
			t.Fatalf("save after a write of another term: %v", err)
		}
	}
	if err := s.SaveSlices(t.Context(), []Slice{{"aa/0", bson.Raw{5, 0, 0, 0, 0}}}); err == nil {
		t.Error("slices were saved after a write of another term")
	}
	job, _, err := s.Load(t.Context())
	if err != nil || job.Phase == "untrue" {
		t.Errorf("an unproven phase was stored: %+v, %v", job, err)
	}
	if got, err := s.LoadSlices(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("%d unproven slices were stored, %v", len(got), err)
	}
	if err := s.Beat(t.Context()); err != nil {
		t.Errorf("a beat claims nothing: %v", err)
	}
	// A pause is noted whatever became of the last save.
	if err := s.Mark(t.Context(), bson.D{{Key: "paused", Value: true}}); err != nil {
		t.Errorf("a mark says nothing of data: %v", err)
	}
	begin(t, s)
	if err := s.Save(t.Context(), nil); err != nil {
		t.Errorf("in the next attempt: %v", err)
	}
}

func testOwner(t *testing.T, c *mongo.Cluster) {
	never := func(o Owner) { t.Errorf("waited for %s", o) }
	first := started(t, c, "own", Job{})
	second := opened(c, "own")
	setOwner := func(o Owner) {
		t.Helper()
		_, err := c.Client.Database(mongo.StateDB).Collection("jobs").UpdateOne(t.Context(),
			bson.D{{Key: "_id", Value: "own"}}, bson.D{{Key: "$set", Value: bson.D{{Key: "owner", Value: o}}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	dead := ThisProcess("gone")
	dead.Start = "1"
	setOwner(dead)
	if _, err := second.TakeOver(t.Context(), never); err != nil {
		t.Fatalf("take over from a dead process of this machine: %v", err)
	}
	if err := first.Save(t.Context(), nil); !errors.Is(err, ErrFenced) || strings.Count(err.Error(), "checkpoint") != 1 {
		t.Errorf("save by the displaced owner: %v", err)
	}
	if _, err := first.Begin(t.Context()); !errors.Is(err, ErrFenced) {
		t.Errorf("an attempt of the displaced owner: %v", err)
	}
	if err := second.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := first.TakeOver(t.Context(), never); err != nil {
		t.Fatalf("take over after a release: %v", err)
	}
	if _, err := first.TakeOver(t.Context(), never); err != nil {
		t.Fatalf("take over once more, as after an answer that was lost: %v", err)
	}
	container := ThisProcess("elsewhere") // of the same name, with the same process id
	container.Space = "another"
	setOwner(container)
	if container.dead() {
		t.Error("an owner in another container counts as dead")
	}
	hidden := func(int) string { return "" } // by hidepid
	if me := ThisProcess("hidden"); me.deadBy(hidden) || me.deadBy(startOf) {
		t.Error("an owner that cannot be seen counts as dead")
	}
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	for _, look := range []func(int) string{hidden, startOf} {
		gone := ThisProcess("gone")
		gone.PID, gone.Start = ended.Process.Pid, "1"
		if !gone.deadBy(look) {
			t.Error("an owner that has ended counts as living")
		}
	}
	setOwner(ThisProcess(first.o.Run))
	ctx, cancel := context.WithCancel(t.Context())
	beating := make(chan struct{})
	go func() {
		defer close(beating)
		for ctx.Err() == nil {
			_ = first.Beat(ctx)
			time.Sleep(50 * time.Millisecond)
		}
	}()
	// It is of the same process: a run is told from another one all the same.
	if _, err := second.TakeOver(t.Context(), func(Owner) {}); !errors.Is(err, ErrRunning) {
		t.Errorf("take over from a living run: %v", err)
	}
	cancel()
	<-beating
	if err := first.Owned(); err != nil {
		t.Errorf("the owner was refused: %v", err)
	}
	first.mu.Lock()
	first.proven = first.now() - lease - time.Second
	first.mu.Unlock()
	if err := first.Owned(); err == nil || mongo.Classify(err) != mongo.ClassRetry {
		t.Errorf("an owner unconfirmed for longer than its lease: %v", err)
	}
}

func testCatalogAndSlices(t *testing.T, c *mongo.Cluster) {
	s := started(t, c, "cat", Job{})
	opts, err := bson.Marshal(bson.D{{Key: "capped", Value: true}})
	if err != nil {
		t.Fatal(err)
	}
	want := []Mapped{
		{Collection: schema.Collection{NS: "d.b", Type: schema.TypeCollection, Options: opts,
			UUID: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}, Target: "e.b"},
		{Collection: schema.Collection{NS: "d.a", Type: schema.TypeView, Options: opts}, Target: "e.a"},
	}
	for range 2 { // twice: a save replaces
		if err := s.SaveCatalog(t.Context(), want); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.LoadCatalog(t.Context())
	if err != nil || len(got) != 2 || got[0].NS != "d.b" || got[0].Target != "e.b" || !got[0].Capped() ||
		got[1].Type != schema.TypeView {
		t.Errorf("catalog %+v, %v", got, err)
	}
	state, err := bson.Marshal(bson.D{{Key: "x", Value: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SaveSlices(t.Context(), []Slice{{"aa/0", state}, {"aa/1", state}, {"ab/0", state}}); err != nil {
		t.Fatal(err)
	}
	if err := s.SaveSlices(t.Context(), []Slice{{"aa/1", state}}); err != nil {
		t.Fatal(err)
	}
	if got, err := s.LoadSlices(t.Context()); err != nil || len(got) != 3 {
		t.Errorf("%d slices, %v", len(got), err)
	}
	if err := s.DropSlices(t.Context(), "aa/"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.LoadSlices(t.Context()); err != nil || len(got) != 1 {
		t.Errorf("%d slices left, %v", len(got), err)
	}
}
