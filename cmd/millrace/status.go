package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

func (a *app) statusCommand() *cobra.Command {
	return a.controlCommand(&cobra.Command{
		Use:   "status",
		Short: "Show how a running sync stands",
		Example: `  millrace status
  millrace status --job orders --watch
  millrace status --address 127.0.0.1:7000 --output json`,
	}, (*control).status)
}

func (c *control) status(ctx context.Context) error {
	if c.Watch {
		return c.watchStatus(ctx)
	}
	st, err := c.Status(ctx)
	if err != nil {
		return err
	}
	return tell(c.stdout, c.Output, st, statusText(st))
}

// watchStatus shows the status again and again until the sync ends: drawn on a
// terminal, a line each elsewhere.
func (c *control) watchStatus(ctx context.Context) error {
	show := func(st job.Status) error {
		logProgress(c.Logger(c.stdout), st)
		return nil
	}
	if c.Output == "json" {
		show = func(st job.Status) error { return json.NewEncoder(c.stdout).Encode(st) }
	} else if c.screen != nil {
		defer c.screen.clear()
		show = func(st job.Status) error {
			c.screen.draw(func(columns, rows int) []string { return view(st, time.Now(), columns, rows) })
			return nil
		}
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
		switch st.Phase { // after these its process goes away
		case job.PhaseFinalized:
			return differencesError(st)
		case job.PhaseFailed:
			return errors.New("the sync failed: " + st.Error)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(c.Interval):
		}
	}
}

func statusText(s job.Status) string {
	t := newTable(plain(s.Job), phaseText(s))
	t.AppendRows([]table.Row{{"source", plain(s.Source)}, {"target", plain(s.Target)}})
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
	var b strings.Builder
	fmt.Fprintln(&b, t.Render())
	if !afterCopy(s.Phase) && len(s.Copy.Collections) > 0 {
		fmt.Fprintln(&b, collectionsTable(s.Copy.Collections).Render())
	}
	writeDifferences(&b, s.Differences)
	return b.String()
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
