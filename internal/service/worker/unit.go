package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/procstat"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/service/spans"
	"github.com/millrace/millrace/internal/state"
)

type unit struct {
	*task
	name   string
	uid    string
	record *recorder
	spans  *spans.Run
	// earlier is the last status before this run, nil for none.
	earlier *job.Status

	mu     sync.Mutex
	report service.Report
	job    *job.Job // while it runs
}

var errRemoved = errors.New("the job was removed")

func (u *unit) run() {
	u.log.Info("job taken", "run", u.lease.Run)
	u.spans = u.worker.Spans.Take(u.ctx, u.name, u.worker.Name, u.lease.Run)
	u.set(func(r *service.Report) {
		*r = service.Report{UID: u.uid, Run: u.lease.Run, Worker: u.worker.Name, State: service.Starting}
	})
	u.keeping(u.take, u.forget)
}

func (u *unit) take() {
	u.record = newRecorder(&u.worker.Hub.Records, runOf{u.uid, u.lease.Run, u.worker.Name}, hub.Spans(), u.log)
	u.record.start(u.ctx)
	d, err := u.worker.definition(u.ctx, u.name, u.uid)
	event := func(slog.Level, string, ...service.Field) {} // no record of another definition
	switch {
	case errors.Is(err, hub.ErrNotFound) || errors.Is(err, hub.ErrChanged):
		u.cancel(err)
	case err != nil:
		u.cancel(fmt.Errorf("the definition cannot be read: %w", err))
	case d.Desired.Removed:
		err = errRemoved
		u.cancel(err)
	default:
		event = u.record.event
		event(slog.LevelInfo, "taken by worker "+u.worker.Name)
		if r := u.before(); r != nil {
			u.earlier = r.Status
			u.set(func(now *service.Report) { now.Wrote = r.Wrote || r.Status != nil })
		}
		u.sendReport()
		err = u.afterOthers(func() error { return u.work(d) })
	}
	u.end(err, event)
	if u.report.State != service.Failed { // not if another worker continues
		err = nil
	}
	u.spans.End(err)
	u.record.close() // needs the lease, which ends when the job is forgotten
}

// definition returns hub.ErrChanged if another job has the name.
func (w *Worker) definition(ctx context.Context, name, uid string) (*service.Definition, error) {
	d, err := w.Hub.Jobs.Definition(ctx, name)
	if err == nil && d.UID != uid {
		err = fmt.Errorf("job %s was made anew: %w", name, hub.ErrChanged)
	}
	return d, err
}

func (w *Worker) settings(ctx context.Context, name, uid string) (*config.Sync, error) {
	d, err := w.definition(ctx, name, uid)
	if err != nil {
		return nil, err
	}
	return w.read(name, d.Settings, &w.Access)
}

func (w *Worker) read(name, text string, access *config.Access) (*config.Sync, error) {
	s, problems := config.Definition(name, text, access)
	if len(problems) > 0 {
		return nil, mongo.WithHint(fmt.Errorf("the settings cannot be used by worker %s: %w", w.Name, problems),
			"correct them, or give this worker what they refer to")
	}
	return s, nil
}

// noting returns the worker's access, of which note gets each secret.
func (w *Worker) noting(note func(secret string)) *config.Access {
	return &config.Access{File: w.Access.File, Secret: func(job, reference string) (string, error) {
		value, err := w.Access.Secret(job, reference)
		note(value)
		return value, err
	}}
}

// leavingTime is how long a run without its lease may write to the target.
const leavingTime = time.Minute

// afterOthers repeats work while an earlier run owns the job on the target. An owner that does not end belongs to
// another service, and fails the job.
func (u *unit) afterOthers(work func() error) error {
	for began := time.Now(); ; {
		err := work()
		if !errors.Is(err, state.ErrRunning) || u.ctx.Err() != nil ||
			time.Since(began) > max(leavingTime, 4*u.worker.Hub.Lease()) {
			return err
		}
		u.set(func(r *service.Report) {
			r.State, r.Error, r.Hint = service.Starting, mongo.Brief(err), mongo.HintOf(err)
		})
		u.log.Warn("an earlier run of the job has not ended yet; trying again", "error", err)
		u.sendReport()
		if err := pace.Pause(u.ctx, lookEvery); err != nil {
			return err
		}
	}
}

