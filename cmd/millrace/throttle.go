package main

import (
	"context"
	"fmt"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/server"
)

func (a *app) throttleCommand() *cobra.Command {
	return a.controlCommand(&cobra.Command{
		Use:   "throttle",
		Short: "Change how fast a running sync may work",
		Long: `Limits what a running sync copies and applies in a second, and how much it asks
of the source and the target, at once and until it ends; what is not given stays
as it is. To begin with one, give the same flags to sync.`,
		Example: `  millrace throttle --max-rate-bytes 20MB
  millrace throttle --source-load low --target-load max
  millrace throttle --job orders --max-rate-docs 5000
  millrace throttle --max-rate-docs 0 --max-rate-bytes 0`,
	}, a.throttle)
}

func (a *app) throttle(ctx context.Context, c *server.Client, s *config.Control) error {
	st, err := c.SetLimits(ctx, server.Limits(s.Limits))
	if err != nil {
		return err
	}
	if s.Output == "json" {
		return writeJSON(a.stdout, st)
	}
	text := limitsText(st.Limits)
	if l := loadText(st.Load); l != "" {
		text += "; load: " + l
	}
	_, err = fmt.Fprintf(a.stdout, "%s: %s (phase %s)\n", plain(st.Job), text, st.Phase)
	return err
}

// loadText says what a sync asks of each side, "" when that is as usual.
func loadText(l job.LoadStatus) string {
	side := func(name string, load pace.Load, atOnce int) string {
		text := name + " " + string(load)
		if load == pace.Max && atOnce > 0 {
			text += fmt.Sprintf(" (%d at once)", atOnce)
		}
		return text
	}
	usual := func(l pace.Load) bool { return l == "" || l == pace.Normal }
	if usual(l.Source) && usual(l.Target) {
		return ""
	}
	return side("source", l.Source, l.SourceAtOnce) + ", " + side("target", l.Target, l.TargetAtOnce)
}

// limitsText says what holds a sync back, "no limit" when nothing does.
func limitsText(r pace.Rates) string {
	switch {
	case r.Docs > 0 && r.Bytes > 0:
		return fmt.Sprintf("at most %s documents and %s a second", humanize.Comma(r.Docs), humanize.Bytes(uint64(r.Bytes)))
	case r.Docs > 0:
		return fmt.Sprintf("at most %s documents a second", humanize.Comma(r.Docs))
	case r.Bytes > 0:
		return fmt.Sprintf("at most %s a second", humanize.Bytes(uint64(r.Bytes)))
	}
	return "no limit"
}
