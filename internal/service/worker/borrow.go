package worker

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/service"
)

// Why a worker stops copying a part of another's job.
var (
	errOwnFirst = errors.New("the worker has a copy of its own")
	errEnded    = errors.New("the run that lent has ended")
)

// borrow copies parts of jobs that other workers run, one job at a time, while this one
// has no copy of its own to do.
func (w *Worker) borrow(ctx context.Context) error {
	rest := map[string]rest{} // by run
	for {
		changed, _ := w.View.Changed()
		if j := w.lender(rest); j != nil {
			r := rest[j.Lease.Run]
			began := time.Now()
			err := w.borrowFrom(ctx, j)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			rest[j.Lease.Run] = r.next(began, err)
			continue
		}
		w.forgetRests(rest)
		select {
		case <-changed:
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		// Reports come often.
		if err := pace.Pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// rest is how long a run is left alone that did not lend, or to which this worker is of
// no use: longer each time.
type rest struct {
	until time.Time
	pause time.Duration
}

const (
	shortestRest = time.Second
	longestRest  = time.Minute
)

func (r rest) next(began time.Time, err error) rest {
	if err == nil {
		return rest{until: time.Now().Add(shortestRest)}
	}
	if time.Since(began) > longestRest { // it did work
		r.pause = 0
	}
	r.pause = min(max(2*r.pause, shortestRest), longestRest)
	r.until = time.Now().Add(r.pause)
	return r
}

// forgetRests forgets those of runs that are no more.
func (w *Worker) forgetRests(rests map[string]rest) {
	runs := map[string]bool{}
	for _, j := range w.View.Jobs() {
		if j.Lease != nil {
			runs[j.Lease.Run] = true
		}
	}
	for run := range rests {
		if !runs[run] {
			delete(rests, run)
		}
	}
}

// lender is the job to borrow from: the one that the fewest work at, nil where there is none.
func (w *Worker) lender(rests map[string]rest) *service.Job {
	if w.draining() || !w.room() || w.copies() {
		return nil
	}
	var best *service.Job
	jobs := w.View.Jobs()
	for i := range jobs {
		j := &jobs[i]
		if !lends(j) || j.Lease.Worker == w.Name || !j.Definition.Fits(w.Labels) || time.Now().Before(rests[j.Lease.Run].until) {
			continue
		}
		if best == nil || workers(j) < workers(best) {
			best = j
		}
	}
	return best
}

// lends reports that the run which has a job has slices for others.
func lends(j *service.Job) bool {
	r := j.Report
	return j.Lease != nil && r != nil && r.Run == j.Lease.Run && r.UID == j.Definition.UID && r.State == service.Running && r.Status != nil && r.Status.Copy.Lendable > 0
}

// workers is how many have slices of a job now.
func workers(j *service.Job) (n int) {
	for _, b := range j.Report.Status.Copy.Workers {
		if b.Slices > 0 {
			n++
		}
	}
	return n
}

// copies reports that a job of this worker is copied, or is about to.
func (w *Worker) copies() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, u := range w.units {
		if u.copies() {
			return true
		}
	}
	return false
}

func (u *unit) copies() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	st := u.report.Status
	if st == nil {
		return true
	}
	switch st.Phase {
	case job.PhaseStarting, job.PhaseCatalog, job.PhaseCreating, job.PhaseCopying:
		return !st.Paused
	}
	return false
}

// borrowFrom copies a part of a job until nothing is left to borrow, or this worker has
// something better to do.
func (w *Worker) borrowFrom(ctx context.Context, j *service.Job) error {
	log := w.Log.With("job", j.Definition.Name, "of", j.Lease.Worker)
	ctx, cancel := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		w.watchLender(ctx, j, cancel)
	}()
	defer func() {
		cancel(nil)
		<-watched
	}()
	ask := func(ctx context.Context, request []byte) ([]byte, error) {
		return w.Hub.Borrow(ctx, j.Lease.Run, request)
	}
	s, problems := config.Definition(j.Definition.Name, j.Definition.Settings, w.Resolve)
	if len(problems) > 0 {
		log.Warn("a part of the job cannot be copied here", "error", problems)
		return errors.Join(problems, job.Decline(ctx, w.Name, problems, ask))
	}
	spec := s.Spec
	spec.Deps = w.Deps
	spec.Log, spec.Lending = log, &job.Lending{Version: w.Version}
	log.Info("copying a part of another worker's job")
	err := job.Borrow(ctx, spec, w.Name, ask)
	tell(log, err)
	return err
}

func tell(log *slog.Logger, err error) {
	if err != nil {
		log.Info("copies no more of the other worker's job", "why", mongo.Brief(err))
		return
	}
	log.Info("copied a part of another worker's job")
}

// watchLender ends the borrowing when there is something better to do, or nothing left.
func (w *Worker) watchLender(ctx context.Context, j *service.Job, end context.CancelCauseFunc) {
	for pace.Pause(ctx, lookEvery) == nil {
		now := w.View.Job(j.Definition.Name)
		switch {
		case w.draining():
			end(errDrained)
		case w.copies():
			end(errOwnFirst)
		case now != nil && now.Lease != nil && now.Lease.Run != j.Lease.Run:
			end(errEnded)
		}
	}
}
