package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/api"
	"github.com/millrace/millrace/internal/state"
)

func statusCommand(a *app) *cobra.Command {
	return a.controlCommand(a.described("status", &cobra.Command{}), (*control).status, (*control).statusOfIdle)
}

type jobStatus struct {
	api.Job

	Stored *jobInfo `json:"stored,omitempty"`
}

func (j *jobInfo) asStatus() jobStatus {
	st := j.last
	if st == nil {
		st = &job.Status{Job: j.Job, Phase: j.Phase, Paused: j.Paused, Capture: j.Capture,
			Source: j.Source, Target: j.Target,
			Differences: j.Differences, FinalizedAt: j.FinalizedAt, TargetPosition: j.TargetPosition,
			Copy:   progress.Copy{ETASeconds: -1},
			Follow: job.FollowStatus{Applied: j.Applied, LagSeconds: -1, WindowSeconds: -1}}
		st.Conflicts.Stats, st.Error, st.Hint = j.Letters, j.Error, j.Hint
	}
	stands := service.State(j.State)
	switch {
	case j.State == state.Finalized:
		stands = service.Finished
	case st.Phase == job.PhaseFailed:
		stands = service.Failed
	}
	out := api.JobOf(&service.Job{Definition: service.Definition{Name: j.Job, CreatedAt: j.CreatedAt,
		Desired: service.Desired{Paused: j.Paused}},
		Report: &service.Report{State: stands, At: j.SavedAt, Status: st}})
	out.State = stands
	return jobStatus{out, j}
}

func (c *control) statusOfIdle(j *jobInfo) error {
	return cmp.Or(c.Tell(c.Output, j.asStatus(), j.text()), j.stopped())
}

// stopped is the error of a job that ought to run and does not.
func (j *jobInfo) stopped() error {
	where := "in phase " + textOf("phase", j)
	if j.Applied != "" {
		where = "at " + textOf("applied", j) + " " + where
	}
	switch {
	case j.last != nil && j.last.Phase == job.PhaseFailed:
		return mongo.WithHint(fmt.Errorf("job %s has failed: %s", cli.Plain(j.Job), j.last.Error), j.last.Hint)
	case j.State == state.Stopped:
		why, hint := "", "resumes by: "+j.Resume
		if j.Error != "" {
			why = ": " + j.Error
		}
		if j.Hint != "" {
			hint = j.Hint + "; " + hint
		}
		return mongo.WithHint(fmt.Errorf("job %s is stopped %s%s", cli.Plain(j.Job), where, why), hint)
	case j.State == state.Silent:
		return mongo.WithHint(fmt.Errorf("job %s is %s, %s", cli.Plain(j.Job), j.lifeText(), where),
			"look at that machine; once its process is dead, resumes by: "+j.Resume)
	}
	return nil
}

func (c *control) status(ctx context.Context) error {
	if c.Watch {
		return c.watchStatus(ctx)
	}
	j, err := c.api.Job(ctx, c.Job)
	return then(err, func() error {
		return cmp.Or(c.Tell(c.Output, jobStatus{Job: j}, remoteText(&j)), failedError(&j))
	})
}

// watchStatus shows the status until the job ends: drawn on a terminal, a line each elsewhere.
func (c *control) watchStatus(ctx context.Context) error {
	if c.Output == "json" {
		c.Results.Stream = true
	} else if c.screen != nil {
		defer c.screen.clear()
	}
	var last api.Job
	for {
		j, err := c.api.Job(ctx, c.Job)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil // the operator has seen enough
		case err != nil && last.Phase != "" && ofProcess(&last):
			return c.ended(ctx, &last, err)
		case err != nil:
			return err
		}
		if err := c.show(&j); err != nil {
			return err
		}
		last = j
		switch { // after these a sync goes away
		case j.State == service.Finished && j.Report.Status != nil:
			return differencesError(*j.Report.Status)
		case j.State == service.Finished:
			return nil
		case j.State == service.Failed:
			return failedError(&j)
		}
		if pace.Pause(ctx, c.Interval) != nil {
			return nil
		}
	}
}

// failedError is nil for a job that has not failed.
func failedError(j *api.Job) error {
	if j.State != service.Failed {
		return nil
	}
	return mongo.WithHint(fmt.Errorf("job %s has failed: %w", cli.Plain(j.Name), errorOf("", j.Error)), j.Hint)
}

// ended shows how a sync that was seen last has ended, and returns its error. It is known from the record of a sync of
// this machine, or else from the target, if that is given.
func (c *control) ended(ctx context.Context, last *api.Job, silent error) error {
	none := mongo.WithHint(fmt.Errorf("the sync has ended or cannot be reached any more; last seen in phase %s: %w",
		last.Phase, silent), "give --target, which knows how it ended")
	registry, err := server.NewRegistry(c.LookupEnv)
	if err != nil {
		return none
	}
	_, known, err := c.idle(ctx, registry, &config.Control{Job: last.Name, Target: c.Target}, none)
	switch {
	case known == nil:
		return cmp.Or(err, none)
	case known.last != nil && fmt.Sprintf("%s/%d", known.Owner.Host, known.Owner.PID) != last.Worker:
		return none // an earlier sync of this machine
	}
	if c.Output == "json" {
		err = json.NewEncoder(c.Stdout).Encode(known.asStatus())
	} else {
		_, err = io.WriteString(c.Stdout, known.text())
	}
	return cmp.Or(err, known.stopped(), differencesError(*known.asStatus().Report.Status))
}

func (c *control) show(j *api.Job) error {
	st := job.Status{Job: j.Name, Error: j.Error, Hint: j.Hint}
	if j.Report != nil && j.Report.Status != nil {
		st = *j.Report.Status
	}
	switch {
	case c.Output == "json":
		return json.NewEncoder(c.Stdout).Encode(jobStatus{Job: *j})
	case c.screen != nil:
		c.screen.draw(func(columns, rows int) []string { return view(st, time.Now(), columns, rows) })
	default:
		logProgress(c.Logger(c.Stdout), st)
	}
	return nil
}
