package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/api"
	"github.com/millrace/millrace/internal/state"
)

func statusCommand(a *app) *cobra.Command {
	var s config.Control
	return a.controlled(a.described("status", &cobra.Command{}), &s, func(ctx context.Context, run *session) error {
		c, err := a.client(ctx, &s, false)
		switch {
		case err != nil && s.Address == "" && s.Server == "":
			return run.statusOfStopped(ctx, &s, err)
		case err != nil:
			return err
		}
		defer c.Close()
		return asked((&control{run, &s, c}).status(ctx))
	})
}

// jobStatus is what status prints. Stored is what the target knows of a job that no process runs.
type jobStatus struct {
	api.Job

	Stored *jobInfo `json:"stored,omitempty"`
}

// asStatus is a job that no process runs in the form of one that runs.
func (j *jobInfo) asStatus() jobStatus {
	st := &job.Status{Job: j.Job, Phase: j.Phase, Paused: j.Paused, Source: j.Source, Target: j.Target,
		Differences: j.Differences, Copy: job.CopyStatus{ETASeconds: -1},
		Follow: job.FollowStatus{Applied: j.Applied, LagSeconds: -1, WindowSeconds: -1}}
	st.Conflicts.Stats = j.Letters
	stands := service.State(j.State)
	if j.State == state.Finalized {
		stands = service.Finished
	}
	out := api.JobOf(&service.Job{Definition: service.Definition{Name: j.Job, CreatedAt: j.CreatedAt,
		Wish: service.Wish{Paused: j.Paused}},
		Report: &service.Report{State: stands, At: j.SavedAt, Status: st}})
	out.State = stands
	return jobStatus{out, j}
}

// statusOfStopped shows a job that no process of this machine runs; none says so.
func (r *session) statusOfStopped(ctx context.Context, s *config.Control, none error) error {
	last := server.Record{Job: s.Job}
	if registry, err := server.NewRegistry(r.LookupEnv); err == nil {
		if rec, ok := registry.Gone(s.Job); ok {
			last = rec
			none = mongo.WithHint(fmt.Errorf("job %s does not run: its process %d is gone without a word", cli.Plain(rec.Job),
				rec.PID), "the same sync command resumes it; to see where it stopped: millrace "+
				"status --job "+rec.Job+" --target "+rec.Target)
		}
	}
	if s.Target == "" {
		return none
	}
	c, err := r.connectToLook(ctx, "target", s.Target)
	if err != nil {
		return err
	}
	defer c.Close()
	if last.Job == "" {
		if last.Job, err = onlyJob(ctx, c); err != nil {
			return err
		}
	}
	info, err := showJob(ctx, c, last.Job)
	if err != nil {
		return err
	}
	return cmp.Or(r.Tell(s.Output, info.asStatus(), info.text()), info.stopped())
}

// stopped is the error of a job that ought to run and does not.
func (j *jobInfo) stopped() error {
	where := "in phase " + phaseText(j.Phase, j.Paused)
	if j.Applied != "" {
		where = "at " + j.appliedText() + " " + where
	}
	switch j.State {
	case state.Stopped:
		return mongo.WithHint(fmt.Errorf("job %s is stopped %s", cli.Plain(j.Job), where), "resumes by: "+j.Resume)
	case state.Silent:
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
	return then(err, func() error { return c.Tell(c.Output, jobStatus{Job: j}, remoteText(&j)) })
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
			return mongo.WithHint(fmt.Errorf("the sync has ended or cannot be reached any more; last seen in phase %s: %w",
				last.Phase, err),
				"how it ended, it told on its own output and in its report")
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
			return mongo.WithHint(errors.New("the job failed: "+j.Error), j.Hint)
		}
		if pace.Pause(ctx, c.Interval) != nil {
			return nil
		}
	}
}

// show shows a job once of many times.
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
	if !s.StartedAt.IsZero() {
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

// finalizeText says whether the job can be finalized, and is to be.
func finalizeText(s job.Status) string {
	switch {
	case s.CanFinalize && !s.FinalizeWanted:
		return "possible"
	case s.FinalizeWanted && s.Phase != job.PhaseFinalizing && s.Phase != job.PhaseFinalized:
		return "as soon as possible; not yet: " + s.CannotFinalize
	}
	return s.CannotFinalize
}

// facts is a table of names and values.
type facts struct{ table.Writer }

// add adds a row, unless there is nothing to say.
func (t facts) add(name string, value any) {
	if value != "" {
		t.AppendRow(table.Row{name, value})
	}
}

func (t facts) conflicts(c job.ConflictStatus) {
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

func shardsTable(shards []job.ShardStatus) table.Writer {
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

func routersTable(routers []job.RouterStatus) table.Writer {
	t := newTable("router of the target", "commands", "commands/s", "sent", "bytes/s")
	for _, r := range routers {
		t.AppendRow(table.Row{cli.Plain(r.Router), format.Count(r.Commands), format.Count(r.CommandsRate),
			format.Size(r.Bytes),
			format.Size(r.BytesRate)})
	}
	alignRight(t, 2, 3, 4, 5)
	return t
}

func collectionsTable(cs []job.CollectionStatus) table.Writer {
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
