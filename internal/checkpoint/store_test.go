package checkpoint

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/catalog"
	"github.com/millrace/millrace/internal/lab"
	"github.com/millrace/millrace/internal/mongo"
)

func connect(t *testing.T) *mongo.Cluster {
	t.Helper()
	c, err := mongo.Connect(t.Context(), lab.ForTest(t, lab.Options{}).URI(), mongo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestStore(t *testing.T) {
	c := connect(t)
	t.Run("job", func(t *testing.T) { testJob(t, c) })
	t.Run("terms", func(t *testing.T) { testTerms(t, c) })
	t.Run("owner", func(t *testing.T) { testOwner(t, c) })
	t.Run("catalog and slices", func(t *testing.T) { testCatalogAndSlices(t, c) })
}

func testJob(t *testing.T, c *mongo.Cluster) {
	s := Open(c, "a", "majority")
	if _, found, err := s.Load(t.Context()); found || err != nil {
		t.Fatalf("unknown job: %v, %v", found, err)
	}
	if err := s.Create(t.Context(), Job{Phase: "catalog", Rules: "r"}); err != nil {
		t.Fatal(err)
	}
	at := mongo.OpTime{TS: bson.Timestamp{T: 7, I: 9}, Term: 3}
	if err := s.Save(t.Context(), bson.D{{Key: "applied", Value: at}, {Key: "phase", Value: "copying"}}); err != nil {
		t.Fatal(err)
	}
	job, found, err := s.Load(t.Context())
	if err != nil || !found || job.Applied != at || job.Phase != "copying" || job.Rules != "r" || job.Owner != ThisProcess() {
		t.Errorf("loaded %+v, %v, %v", job, found, err)
	}
	if err := s.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, found, _ := s.Load(t.Context()); found {
		t.Error("the job is still there after a reset")
	}
}

// testTerms: data written under another term than the save may be lost, and no
// later save of the same run may claim it.
func testTerms(t *testing.T, c *mongo.Cluster) {
	s := Open(c, "terms", "majority")
	if err := s.Create(t.Context(), Job{}); err != nil {
		t.Fatal(err)
	}
	s.ObserveTerm(-1) // not told
	if err := s.Save(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	s.ObserveTerm(0) // an older primary's
	err := s.Save(t.Context(), nil)
	if err == nil || mongo.Classify(err) != mongo.ClassRetry {
		t.Fatalf("save after a write of another term: %v", err)
	}
	if err := s.Beat(t.Context()); err != nil {
		t.Errorf("a beat claims nothing: %v", err)
	}
	if err := s.Save(t.Context(), nil); err == nil {
		t.Error("a later save claimed what an earlier one could not")
	}
	s.Begin()
	if err := s.Save(t.Context(), nil); err != nil {
		t.Errorf("after starting over: %v", err)
	}
}

func testOwner(t *testing.T, c *mongo.Cluster) {
	never := func(o Owner) { t.Errorf("waited for %s", o) }
	first, second := Open(c, "own", "majority"), Open(c, "own", "majority")
	if err := first.Create(t.Context(), Job{}); err != nil {
		t.Fatal(err)
	}
	setOwner := func(o Owner) {
		t.Helper()
		if err := first.Save(t.Context(), bson.D{{Key: "owner", Value: o}}); err != nil {
			t.Fatal(err)
		}
	}
	dead := ThisProcess()
	dead.Start = "1"
	setOwner(dead)
	if _, err := second.TakeOver(t.Context(), never); err != nil {
		t.Fatalf("take over from a dead process of this machine: %v", err)
	}
	if err := first.Save(t.Context(), nil); !errors.Is(err, ErrFenced) {
		t.Errorf("save by the displaced owner: %v", err)
	}
	if err := second.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := first.TakeOver(t.Context(), never); err != nil {
		t.Fatalf("take over after a release: %v", err)
	}
	setOwner(Owner{Host: "elsewhere", PID: 1})
	ctx, cancel := context.WithCancel(t.Context())
	beating := make(chan struct{})
	go func() {
		defer close(beating)
		for ctx.Err() == nil {
			_ = first.Beat(ctx)
			time.Sleep(50 * time.Millisecond)
		}
	}()
	if _, err := second.TakeOver(t.Context(), func(Owner) {}); !errors.Is(err, ErrRunning) {
		t.Errorf("take over from a living process elsewhere: %v", err)
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
	s := Open(c, "cat", "majority")
	if err := s.Create(t.Context(), Job{}); err != nil {
		t.Fatal(err)
	}
	opts, err := bson.Marshal(bson.D{{Key: "capped", Value: true}})
	if err != nil {
		t.Fatal(err)
	}
	want := []Mapped{
		{Collection: catalog.Collection{NS: "d.b", Type: catalog.TypeCollection, Options: opts, UUID: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}, Target: "e.b"},
		{Collection: catalog.Collection{NS: "d.a", Type: catalog.TypeView, Options: opts}, Target: "e.a"},
	}
	for range 2 { // twice: a save replaces
		if err := s.SaveCatalog(t.Context(), want); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.LoadCatalog(t.Context())
	if err != nil || len(got) != 2 || got[0].NS != "d.b" || got[0].Target != "e.b" || !got[0].Capped() || got[1].Type != catalog.TypeView {
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