func (u *unit) work(d *service.Definition) error {
	u.set(func(r *service.Report) { r.Try = d.Desired.Try })
	s, err := u.worker.read(u.name, d.Settings, u.worker.noting(u.record.hide))
	if err != nil {
		return err
	}
	spec := s.Spec
	spec.Deps = u.worker.Deps
	spec.Log = slog.New(slog.NewMultiHandler(u.log.Handler(), &jobLog{to: u.record}))
	spec.OnEvent = u.spans.OnEvent()
	spec.FinalizeLogged = d.Desired.Finalize && u.earlier != nil && u.earlier.FinalizeWanted
	spec.Usage = func() procstat.Usage { return procstat.Usage{} }
	spec.Limits, spec.Loads = *cmp.Or(d.Desired.Limits, &spec.Limits), *cmp.Or(d.Desired.Loads, &spec.Loads)
	spec.Offer = u.worker.offer(u.lease.Run)
	spec.SpoolDir, spec.SpoolBytes = u.worker.SpoolDir, min(spec.SpoolBytes, u.worker.SpoolBytes)
	backoff := retry.Backoff{Waiting: func(failure error, pause time.Duration) {
		u.set(func(r *service.Report) {
			if r.Error, r.Hint = "", ""; failure != nil {
				r.Error, r.Hint = mongo.Brief(failure), mongo.HintOf(failure)
			}
		})
		if failure != nil {
			spec.Log.Warn("the job cannot be begun yet", "error", failure, "retryIn", pause)
			u.sendReport()
		}
	}}
	var j *job.Job
	var plan *job.Plan
	err = backoff.Try(u.ctx, 0, func() (err error) {
		if j, err = job.Open(u.ctx, spec); err != nil {
			return err
		}
		if plan, err = j.Plan(u.ctx); err != nil {
			j.Close()
		}
		return err
	})
	if err != nil {
		return err
	}
	defer j.Close()
	switch {
	case plan.Finalized != nil:
		st := j.Status()
		st.Phase, st.FinalizedAt, st.TargetPosition = job.PhaseFinalized, plan.Finalized, plan.TargetPosition
		u.set(func(r *service.Report) { r.Status = &st })
		return nil
	case plan.Checks.Failed():
		return &job.PrecheckError{Plan: plan}
	}
	plan.Checks.LogWarnings(spec.Log)
	u.spans.Taken()
	return u.follow(j, d)
}

func (u *unit) follow(j *job.Job, d *service.Definition) error {
	u.set(func(r *service.Report) { r.Wrote = true })
	var finalizing sync.WaitGroup
	defer finalizing.Wait()
	seen, meter := newNotices(u.record, u.earlier), newMeter(cmp.Or(u.worker.PointEvery, service.PointEvery))
	u.has(j)
	defer u.has(nil)
	// Resume or pause explicitly: the checkpoint has the last state.
	u.meet(j, &finalizing, &service.Desired{Try: d.Desired.Try, Paused: !d.Desired.Paused}, &d.Desired)
	ended := make(chan error, 1)
	go func() { ended <- j.Run(u.ctx) }()
	was := d.Desired
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		defined := u.worker.View.Defined()
		if now := u.desired(); now != nil {
			seen.desired(&was, now)
			u.meet(j, &finalizing, &was, now)
			was = *now
		}
		select {
		case err := <-ended:
			st := j.Status()
			u.set(func(r *service.Report) { r.Status = &st })
			seen.look(&st)
			u.point(meter, &st, j.Done(), true)
			return err
		case <-tick.C:
			st := u.show(j)
			seen.look(st)
			u.point(meter, st, j.Done(), false)
			u.sendReport()
		case <-defined:
			_ = pace.Pause(u.ctx, 100*time.Millisecond) // ended reports the end
		}
	}
}

func (u *unit) has(j *job.Job) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.job = j
}

func (u *unit) running() *job.Job {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.job
}

func (u *unit) desired() *service.Desired {
	j := u.worker.View.Job(u.name)
	if j == nil || j.Definition.UID != u.uid {
		return nil
	}
	if j.Definition.Desired.Removed {
		u.cancel(errRemoved)
	}
	return &j.Definition.Desired
}

func (u *unit) before() *service.Report {
	if j := u.worker.View.Job(u.name); j != nil && j.Report != nil && j.Report.UID == u.uid &&
		j.Report.Run != u.lease.Run {
		return j.Report
	}
	return nil
}

