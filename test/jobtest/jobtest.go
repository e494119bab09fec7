// Package jobtest has a job for tests of what controls one: it copies nothing, and
// remembers what it was asked for.
package jobtest

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

// Job implements operate.Controller. It is safe for concurrent use once it is used.
type Job struct {
	// OnFinalize is what Finalize does before the job is finalized; nil is nothing.
	OnFinalize func(context.Context) error
	// CancelFails and RetryFails are what CancelFinalize and RetryLetters return.
	CancelFails, RetryFails error

	mu    sync.Mutex
	now   job.Status
	asked []string
}

// New is a job named orders that stands as s says, with loads where s has none.
func New(s job.Status) *Job {
	if s.Job = "orders"; s.Load.Loads == (pace.Loads{}) {
		s.Load.Loads = pace.Loads{Source: pace.Normal, Target: pace.Normal}
	}
	return &Job{now: s}
}

// Status is how it stands.
func (j *Job) Status() job.Status {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.now
}

// Set changes how it stands.
func (j *Job) Set(do func(*job.Status)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	do(&j.now)
}

// Asked is what it was asked for, in order.
func (j *Job) Asked() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.asked)
}

// ask remembers what it is asked for, and does it.
func (j *Job) ask(what string, do func(*job.Status) error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.asked = append(j.asked, what)
	return do(&j.now)
}

func (j *Job) pause(what string, paused bool) error {
	return j.ask(what, func(s *job.Status) error {
		if s.Paused == paused {
			return mongo.WithHint(errors.New("it is so already"), "look first")
		}
		s.Paused = paused
		return nil
	})
}

// Pause fails where it is paused already.
func (j *Job) Pause(context.Context) error { return j.pause("pause", true) }

// Resume fails where it is not paused.
func (j *Job) Resume(context.Context) error { return j.pause("resume", false) }

// RetryLetters settles all open dead letters, unless RetryFails.
func (j *Job) RetryLetters(context.Context) error {
	return j.ask("retry", func(s *job.Status) error {
		if j.RetryFails == nil {
			s.Conflicts.Settled += s.Conflicts.Open
			s.Conflicts.Open = 0
		}
		return j.RetryFails
	})
}

// SetLimits sets the rates.
func (j *Job) SetLimits(_ context.Context, r pace.Rates) error {
	return j.ask("limits", func(s *job.Status) error { s.Limits = r; return nil })
}

// SetLoads sets the loads.
func (j *Job) SetLoads(_ context.Context, l pace.Loads) error {
	return j.ask("loads", func(s *job.Status) error { s.Load.Loads = l; return nil })
}

// CancelFinalize returns CancelFails.
func (j *Job) CancelFinalize(context.Context) error {
	return j.ask("cancel finalize", func(*job.Status) error { return j.CancelFails })
}

// Finalize does what OnFinalize has it do.
func (j *Job) Finalize(ctx context.Context, whenCaughtUp bool) error {
	what := "finalize"
	if whenCaughtUp {
		what = "finalize when caught up"
	}
	_ = j.ask(what, func(*job.Status) error { return nil })
	if j.OnFinalize != nil {
		if err := j.OnFinalize(ctx); err != nil {
			return err
		}
	}
	j.Set(func(s *job.Status) { s.Phase = job.PhaseFinalized })
	return nil
}
