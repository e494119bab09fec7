package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/server"
)

func (a *app) statusCommand() *cobra.Command {
	return a.controlCommand(&cobra.Command{
		Use:   "status",
		Short: "Show how a running sync stands",
		Example: `  millrace status
  millrace status --job orders --watch
  millrace status --address 127.0.0.1:7000 --output json`,
	}, a.status)
}

func (a *app) status(ctx context.Context, c *server.Client, s *config.Control) error {
	if s.Watch {
		return a.watchStatus(ctx, c, s)
	}
	st, err := c.Status(ctx)
	if err != nil {
		return err
	}
	if s.Output == "json" {
		return writeJSON(a.stdout, st)
	}
	return writeStatus(a.stdout, st)
}

// watchStatus shows the status again and again until the sync ends: drawn on a
// terminal, a line each elsewhere.
func (a *app) watchStatus(ctx context.Context, c *server.Client, s *config.Control) error {
	screen := a.screen()
	if screen != nil && s.Output != "json" {
		defer screen.clear()
	}
	show := func(st job.Status) error {
		switch {
		case s.Output == "json":
			return json.NewEncoder(a.stdout).Encode(st)
		case screen != nil:
			screen.draw(func(columns, rows int) []string { return view(st, time.Now(), columns, rows) })
			return nil
		}
		logProgress(newLog(a.stdout, s.Common), st)
		return nil
	}
	var last job.Status
	for {
		st, err := c.Status(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil // the operator has seen enough
		case err != nil && last.Phase != "":
			return mongo.WithHint(fmt.Errorf("the sync has ended or cannot be reached any more; last seen in phase %s: %w", last.Phase, err),
				"how it ended, it told on its own output and in its report")
		case err != nil:
			return err
		}
		if err := show(st); err != nil {
			return err
		}
		last = st
		if ends(st.Phase) {
			return lastWord(st)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(s.Interval):
		}
	}
}

// ends reports the phases after which a sync's process goes away.
func ends(p job.Phase) bool {
	return p == job.PhaseFinalized || p == job.PhaseFailed
}

// lastWord is the error of watching a job that ended in failure.
func lastWord(s job.Status) error {
	if s.Phase == job.PhaseFailed {
		return errors.New("the sync failed: " + s.Error)
	}
	return differencesError(s)
}

func writeStatus(w io.Writer, s job.Status) error {
	var b strings.Builder
	t := newTable(plain(s.Job), phaseText(s))
	t.AppendRows([]table.Row{
		{"source", plain(s.Source)},
		{"target", plain(s.Target)},
	})
	if !s.StartedAt.IsZero() {
		t.AppendRow(table.Row{"runs for", clock(time.Since(s.StartedAt))})
	}
	t.AppendRows(copyRows(s))
	t.AppendRows(followRows(s))
	if s.Limits != (pace.Rates{}) {
		t.AppendRow(table.Row{"throttled to", limitsText(s.Limits)})
	}
	appendGiven(t, "load", loadText(s.Load))
	appendConflicts(t, s.Conflicts)
	appendGiven(t, "waiting for", plain(s.Waiting))
	appendGiven(t, "errors", errorCounts(s.Errors))
	appendGiven(t, "last error", plain(s.Error))
	appendGiven(t, "hint", plain(s.Hint))
	t.AppendRow(table.Row{"process", fmt.Sprintf("%d, %.0f%% of a core, %s of memory", s.Process.PID, s.Process.CPUPercent, size(float64(s.Process.Resident)))})
	b.WriteString(t.Render())
	b.WriteByte('\n')
	if !afterCopy(s.Phase) && len(s.Copy.Collections) > 0 {
		b.WriteString(collectionsTable(s.Copy.Collections).Render())
		b.WriteByte('\n')
	}
	writeDifferences(&b, s.Differences)
	_, err := io.WriteString(w, b.String())
	return err
}

// appendGiven adds a row, if there is something to say.
func appendGiven(t table.Writer, name, text string) {
	if text != "" {
		t.AppendRow(table.Row{name, text})
	}
}

func appendConflicts(t table.Writer, c job.ConflictStatus) {
	if text := conflictText(c); text != "" {
		t.AppendRows([]table.Row{{"conflicts", text}, {"dead letters", plain(c.Where)}})
	}
}

// conflictText counts what the target refused and what was removed from it.
func conflictText(c job.ConflictStatus) string {
	var parts []string
	for _, p := range []struct {
		n    int64
		what string
	}{{c.Open, "not on the target"}, {c.Undecided, "undecided"}, {c.Settled, "settled"}, {c.Removed, "removed from the target"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	return strings.Join(parts, ", ")
}

func phaseText(s job.Status) string {
	if s.Paused {
		return string(s.Phase) + ", paused"
	}
	return string(s.Phase)
}

func copyRows(s job.Status) []table.Row {
	c := s.Copy
	if c.Docs == 0 && c.DocsTotal == 0 {
		return nil
	}
	done := afterCopy(s.Phase)
	rows := []table.Row{{"copied", fmt.Sprintf("%.0f%%, %s of %s documents, %s", 100*copyShare(c, done),
		count(float64(c.Docs)), count(float64(c.DocsTotal)), size(float64(c.Bytes)))}}
	if !done {
		rows = append(rows, table.Row{"rate", count(c.DocsRate) + " docs/s, " + size(c.BytesRate) + "/s"},
			table.Row{"time left", seconds(c.ETASeconds)})
	}
	for _, x := range s.Indexes {
		rows = append(rows, table.Row{"index", fmt.Sprintf("%s %.0f%%", plain(x.NS), 100*share(x.Done, x.Total, false))})
	}
	return rows
}

func followRows(s job.Status) []table.Row {
	f := s.Follow
	if f.Applied == "" {
		return nil
	}
	rows := []table.Row{
		{"changes", fmt.Sprintf("%s applied, %s/s, %s/s, %d schema changes", count(float64(f.Operations)), count(f.OperationsRate), size(f.BytesRate), f.SchemaChanges)},
		{"behind", seconds(f.LagSeconds)},
		{"oplog window", seconds(f.WindowSeconds)},
		{"durable up to", f.Applied + " of " + f.Source},
		{"open transactions", f.OpenTransactions},
	}
	if f.SpoolBytes > 0 {
		rows = append(rows, table.Row{"spooled", size(float64(f.SpoolBytes))})
	}
	return rows
}

func collectionsTable(cs []job.CollectionStatus) table.Writer {
	t := newTable("collection", "documents", "of", "size", "%")
	for i, c := range cs {
		if i == 5*maxListed {
			t.AppendRow(table.Row{fmt.Sprintf("and %d more", len(cs)-i)})
			break
		}
		t.AppendRow(table.Row{plain(c.Source), c.Docs, c.DocsTotal, size(float64(c.Bytes)), fmt.Sprintf("%.0f", 100*share(c.Docs, c.DocsTotal, c.Done))})
	}
	alignRight(t, 2, 3, 4, 5)
	return t
}
