package worker

import (
	"context"
	"errors"
	"log/slog"
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

var (
	errOwnFirst = errors.New("the worker has a copy of its own")
	errEnded    = errors.New("the run of the owner has ended")
)

// assist reads parts of other workers' copies and verifications, one at a time, unless this worker copies itself.
func (w *Worker) assist(ctx context.Context) error {
	rests := map[string]rest{} // by run
	for {
		changed, _ := w.View.Changed()
		if run, work := w.nextAssist(rests); work != nil {
			r := rests[run]
			began := time.Now()
			err := work(ctx)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			rests[run] = r.next(began, err)
			continue
		}
		maps.DeleteFunc(rests, func(_ string, r rest) bool { return time.Since(r.until) > longestRest })
		select {
		case <-changed:
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := pace.Pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// rest is the pause of a run that assigned nothing. It doubles each time.
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

func (w *Worker) nextAssist(rests map[string]rest) (run string, work func(context.Context) error) {
	if w.draining() || !w.room() || w.copies() {
		return "", nil
	}
	if j := w.copyToAssist(rests); j != nil {
		return j.Lease.Run, func(ctx context.Context) error { return w.assistCopy(ctx, j) }
	}
	if v := w.verificationToAssist(rests); v != nil {
		return v.Lease.Run, func(ctx context.Context) error { return w.assistVerification(ctx, v) }
	}
	return "", nil
}

func (w *Worker) copyToAssist(rests map[string]rest) *service.Job {
	var best *service.Job
	jobs := w.View.Jobs()
	for i := range jobs {
		j := &jobs[i]
		if !hasParts(j) || j.Lease.Worker == w.Name || !j.Definition.Fits(w.Labels) || rests[j.Lease.Run].waits() {
			continue
		}
		if best == nil || workers(j) < workers(best) {
			best = j
		}
	}
	return best
}

func hasParts(j *service.Job) bool {
	return j.Live() && j.Report.State == service.Running && j.Report.Status.Copy.Lendable > 0
}

func workers(j *service.Job) (n int) {
	for _, b := range j.Report.Status.Copy.Workers {
		if b.Parts > 0 {
			n++
		}
	}
	return n
}

// copies reports whether this worker copies a job of its own, or is about to.
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

func (w *Worker) assistCopy(ctx context.Context, j *service.Job) error {
	log, run, ask := w.Log.With("job", j.Definition.Name, "of", j.Lease.Worker), j.Lease.Run, w.asking(j.Lease.Run)
	return w.watched(ctx, log, func() bool {
		now := w.View.Job(j.Definition.Name)
		return now != nil && now.Lease != nil && now.Lease.Run != run
	}, func(ctx context.Context) error {
		s, problems := config.Definition(j.Definition.Name, j.Definition.Settings, &w.Access)
		if len(problems) > 0 {
			log.Warn("a part of the job cannot be copied here", "error", problems)
			return errors.Join(problems, assign.Decline(ctx, w.Name, problems, ask))
		}
		spec := s.Spec
		spec.Deps = w.Deps
		spec.Log, spec.Offer = log, &assign.Offer{Version: w.Version}
		return job.Assist(ctx, spec, w.Name, ask)
	})
}

func (w *Worker) asking(run string) assign.Ask {
	return func(ctx context.Context, request []byte) ([]byte, error) { return w.Hub.AskOwner(ctx, run, request) }
}

func (w *Worker) offer(run string) *assign.Offer {
	serve := func(ctx context.Context, answer func(context.Context, []byte) []byte) error {
		return w.Hub.ServeAssistants(ctx, run, answer)
	}
	return &assign.Offer{Version: w.Version, Lease: w.Hub.Lease(), Serve: serve}
}

func (w *Worker) verificationToAssist(rests map[string]rest) *service.Verification {
	for _, v := range w.View.OpenVerifications() {
		if v.State() != service.VerifyRunning || v.Report.Lendable == 0 || v.Lease.Worker == w.Name ||
			rests[v.Lease.Run].waits() {
			continue
		}
		if j := w.View.Job(v.Request.Job); j != nil && j.Definition.Fits(w.Labels) {
			return &v
		}
	}
	return nil
}

func (w *Worker) assistVerification(ctx context.Context, v *service.Verification) error {
	log := w.Log.With("job", v.Request.Job, "verification", v.Request.ID, "of", v.Lease.Worker)
	return w.watched(ctx, log, func() bool {
		now := w.View.Verification(v.Request.Job, v.Request.ID)
		return now == nil || now.Lease == nil || now.Lease.Run != v.Lease.Run
	}, func(ctx context.Context) error {
		s, err := w.settings(ctx, v.Request.Job, v.Request.UID)
		if err != nil {
			log.Warn("parts of the verification cannot be read here", "error", err)
			return err
		}
		spec := verify.Spec{Source: s.Source, Target: s.Target, AllowShard: s.AllowShard, Rules: s.Rules,
			Options: verify.Options{MaxBufferedBytes: checkMemory, Log: log}}
		return verify.Assist(ctx, spec, w.Name, w.Version, w.asking(v.Lease.Run))
	})
}

// watched assists until this worker has work of its own, or the owner's run has ended.
func (w *Worker) watched(ctx context.Context, log *slog.Logger, ended func() bool,
	work func(context.Context) error) error {
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
	log.Info("assisting another worker")
	err := work(ctx)
	cancel(nil)
	watching.Wait()
	if err != nil {
		log.Info("assists the other worker no more", "why", mongo.Brief(err))
	} else {
		log.Info("has assisted the other worker")
	}
	return err
}