func (u *unit) point(m *meter, s *job.Status, done job.Done, end bool) {
	if p := m.look(s, done, end); p != nil {
		u.record.point(p)
	}
}

func (u *unit) show(j *job.Job) *job.Status {
	st := j.Status()
	u.set(func(r *service.Report) {
		if r.State = service.Running; st.Paused {
			r.State = service.Paused
		}
		r.Status, r.Error, r.Hint = &st, st.Error, st.Hint
	})
	return &st
}

func (u *unit) set(do func(*service.Report)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	do(&u.report)
}

// sendReport ignores errors: the next report replaces this one.
func (u *unit) sendReport() {
	u.mu.Lock()
	r := u.report
	r.At = time.Now().UTC()
	u.mu.Unlock()
	err := u.store(func(ctx context.Context) error { return u.worker.Hub.Jobs.Report(ctx, u.name, &r) })
	if err != nil {
		u.log.Debug("report not stored", "error", err)
	}
}

func (u *unit) end(err error, event func(slog.Level, string, ...service.Field)) {
	cause := context.Cause(u.ctx)
	switch {
	case cause != nil && err != nil:
		event(slog.LevelInfo, fmt.Sprintf("let go by worker %s: %s", u.worker.Name, mongo.Brief(cause)))
		u.log.Info("job let go", "why", cause)
	case err != nil:
		const most = 8 << 10
		why, hint := service.Short(mongo.Brief(err), most), service.Short(mongo.HintOf(err), most)
		var fields []service.Field
		if hint != "" {
			fields = append(fields, service.Field{Name: "hint", Value: hint})
		}
		event(slog.LevelError, "failed: "+why, fields...)
		u.set(func(r *service.Report) {
			r.State, r.Error, r.Hint = service.Failed, why, hint
			if refused, ok := errors.AsType[*job.PrecheckError](err); ok {
				r.Checks = refused.Plan.Checks
			}
		})
		u.log.Error("job failed", "error", why, "hint", hint)
	default:
		event(slog.LevelInfo, "finished")
		u.set(func(r *service.Report) { r.State, r.Error, r.Hint = service.Finished, "", "" })
		u.log.Info("job finished")
	}
	if err == nil || cause == nil {
		u.sendReport()
	}
}

func (u *unit) forget(ctx context.Context) {
	d, err := u.worker.Hub.Jobs.Definition(ctx, u.name)
	if err != nil || d.UID != u.uid || !d.Desired.Removed || !u.owned() {
		return
	}
	if err := u.worker.Hub.Jobs.Forget(ctx, d); err != nil {
		u.log.Warn("the job could not be forgotten", "error", err)
		return
	}
	u.worker.forgetVerifications(ctx, u.name)
	u.log.Info("job removed; what it has copied and its checkpoint stay on the target")
}

// meet applies changes of the desired state. A finalize goes on in finalizing.
func (u *unit) meet(j *job.Job, finalizing *sync.WaitGroup, was, now *service.Desired) {
	if reflect.DeepEqual(was, now) {
		return
	}
	ctx := u.ctx
	note := func(what string, err error) {
		if err != nil && ctx.Err() == nil {
			u.log.Warn("a requested change failed", "change", what, "error", err)
			u.set(func(r *service.Report) { r.Unmet = what + ": " + mongo.Brief(err) })
			u.record.event(slog.LevelWarn, "a requested change failed: "+what+": "+mongo.Brief(err))
		}
	}
	u.set(func(r *service.Report) { r.Unmet = "" })
	if was.Paused != now.Paused {
		if now.Paused {
			note("pause", j.Pause(ctx))
		} else {
			note("resume", j.Resume(ctx))
		}
	}
	if now.Limits != nil && (was.Limits == nil || *was.Limits != *now.Limits) {
		note("limits", j.SetLimits(ctx, *now.Limits))
	}
	if now.Loads != nil && (was.Loads == nil || *was.Loads != *now.Loads) {
		note("loads", j.SetLoads(ctx, *now.Loads))
	}
	switch {
	case now.Finalize && !was.Finalize:
		finalizing.Go(func() {
			if err := j.Finalize(ctx, true); err != nil {
				if refused, ok := errors.AsType[*job.Refusal](err); !ok || refused.Code != job.CodeWithdrawn {
					note("finalize", err)
				}
			}
		})
	case was.Finalize && !now.Finalize:
		note("cancel finalize", j.CancelFinalize(ctx))
	}
}
