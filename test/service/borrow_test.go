package service

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/assigntest"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// fillLarge makes a collection of so many megabytes, which is copied in several slices.
func (b *bed) fillLarge(db, coll string, megabytes int) {
	b.Helper()
	pad := bytes.Repeat([]byte("x"), 20_000)
	for from := range megabytes {
		docs := make([]any, 50)
		for i := range docs {
			docs[i] = bson.D{{Key: "_id", Value: from*50 + i}, {Key: "pad", Value: pad}}
		}
		if _, err := b.sc.Database(db).Collection(coll).InsertMany(b.Context(), docs); err != nil {
			b.Fatal(err)
		}
	}
}

// assistant is what the owner says of a worker that copies a part.
func (b *bed) assistant(name string) assign.Figures {
	if j := b.job(); j != nil && j.Report != nil && j.Report.Status != nil {
		return assigntest.Of(name, j.Report.Status.Copy.Workers)
	}
	return assign.Figures{}
}

// copies waits until a worker has copied more of another one's job than it had.
func (b *bed) copies(name string) {
	b.Helper()
	had := b.assistant(name).Docs
	b.until(name+" copies a part", func() bool { s := b.assistant(name); return s.Docs > had && s.Parts > 0 })
}

// givenUp waits until the owner has taken back what a worker had.
func (b *bed) givenUp(name string) {
	b.Helper()
	b.until(name+" is given up", func() bool { s := b.assistant(name); return s.Why != "" && s.Parts == 0 })
	b.copying()
}

func (b *bed) copying() {
	b.Helper()
	if p := b.job().Report.Status.Phase; p != job.PhaseCopying {
		b.Fatalf("in phase %s: the copy was over too soon to show anything", p)
	}
}

// TestBorrowersDie: three workers copy a job. Those that copy a part are killed, stopped
// and cut off from NATS, and the owner is killed, while documents and collections change:
// the target is the same in the end.
func TestBorrowersDie(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	b := newBed(t, nil)
	for _, coll := range []string{"large", "doomed", "moved"} {
		b.fillLarge("svc", coll, 80)
	}
	test.LoadChurn(t, b.sc.Database("svc"))
	churn := test.StartChurn(t, b.sc.Database("svc"),
		test.ChurnOptions{Seed: testseed.Of(t), SchemaEvery: 500 * time.Millisecond, Pause: 20 * time.Millisecond})
	b.die("['svc.*', 'svc-x.*']", b.changeLarge)

	func() { // on a busy machine it would never catch up
		defer churn.Hold()()
		b.phase(false, job.PhaseFollowing)
	}()
	churn.Stop()
	b.finish()
	t.Logf("%+v", b.job().Report.Status.Copy.Workers)
}

// die has three workers copy a job of 240 MB, without an end to its rate then. Those that
// copy a part are killed, stopped and cut off from NATS, and the owner is killed.
func (b *bed) die(include string, meanwhile func()) {
	b.Helper()
	t := b.T
	names := []string{"w1", "w2", "w3"}
	for _, name := range names {
		b.startWorker(name)
	}
	b.until("the workers", func() bool { return len(b.desk.View.Workers()) == len(names) })
	_, made, err := b.desk.Create(t.Context(), &b.admin, service.Definition{Name: "churn",
		Settings: "source: env:SRC\ntarget: env:DST\ninclude: " + include + "\nallow-missing: true\nmax-rate-bytes: 2MB\n"})
	if err != nil || !made {
		t.Fatal(made, err)
	}
	owner := b.phase(true, job.PhaseCopying)
	others := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == owner })
	one, two := others[0], others[1]
	b.copies(one)
	b.copies(two)
	meanwhile()

	b.workers[one].Kill()
	b.givenUp(one)
	b.startWorker(one)
	b.copies(one)

	b.workers[two].Freeze()
	b.givenUp(two)
	select {
	case <-b.workers[two].Done():
	default:
		t.Error("slices of a worker that hangs are taken back, and it may go on")
	}

	cut := lab.ProxyForTest(t, b.nats)
	b.workers[two] = test.StartWith(t, b.env, b.bin, "worker", "--nats", "nats://"+cut.Addr(), "--nats-token-file",
		b.tokenFile(), "--name", two, "--lease", "8s")
	b.copies(two)
	cut.Stall()
	b.givenUp(two)
	cut.Restore()

	b.workers[owner].Kill()
	next := b.phase(true, job.PhaseCopying)
	others = slices.DeleteFunc([]string{one, two}, func(n string) bool { return n == next })
	b.copies(others[0])
	b.startWorker(owner)
	b.copying()

	if _, err := b.desk.Limit(t.Context(), &b.admin, "churn", server.Limits{Bytes: new(int64)}); err != nil {
		t.Fatal(err)
	}
}

// changeLarge writes to what is copied in several slices, drops and renames it.
func (b *bed) changeLarge() {
	b.Helper()
	db := b.sc.Database("svc")
	everySeventh := bson.D{{Key: "_id", Value: bson.D{{Key: "$mod", Value: bson.A{7, 1}}}}}
	for _, coll := range []string{"large", "moved"} {
		if _, err := db.Collection(coll).UpdateMany(b.Context(), everySeventh,
			bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: 1}}}}); err != nil {
			b.Fatal(err)
		}
		if _, err := db.Collection(coll).DeleteMany(b.Context(),
			bson.D{{Key: "_id", Value: bson.D{{Key: "$mod", Value: bson.A{11, 1}}}}}); err != nil {
			b.Fatal(err)
		}
	}
	if err := db.Collection("doomed").Drop(b.Context()); err != nil {
		b.Fatal(err)
	}
	rename := bson.D{{Key: "renameCollection", Value: "svc.moved"}, {Key: "to", Value: fmt.Sprintf("svc.moved-%d", 1)}}
	if err := b.sc.Database("admin").RunCommand(b.Context(), rename).Err(); err != nil {
		b.Fatal(err)
	}
}
