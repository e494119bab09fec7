package operate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
)

// Controller is a job that runs in this process. It is called concurrently.
type Controller interface {
	Status() job.Status
	Pause(context.Context) error
	Resume(context.Context) error
	RetryLetters(context.Context) error
	SetLimits(context.Context, pace.Rates) error
	SetLoads(context.Context, pace.Loads) error
	// Finalize returns when the job is finalized, or says why it is not.
	Finalize(ctx context.Context, whenCaughtUp bool) error
	CancelFinalize(context.Context) error
}

// Single controls the one job of a process, as Desk those of a service. It is safe for concurrent use.
type Single struct {
	job      Controller
	log      *slog.Logger
	process  string
	finalize func(whenCaughtUp bool) error
	// finalizes joins equal requests. They go on when a client disconnects.
	finalizes singleflight.Group
}

// NewSingle makes a Single. A finalize goes on until ending ends.
func NewSingle(ending context.Context, j Controller, log *slog.Logger) *Single {
	host, _ := os.Hostname()
	return &Single{job: j, log: log, process: fmt.Sprintf("%s/%d", host, os.Getpid()),
		finalize: func(whenCaughtUp bool) error { return j.Finalize(ending, whenCaughtUp) }}
}

// Wait returns when no finalize runs.
func (s *Single) Wait() {
	for _, whenCaughtUp := range []bool{false, true} {
		_, _, _ = s.finalizes.Do(strconv.FormatBool(whenCaughtUp), func() (any, error) { return nil, nil })
	}
}

func (s *Single) Jobs() []service.Job { return []service.Job{*s.now()} }

// Changed returns a channel that is closed after a second, because the job reports no changes.
func (s *Single) Changed() (changed <-chan struct{}, version uint64) {
	c := make(chan struct{})
	time.AfterFunc(time.Second, func() { close(c) })
	return c, uint64(time.Now().UnixNano())
}

// now returns the job. It has no definition and no UID.
func (s *Single) now() *service.Job {
	st := s.job.Status()
	j := &service.Job{
		Definition: service.Definition{Name: st.Job, CreatedAt: st.StartedAt.UTC(),
			Desired: service.Desired{Paused: st.Paused, Finalize: st.FinalizeWanted, Limits: &st.Limits, Loads: &st.Load.Loads}},
		Report: &service.Report{Worker: s.process, State: service.Running, At: time.Now().UTC(), Status: &st},
		Lease:  &service.Lease{Worker: s.process, Since: st.StartedAt.UTC()},
	}
	switch {
	case st.Phase == job.PhaseFinalized:
		j.Report.State = service.Finished
	case st.Phase == job.PhaseFailed:
		j.Report.State, j.Report.Error, j.Report.Hint = service.Failed, st.Error, st.Hint
	case st.Paused:
		j.Report.State = service.Paused
	}
	return j
}

func (s *Single) Job(c *service.Caller, name string) (*service.Job, error) {
	list := s.After(c, "", 1, func(j *service.Job) bool { return j.Definition.Name == name })
	if len(list) == 0 {
		return nil, missing(name)
	}
	return &list[0], nil
}

// After returns the job, if its name comes after name, the caller may see it and it matches.
func (s *Single) After(c *service.Caller, name string, n int, match func(*service.Job) bool) []service.Job {
	if j := s.now(); n > 0 && j.Definition.Name > name && c.Sees(j.Definition.Name) && match(j) {
		return redacted(c, []service.Job{*j}, service.Job.Redact)
	}
	return nil
}

// Pause stops the job's work until Resume.
func (s *Single) Pause(ctx context.Context, c *service.Caller, name string) (*service.Job, error) {
	return s.act(ctx, c, "pause", name, s.job.Pause)
}

func (s *Single) Resume(ctx context.Context, c *service.Caller, name string) (*service.Job, error) {
	return s.act(ctx, c, "resume", name, s.job.Resume)
}

// CancelFinalize cancels a finalize that has not begun.
func (s *Single) CancelFinalize(ctx context.Context, c *service.Caller, name string) (*service.Job, error) {
	return s.act(ctx, c, "cancel finalize", name, s.job.CancelFinalize)
}

// Finalize returns when the job is finalized, or has failed to, which may be repeated. It outlives ctx.
func (s *Single) Finalize(ctx context.Context, c *service.Caller, name string, whenCaughtUp bool) (*service.Job,
	error) {
	return s.act(ctx, c, "finalize", name, func(ctx context.Context) error {
		outcome := s.finalizes.DoChan(strconv.FormatBool(whenCaughtUp), func() (any, error) {
			if s.job.Status().Phase == job.PhaseFinalized {
				return nil, nil
			}
			return nil, s.finalize(whenCaughtUp)
		})
		select {
		case <-ctx.Done():
			return fmt.Errorf("the client went away, and finalize goes on: %w", ctx.Err())
		case o := <-outcome:
			return o.Err
		}
	})
}

// Limit changes rates and loads of the job; nil values stay as they are.
func (s *Single) Limit(ctx context.Context, c *service.Caller, name string, l server.Limits) (*service.Job, error) {
	st := s.job.Status()
	rates, loads, err := limited(l, st.Limits, st.Load.Loads)
	if err != nil {
		return nil, err
	}
	return s.act(ctx, c, "limits", name, func(ctx context.Context) error {
		if loads != st.Load.Loads {
			if err := s.job.SetLoads(ctx, loads); err != nil {
				return err
			}
		}
		if rates != st.Limits {
			return s.job.SetLimits(ctx, rates)
		}
		return nil
	})
}

// RetryLetters retries all open dead letters of the job; id must be "".
func (s *Single) RetryLetters(ctx context.Context, c *service.Caller, name, id string) (*service.LettersRetried,
	error) {
	if id != "" {
		return nil, refuse(Invalid, "leave the id out", "a sync tries all open dead letters")
	}
	open := func() int64 { n := s.job.Status().Conflicts; return n.Open + n.Undecided }
	out := &service.LettersRetried{Tried: open(), Done: true}
	if _, err := s.act(ctx, c, "retry dead letters", name, s.job.RetryLetters); err != nil {
		return nil, err
	}
	out.Open = open()
	out.Written = max(0, out.Tried-out.Open)
	return out, nil
}

func (s *Single) act(ctx context.Context, c *service.Caller, what, name string,
	do func(context.Context) error) (*service.Job, error) {
	if err := allowed(c, service.Operator, name); err != nil {
		return nil, err
	}
	j := s.now()
	if j.Definition.Name != name {
		return nil, missing(name)
	}
	s.log.Info("control request", "request", what, "from", c.From)
	err := do(ctx)
	if err == nil {
		return s.now(), nil
	}
	s.log.Warn("control request failed", "request", what, "error", err)
	e := &Error{Code: Failed, Text: strings.TrimSpace(mongo.Brief(err)), Hint: mongo.HintOf(err)}
	if refusal, ok := errors.AsType[*job.Refusal](err); ok && refusal.Code != "" {
		e.Code = Code(refusal.Code)
	} else if errors.Is(err, context.Canceled) {
		e.Code = Ended
	}
	return nil, e
}
