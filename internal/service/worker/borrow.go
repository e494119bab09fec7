package worker

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/verify"
)

// Why a worker stops copying a part of another's job.
var (
	errOwnFirst = errors.New("the worker has a copy of its own")
	errEnded    = errors.New("the run that lent has ended")
)

// borrow copies parts of jobs that other workers run, and reads parts of what others
// verify, of one at a time, while this one has no copy of its own to do.
func (w *Worker) borrow(ctx context.Context) error {
	rest := map[string]rest{} // by run
	for {
		changed, _ := w.View.Changed()
		if run, work := w.lender(rest); work != nil {
			r := rest[run]
			began := time.Now()
			err := work(ctx)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			rest[run] = r.next(began, err)
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

func (r rest) waits() bool { return time.Now().Before(r.until) }

// forgetRests forgets those of runs that are no more.
func (w *Worker) forgetRests(rests map[string]rest) {
	runs := map[string]bool{}
	for _, j := range w.View.Jobs() {
		if j.Lease != nil {
			runs[j.Lease.Run] = true
		}
	}
	for _, v := range w.View.OpenVerifications() {
		if v.Lease != nil {
			runs[v.Lease.Run] = true
		}
	}
	maps.DeleteFunc(rests, func(run string, _ rest) bool { return !runs[run] })
}

// lender is the run to borrow from, and the work for it; nil where there is none.
func (w *Worker) lender(rests map[string]rest) (run string, work func(context.Context) error) {
	if w.draining() || !w.room() || w.copies() {
		return "", nil
	}
	if j := w.copyLender(rests); j != nil {
		return j.Lease.Run, func(ctx context.Context) error { return w.borrowFrom(ctx, j) }
	}
	if v := w.verifyLender(rests); v != nil {
		return v.Lease.Run, func(ctx context.Context) error { return w.readFor(ctx, v) }
	}
	return "", nil
}

// copyLender is the job to borrow from: the one that the fewest work at.
func (w *Worker) copyLender(rests map[string]rest) *service.Job {
	var best *service.Job
	jobs := w.View.Jobs()
	for i := range jobs {
		j := &jobs[i]
		if !lends(j) || j.Lease.Worker == w.Name || !j.Definition.Fits(w.Labels) || rests[j.Lease.Run].waits() {
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
	return j.Live() && j.Report.State == service.Running && j.Report.Status.Copy.Lendable > 0
}

// workers is how many have slices of a job now.
func workers(j *service.Job) (n int) {
	for _, b := range j.Report.Status.Copy.Workers {
		if b.Parts > 0 {
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
	ctx, stop := w.watched(ctx, func() bool {
		now := w.View.Job(j.Definition.Name)
		return now != nil && now.Lease != nil && now.Lease.Run != j.Lease.Run
	})
	defer stop()
	ask := w.asking(j.Lease.Run)
	s, problems := config.Definition(j.Definition.Name, j.Definition.Settings, w.Resolve)
	if len(problems) > 0 {
		log.Warn("a part of the job cannot be copied here", "error", problems)
		return errors.Join(problems, assign.Decline(ctx, w.Name, problems, ask))
	}
	spec := s.Spec
	spec.Deps = w.Deps
	spec.Log, spec.Offer = log, &assign.Offer{Version: w.Version}
	log.Info("copying a part of another worker's job")
	if err := job.Assist(ctx, spec, w.Name, ask); err != nil {
		log.Info("copies no more of the other worker's job", "why", mongo.Brief(err))
		return err
	}
	log.Info("copied a part of another worker's job")
	return nil
}

// asking is how the owner of some work, which a run has, is asked.
func (w *Worker) asking(run string) assign.Ask {
	return func(ctx context.Context, request []byte) ([]byte, error) { return w.Hub.AskOwner(ctx, run, request) }
}

// offer is how other workers are assigned parts of the work that a run has.
func (w *Worker) offer(run string) *assign.Offer {
	serve := func(ctx context.Context, answer func(context.Context, []byte) []byte) error {
		return w.Hub.ServeAssistants(ctx, run, answer)
	}
	return &assign.Offer{Version: w.Version, Lease: w.Hub.Lease(), Serve: serve}
}

// verifyLender is a verification of another worker that has parts for others, nil where
// there is none.
func (w *Worker) verifyLender(rests map[string]rest) *service.Verification {
	for _, v := range w.View.OpenVerifications() {
		if v.State() != service.VerifyRunning || v.Report.Lendable == 0 || v.Lease.Worker == w.Name ||
			rests[v.Lease.Run].waits() {
			continue
		}
		if j := w.View.Job(v.Wish.Job); j != nil && j.Definition.Fits(w.Labels) {
			return &v
		}
	}
	return nil
}

// readFor reads parts of a verification until nothing is left to read, or this worker has
// something better to do.
func (w *Worker) readFor(ctx context.Context, v *service.Verification) error {
	log := w.Log.With("job", v.Wish.Job, "verification", v.Wish.ID, "of", v.Lease.Worker)
	ctx, stop := w.watched(ctx, func() bool {
		now := w.View.Verification(v.Wish.Job, v.Wish.ID)
		return now == nil || now.Lease == nil || now.Lease.Run != v.Lease.Run
	})
	defer stop()
	s, err := w.settings(ctx, v.Wish.Job, v.Wish.UID)
	if err != nil {
		log.Warn("parts of the verification cannot be read here", "error", err)
		return err
	}
	log.Info("reading parts of another worker's verification")
	spec := verify.Spec{Source: s.Source, Target: s.Target, AllowShard: s.AllowShard, Rules: s.Rules,
		Options: verify.Options{MaxBufferedBytes: checkMemory, Log: log}}
	err = verify.Assist(ctx, spec, w.Name, w.Version, w.asking(v.Lease.Run))
	if err != nil {
		log.Info("reads no more of the other worker's verification", "why", mongo.Brief(err))
		return err
	}
	log.Info("has read parts of the other worker's verification")
	return nil
}

// watched is a context that ends when there is something better to do than to borrow, or
// the lender's run has ended; until stop.
func (w *Worker) watched(ctx context.Context, ended func() bool) (watched context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		for pace.Pause(ctx, lookEvery) == nil {
			switch {
			case w.draining():
				cancel(errDrained)
			case w.copies():
				cancel(errOwnFirst)
			case ended():
				cancel(errEnded)
			}
		}
	})
	return ctx, func() { cancel(nil); watching.Wait() }
}
