package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/api"
)

const (
	// logPage is how many entries a request asks for at most.
	logPage = 1000
	// followEvery is how often a log that is followed is looked at.
	followEvery = time.Second
)

// logFlags are those of jobs log.
type logFlags struct {
	limit          int
	events, follow bool
}

func (a *app) jobsLogCommand() *cobra.Command {
	var r remote
	var f logFlags
	cmd := a.remoteJobCommand(&cobra.Command{
		Use:   "log --server URL --job NAME",
		Short: "Show what happened to a job of a service, and what it logs",
		Long: `Shows the newest events of a job and lines that its workers log of it, the oldest of
them first. The service keeps 2000 of each, for 30 days.

With --follow it goes on with what is new, until an interrupt.`,
		Example: `  millrace jobs log --job orders --events
  millrace jobs log --job orders --follow`,
	}, &r, func(ctx context.Context) error {
		switch {
		case f.limit < 1 || f.limit > logPage:
			return cli.WithCode(cli.ExitUsage, fmt.Errorf("--limit %d: want 1 to %d", f.limit, logPage))
		case f.follow && r.output != "text":
			return cli.WithCode(cli.ExitUsage, errors.New("--follow cannot go with --output json, which is written at the end"))
		}
		return a.jobLog(ctx, &r, &f)
	})
	fs := cmd.Flags()
	fs.IntVar(&f.limit, "limit", 100, "how many of the newest are shown")
	fs.BoolVar(&f.events, "events", false, "show what happened, and not what is logged")
	fs.BoolVar(&f.follow, "follow", false, "go on with what is new")
	return cmd
}

func (a *app) jobLog(ctx context.Context, r *remote, f *logFlags) error {
	kind := service.EntryKind("")
	if f.events {
		kind = service.KindEvent
	}
	l, err := r.Log(ctx, r.job, kind, 0, f.limit)
	if err != nil {
		return err
	}
	last := uint64(0)
	if len(l.Entries) > 0 {
		last = l.Entries[0].Seq
	}
	if err := a.Tell(r.output, l, logText(l.Entries)); err != nil || !f.follow {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil //nolint:nilerr // that is how it is ended
		case <-time.After(followEvery):
		}
		newer, err := newEntries(ctx, r.Client, r.job, kind, last)
		if err != nil {
			if ctx.Err() == nil {
				return err
			}
			continue
		}
		if len(newer) > 0 {
			last = newer[0].Seq
		}
		if _, err := io.WriteString(a.Stdout, logText(newer)); err != nil {
			return err
		}
	}
}

// newEntries are those after one, the newest first.
func newEntries(ctx context.Context, c *api.Client, job string, kind service.EntryKind, last uint64) (all []service.Entry, err error) {
	for before := uint64(0); ; {
		page, err := c.Log(ctx, job, kind, before, logPage)
		if err != nil {
			return nil, err
		}
		old := slices.IndexFunc(page.Entries, func(e service.Entry) bool { return e.Seq <= last })
		if old >= 0 {
			return append(all, page.Entries[:old]...), nil
		}
		all = append(all, page.Entries...)
		if before = page.Next; before == 0 {
			return all, nil
		}
	}
}

// logText is a line for each entry, the oldest first.
func logText(newest []service.Entry) string {
	var b strings.Builder
	for _, e := range slices.Backward(newest) {
		if e.Lost > 0 {
			fmt.Fprintf(&b, "(%s before this could not be kept)\n", plural(int(e.Lost), "line"))
		}
		mark := map[string]string{"warn": "warning: ", "error": "error: "}[e.Level]
		if e.Kind == service.KindEvent {
			mark = "* " + mark
		}
		fmt.Fprintf(&b, "%s %s%s", e.At.UTC().Format(time.DateTime), mark, cli.Plain(e.Text))
		for _, field := range e.Fields {
			fmt.Fprintf(&b, " %s=%s", cli.Plain(field.Name), cli.Plain(field.Value))
		}
		fmt.Fprintf(&b, " (%s)\n", cli.Plain(e.Worker))
	}
	return b.String()
}
