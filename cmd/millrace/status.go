package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/format"
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
		st = &job.Status{Job: j.Job, Phase: j.Phase, Paused: j.Paused, Source: j.Source, Target: j.Target,
			Differences: j.Differences, FinalizedAt: j.FinalizedAt, TargetPosition: j.TargetPosition,
			Copy:   progress.Copy{ETASeconds: -1},
			Follow: job.FollowStatus{Applied: j.Applied, LagSeconds: -1, WindowSeconds: -1}}
		st.Conflicts.Stats = j.Letters
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
	where := "in phase " + phaseText(j.Phase, j.Paused)
	if j.Applied != "" {
		where = "at " + j.appliedText() + " " + where
	}
	switch {
	case j.last != nil && j.last.Phase == job.PhaseFailed:
		return mongo.WithHint(fmt.Errorf("job %s has failed: %s", cli.Plain(j.Job), j.last.Error), j.last.Hint)
	case j.State == state.Stopped:
		return mongo.WithHint(fmt.Errorf("job %s is stopped %s", cli.Plain(j.Job), where), "resumes by: "+j.Resume)
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
	return mongo.WithHint(fmt.Errorf("job %s has failed: %s", cli.Plain(j.Name), j.Error), j.Hint)
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

func statusText(s job.Status) string {
	t := facts{newTable(s.Job, phaseText(s.Phase, s.Paused))}
	t.AppendRows([]table.Row{{"source", s.Source}, {"target", s.Target}})
	if !s.StartedAt.IsZero() && s.Phase != job.PhaseFinalized && s.Phase != job.PhaseFailed {
		t.add("runs for", format.Clock(time.Since(s.StartedAt)))
	}
	if s.Structure != nil {
		t.structure(s.Structure)
	} else {
		t.copying(s)
		t.following(s.Follow)
	}
	if s.Limits != (pace.Rates{}) {
		t.add("throttled to", limitsText(s.Limits))
	}
	t.add("load", loadText(s.Load))
	t.add("compressed", compressionText(s.Compression))
	t.conflicts(s.Conflicts)
	t.add("finalize", finalizeText(s))
	t.final(s.FinalizedAt, s.TargetPosition)
	t.add("waiting for", s.Waiting)
	t.add("errors", format.Counts(s.Errors))
	t.add("last error", s.Error)
	t.add("hint", s.Hint)
	if s.Process.PID > 0 { // else it is one of many jobs of a process
		t.add("process", fmt.Sprintf("%d, %.0f%% of a core, %s of memory", s.Process.PID, s.Process.CPUPercent,
			format.Size(s.Process.Resident)))
	}
	var b strings.Builder
	fmt.Fprintln(&b, t.Render())
	if !s.Phase.AfterCopy() && len(s.Copy.Collections) > 0 {
		fmt.Fprintln(&b, collectionsTable(s.Copy.Collections).Render())
	}
	if len(s.Shards) > 0 {
		fmt.Fprintln(&b, shardsTable(s.Shards).Render())
	}
	if len(s.Routers) > 0 {
		fmt.Fprintln(&b, routersTable(s.Routers).Render())
	}
	writeEnd(&b, s)
	return b.String()
}

func finalizeText(s job.Status) string {
	switch {
	case s.CanFinalize && !s.FinalizeWanted:
		return "possible"
	case s.FinalizeWanted && s.Phase != job.PhaseFinalizing && s.Phase != job.PhaseFinalized:
		return "as soon as possible; not yet: " + s.CannotFinalize
	}
	return s.CannotFinalize
}

type facts struct{ table.Writer }

func (t facts) add(name string, value any) {
	if value != "" {
		t.AppendRow(table.Row{name, value})
	}
}

func (t facts) conflicts(c progress.Conflicts) {
	if text := c.Stats.Text(); text != "" {
		t.add("conflicts", text)
		t.AppendRow(table.Row{"dead letters", c.Where})
	}
}

func phaseText(phase state.Phase, paused bool) string {
	if paused {
		return string(phase) + ", paused"
	}
	return string(phase)
}

func (t facts) copying(s job.Status) {
	c, done := s.Copy, s.Phase.AfterCopy()
	if c.Docs == 0 && c.DocsTotal == 0 {
		return
	}
	t.add("copied", fmt.Sprintf("%.0f%%, %s of %s documents, %s", 100*c.Share(done), format.Count(c.Docs),
		format.Count(c.DocsTotal), format.Size(c.Bytes)))
	if !done {
		t.add("rate", format.Count(c.DocsRate)+" docs/s, "+format.Size(c.BytesRate)+"/s")
		t.add("time left", format.Seconds(c.ETASeconds))
	}
	for _, x := range s.Indexes {
		text := fmt.Sprintf("%s %.0f%%", x.NS, 100*format.Share(x.Done, x.Total, false))
		if x.Stalled != "" {
			text += ", makes no progress: " + x.Stalled
		}
		t.add("index", text)
	}
}

func (t facts) following(f job.FollowStatus) {
	if f.Applied == "" {
		return
	}
	t.add("changes", fmt.Sprintf("%s applied, %s/s, %s/s, %d schema changes", format.Count(f.Operations),
		format.Count(f.OperationsRate), format.Size(f.BytesRate), f.SchemaChanges))
	t.add("behind", format.Seconds(f.LagSeconds))
	t.add("oplog window", format.Seconds(f.WindowSeconds))
	t.add("durable up to", f.Applied+" of "+f.Source)
	t.add("open transactions", f.OpenTransactions)
	if text := holdingText(f.Holding); text != "" {
		t.add("shards", text)
	}
	if f.Located+f.Broadcast > 0 {
		t.add("broadcast",
			format.Count(f.Located)+" documents looked for on all shards, "+format.Count(f.Broadcast)+" updates sent to all")
	}
	if f.SpoolBytes > 0 {
		t.add("spooled", format.Size(f.SpoolBytes))
	}
}

func shardsTable(shards []progress.Shard) table.Writer {
	t := newTable("shard of the source", "copied", "docs/s", "changes read", "changes/s", "bytes/s", "behind",
		"oplog window")
	for _, s := range shards {
		t.AppendRow(table.Row{cli.Plain(s.Shard), format.Count(s.Docs), format.Count(s.DocsRate), format.Count(s.Changes),
			format.Count(s.ChangesRate), format.Size(s.BytesRate + s.ChangeBytesRate), format.Seconds(s.LagSeconds),
			format.Seconds(s.WindowSeconds)})
	}
	alignRight(t, 2, 3, 4, 5, 6, 7, 8)
	return t
}

func routersTable(routers []progress.Router) table.Writer {
	t := newTable("router of the target", "commands", "commands/s", "sent", "bytes/s")
	for _, r := range routers {
		t.AppendRow(table.Row{cli.Plain(r.Router), format.Count(r.Commands), format.Count(r.CommandsRate),
			format.Size(r.Bytes),
			format.Size(r.BytesRate)})
	}
	alignRight(t, 2, 3, 4, 5)
	return t
}

func collectionsTable(cs []progress.Collection) table.Writer {
	t := newTable("collection", "documents", "of", "size", "%")
	for i, c := range cs {
		if i == 5*maxListed {
			t.AppendRow(table.Row{fmt.Sprintf("and %d more", len(cs)-i)})
			break
		}
		t.AppendRow(table.Row{c.Source, c.Docs, c.DocsTotal, format.Size(c.Bytes),
			fmt.Sprintf("%.0f", 100*format.Share(c.Docs, c.DocsTotal, c.Done))})
	}
	alignRight(t, 2, 3, 4, 5)
	return t
}
