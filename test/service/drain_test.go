package service

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// TestDrains: workers of a job under writes are drained, one or both, and take jobs again,
// while they are killed, serve is killed, and the job is paused, resumed, and asked to
// finalize. The job never fails, and the target is the same in the end.
func TestDrains(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	b := newBed(t, nil)
	r := rand.New(rand.NewPCG(testseed.Of(t), 7))
	churn := b.churn()
	names := []string{"w1", "w2"}
	for _, name := range names {
		b.startWorker(name)
	}
	b.until("the workers", func() bool { return len(b.desk.View.Workers()) == len(names) })
	b.create()
	for range testseed.Rounds(t, 40) {
		b.disturb(r, names)
		time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond) // its random place among the others
		if j := b.job(); j != nil && j.State() == service.Failed {
			t.Fatalf("the job has failed: %s", j.Report.Error)
		}
	}
	churn.Stop()
	for _, name := range names {
		b.until("worker "+name, func() bool {
			return slices.ContainsFunc(b.desk.View.Workers(), func(w service.Worker) bool { return w.Name == name })
		})
		b.drain(name, false)
	}
	if _, err := b.desk.Resume(t.Context(), &b.admin, "churn"); err != nil {
		t.Fatal(err)
	}
	b.phase(false, job.PhaseFollowing)
	b.finish()
	b.endAll()
}

// disturb does one thing to the workers, serve or the job. What is refused is refused.
func (b *bed) disturb(r *rand.Rand, names []string) {
	b.Helper()
	name := names[r.IntN(len(names))]
	switch r.IntN(11) {
	case 0, 1:
		b.drain(name, true)
	case 2, 3, 4:
		b.drain(name, false)
	case 5:
		for _, all := range names {
			b.drain(all, true)
		}
	case 6:
		b.workers[name].Kill()
		b.startWorker(name)
	case 7:
		b.serve.Kill()
		b.startServe()
		b.until("serve", func() bool {
			_, err := b.desk.Trail(b.Context(), &b.admin, "churn", service.Page{Limit: 1})
			return err == nil
		})
	case 8:
		_, _ = b.desk.Pause(b.Context(), &b.admin, "churn")
	case 9:
		_, _ = b.desk.Resume(b.Context(), &b.admin, "churn")
	case 10: // the job is behind its source: there is time to take it back
		_, _ = b.desk.Pause(b.Context(), &b.admin, "churn")
		_, _ = b.desk.Finalize(b.Context(), &b.admin, "churn", true)
		if _, err := b.desk.CancelFinalize(b.Context(), &b.admin, "churn"); err != nil {
			b.Log(err)
		}
	}
}

// drain drains a worker, or takes that back, where it is there.
func (b *bed) drain(name string, on bool) {
	if _, err := b.desk.Drain(b.Context(), &b.admin, name, on); err != nil {
		b.Logf("drain %s %v: %v", name, on, err)
	}
}
