package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
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

type control struct {
	*session
	*config.Control

	api *api.Client
}

// controlCommand makes a command that finds the job first. idle is for one that no sync of this machine runs, as far as
// its target or the record of its last sync tell.
func (a *app) controlCommand(cmd *cobra.Command, do func(*control, context.Context) error,
	idle func(*control, *jobInfo) error) *cobra.Command {
	var s config.Control
	return a.controlled(cmd, &s, func(ctx context.Context, run *session) error {
		client, known, err := a.client(ctx, &s)
		c := &control{run, &s, client}
		switch {
		case err != nil:
			return err
		case known != nil:
			return idle(c, known)
		}
		defer client.Close()
		return asked(do(c, ctx))
	})
}

// controlled gives a command the settings of control, and completes --job with syncs and the service's jobs.
func (a *app) controlled(cmd *cobra.Command, s *config.Control,
	do func(context.Context, *session) error) *cobra.Command {
	a.configured(cmd, cmd.Name(), s, do)
	a.Offer(cmd, "job",
		func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			var names []cobra.Completion
			if registry, err := server.NewRegistry(a.LookupEnv); err == nil {
				running, _ := registry.Running(cmd.Context()) // what cannot be read completes nothing
				for _, rec := range running {
					names = append(names, cobra.CompletionWithDesc(rec.Job, rec.Address))
				}
			}
			r := remote{app: a, Service: s.Service}
			return append(names, r.completions(cmd.Context())...), cobra.ShellCompDirectiveNoFileComp
		})
	return cmd
}

// client finds API and job. A sync of this machine comes before the service. Of a job that no sync of this machine
// runs, it returns what is known instead.
func (a *app) client(ctx context.Context, s *config.Control) (*api.Client, *jobInfo, error) {
	address := cmp.Or(s.Address, s.Server)
	var rec server.Record
	registry, err := server.NewRegistry(a.LookupEnv)
	if err != nil { // what the target knows needs none
		registry = server.Registry{}
	} else {
		rec, err = registry.Find(ctx, wanted(s))
	}
	if err != nil && !errors.Is(err, server.ErrSeveral) && address == "" {
		var known *jobInfo
		if rec, known, err = a.idle(ctx, registry, s, err); known != nil {
			return nil, known, nil
		}
	}
	switch {
	case err == nil:
		rec.Token, s.Job = cmp.Or(s.Token, rec.Token), rec.Job
		return api.NewRecordClient(rec), nil, nil
	case address == "" || ctx.Err() != nil:
		return nil, nil, err
	}
	r := remote{app: a, Service: s.Service, job: s.Job}
	r.Server = address
	if err := r.connect(); err != nil { // on another machine, or of another user
		return nil, nil, err
	}
	err = r.only(ctx)
	s.Job = r.job
	return r.Client, nil, asked(err)
}

// wanted chooses among the syncs of this machine. The target counts unless an API is named.
func wanted(s *config.Control) server.Wanted {
	w := server.Wanted{Address: s.Address, Job: s.Job}
	if s.Address == "" {
		w.Target = s.Target
	}
	return w
}

// idle returns what the target, if it is given, or the record of the last sync on this machine, tells of a job that was
// not found running. Where the target tells that a sync of this machine runs it, idle returns that one's record.
func (a *app) idle(ctx context.Context, registry server.Registry, s *config.Control, none error) (rec server.Record,
	_ *jobInfo, err error) {
	last, gone := registry.Gone(wanted(s))
	switch {
	case s.Target != "":
	case !gone:
		return rec, nil, none
	case last.EndedAt != nil:
		known, err := endedInfo(last)
		return rec, known, err
	default:
		return rec, nil, mongo.WithHint(fmt.Errorf("job %s does not run: its process %d has died", cli.Plain(last.Job),
			last.PID), "the same sync command resumes it; to see where it stopped: millrace status --job "+last.Job+
			" --target "+last.Target)
	}
	c, err := a.connectToLook(ctx, "target", s.Target)
	if err != nil {
		return rec, nil, err
	}
	defer c.Close()
	name := cmp.Or(s.Job, last.Job)
	if name == "" {
		if name, err = onlyJob(ctx, c); err != nil {
			return rec, nil, err
		}
	}
	running, runErr := registry.Running(ctx)
	known, err := showJob(ctx, c, name)
	if err != nil {
		for _, rec := range running {
			if rec.Job == name {
				err = mongo.WithHint(err, fmt.Sprintf("a job %s runs here with another target: give --target '%s'", cli.Plain(name),
					rec.Target))
			}
		}
		return rec, known, err
	}
	if known.Owner == nil {
		return rec, known, nil
	}
	err = runErr
	for _, rec := range running {
		if rec.Job == name && rec.PID == known.Owner.PID && rec.Host == known.Owner.Host {
			return rec, nil, nil
		}
	}
	return rec, known, err
}

// cannot is the idle of a command that a job cannot follow without a process.
func cannot(what string) func(*control, *jobInfo) error {
	return func(c *control, j *jobInfo) error {
		why, hint := "no process runs it", "start it: "+cmp.Or(j.Resume, "the same sync command resumes it")
		switch j.State {
		case state.Finalized:
			why, hint = "it was "+textOf("finalized", j.FinalizedAt), "millrace status shows how it ended"
		case state.Running, state.Silent:
			why = fmt.Sprintf("it is %s, which cannot be reached from here", j.lifeText())
			hint = "run this there as the user of that process, give its --address, or --server for a job of a service"
		}
		c.Results.Value = j.asStatus()
		return misuse(fmt.Errorf("cannot %s job %s: %s", what, cli.Plain(j.Job), why), hint)
	}
}

func pauseCommand(a *app) *cobra.Command {
	return a.controlCommand(a.described("pause", &cobra.Command{}), func(c *control, ctx context.Context) error {
		j, err := c.ask(ctx, http.MethodPost, api.PathPause, nil)
		return c.changed(&j, err, "paused", "will pause")
	}, cannot("pause"))
}

func resumeCommand(a *app) *cobra.Command {
	return a.controlCommand(a.described("resume", &cobra.Command{}), func(c *control, ctx context.Context) error {
		j, err := c.ask(ctx, http.MethodPost, api.PathResume, nil)
		return c.changed(&j, err, "resumed", "will resume")
	}, cannot("resume"))
}

func throttleCommand(a *app) *cobra.Command {
	return a.controlCommand(a.described("throttle", &cobra.Command{}), func(c *control, ctx context.Context) error {
		j, err := c.ask(ctx, http.MethodPatch, api.PathLimits, c.Limits)
		text := textOf("limits", *cmp.Or(j.Desired.Limits, new(pace.Rates)))
		if l := textOf("load", progress.Load{Loads: *cmp.Or(j.Desired.Loads, new(pace.Loads))}); l != "" {
			text += "; load: " + l
		}
		return c.changed(&j, err, text, "limits changed: "+text)
	}, cannot("throttle"))
}

func (c *control) ask(ctx context.Context, method, path string, what any) (api.Job, error) {
	return api.Ask[api.Job](ctx, c.api, method, api.At(path, c.Job), what)
}

// changed prints the effect of a request: a sync has done it, a service has stored it.
func (c *control) changed(j *api.Job, err error, done, noted string) error {
	if err != nil {
		return err
	}
	if !ofProcess(j) {
		done = noted
	}
	return c.Tell(c.Output, j, fmt.Sprintf("%s: %s (%s)\n", cli.Plain(j.Name), done, textOf("stand of a report", j)))
}

// ofProcess reports whether a job belongs to a sync: it has no definition.
func ofProcess(j *api.Job) bool { return j.UID == "" }

func finalizeCommand(a *app) *cobra.Command {
	return a.controlCommand(a.described("finalize", &cobra.Command{}), (*control).finalize, (*control).finalizedBefore)
}

// finalizedBefore is the idle of finalize: a job that was finalized earlier is a success.
func (c *control) finalizedBefore(j *jobInfo) error {
	switch {
	case c.Cancel:
		return cannot("take back finalize of")(c, j)
	case j.State != state.Finalized:
		return cannot("finalize")(c, j)
	}
	return cmp.Or(c.Tell(c.Output, j.asStatus(), textOf("finalized before", j)),
		differencesError(job.Status{Job: j.Job, Differences: j.Differences}))
}

func (c *control) finalize(ctx context.Context) error {
	if c.Cancel {
		j, err := c.ask(ctx, http.MethodDelete, api.PathFinalize, nil)
		return c.changed(&j, err, "finalize taken back", "finalize taken back")
	}
	var j api.Job
	err := during(ctx, func() (err error) {
		if j, err = c.api.Finalize(ctx, c.Job, c.WhenCaughtUp); err == nil && c.Wait {
			j, err = c.finalized(ctx, j)
		}
		return err
	}, c.showMeanwhile)
	switch {
	case err != nil && ctx.Err() != nil:
		return mongo.WithHint(fmt.Errorf("%w; finalize continues", context.Cause(ctx)),
			"see millrace status; millrace finalize --cancel cancels it")
	case err != nil:
		return err
	case j.State == service.Failed:
		return errors.Join(c.Tell(c.Output, &j, ""),
			mongo.WithHint(fmt.Errorf("job %s has failed: %s", cli.Plain(j.Name), j.Error), j.Hint))
	case j.State != service.Finished || j.Report == nil || j.Report.Status == nil:
		return c.changed(&j, nil, "finalized", "is to be finalized")
	}
	st := j.Report.Status
	text := textOf("finalize", struct {
		*api.Job
		Path string
	}{&j, api.PathJobs})
	return cmp.Or(c.Tell(c.Output, &j, text), differencesError(*st))
}

func (c *control) finalized(ctx context.Context, j api.Job) (api.Job, error) {
	return await(ctx, j, func(now api.Job) (bool, error) {
		switch {
		case now.UID != j.UID:
			return true, fmt.Errorf("job %s was removed, and another made under its name", cli.Plain(j.Name))
		case now.State == service.Finished || now.State == service.Failed:
			return true, nil
		case !now.Desired.Finalize:
			return true, fmt.Errorf("somebody has taken back that job %s is to be finalized", cli.Plain(j.Name))
		}
		return false, nil
	}, func() (api.Job, error) { return c.api.Job(ctx, j.Name) })
}

// await polls a service each second until ended, also while it does not answer for up to two minutes.
func await[T any](ctx context.Context, now T, ended func(T) (bool, error), look func() (T, error)) (T, error) {
	const giveUp = 2 * time.Minute
	for answered := time.Now(); ; {
		if over, err := ended(now); over {
			return now, err
		}
		if err := pace.Pause(ctx, time.Second); err != nil {
			return now, err
		}
		switch next, err := look(); {
		case err == nil:
			now, answered = next, time.Now()
		case ctx.Err() == nil && (api.IsRefusal(err) || time.Since(answered) > giveUp):
			return now, err
		}
	}
}

// refused gives the error of a request that was rejected its exit code: by the job, or because another process runs it.
func refused(err error) error {
	if r, ok := errors.AsType[*job.Refusal](err); ok && r.Code != "" || errors.Is(err, state.ErrRunning) {
		return cli.WithCode(cli.ExitUsage, err)
	}
	return err
}

func (c *control) showMeanwhile(ctx context.Context) {
	if c.screen == nil {
		return
	}
	defer c.screen.clear()
	every(ctx, time.Second, func() {
		if j, err := c.api.Job(ctx, c.Job); err == nil && j.Report != nil && j.Report.Status != nil {
			c.screen.draw(func(columns, rows int) []string { return view(*j.Report.Status, time.Now(), columns, rows) })
		}
	})
}

func differencesError(s job.Status) error {
	if len(s.Differences) == 0 {
		return nil
	}
	return mongo.WithHint(fmt.Errorf("job %s: finalized, but the target differs from the source in %s", cli.Plain(s.Job),
		plural(len(s.Differences), "thing")),
		"millrace verify compares again and lists documents")
}
