package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/server"
)

// control is one run of a command that does something with a running sync.
type control struct {
	*session
	*server.Client
	*config.Control
}

// controlCommand makes a command that finds a running sync first.
func (a *app) controlCommand(cmd *cobra.Command, do func(*control, context.Context) error) *cobra.Command {
	var s config.Control
	return a.controlled(cmd, &s, func(ctx context.Context, run *session) error {
		c, err := a.client(ctx, &s)
		if err != nil {
			return err
		}
		defer c.Close()
		return do(&control{run, c, &s}, ctx)
	})
}

// controlled gives a command the settings of control, and completes their job by
// those that run here.
func (a *app) controlled(cmd *cobra.Command, s *config.Control, do func(context.Context, *session) error) *cobra.Command {
	a.configured(cmd, cmd.Name(), s, do)
	_ = cmd.RegisterFlagCompletionFunc("job", func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		registry, err := server.NewRegistry(a.LookupEnv)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		running, _ := registry.Running(cmd.Context()) // what cannot be read completes nothing
		var names []cobra.Completion
		for _, rec := range running {
			names = append(names, cobra.CompletionWithDesc(rec.Job, rec.Address))
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}

// client finds the sync that the settings mean.
func (a *app) client(ctx context.Context, s *config.Control) (*server.Client, error) {
	registry, err := server.NewRegistry(a.LookupEnv)
	if err != nil && s.Address == "" {
		return nil, err
	}
	rec, err := registry.Find(ctx, s.Address, s.Job)
	switch {
	case err == nil:
		rec.Token = cmp.Or(s.Token, rec.Token)
		return rec.Client(), nil
	case s.Address != "" && ctx.Err() == nil: // on another machine, or of another user
		c := server.NewClient(s.Address, s.Token)
		return c, cli.WithCode(cli.ExitUsage, c.TrustAuthorities(s.CAFile))
	}
	return nil, err
}

func (a *app) pauseCommand() *cobra.Command {
	return a.controlCommand(&cobra.Command{
		Use:   "pause",
		Short: "Stop a running sync's work until resume",
		Long: `Stops reading and writing after a checkpoint. The sync keeps running and keeps
its place, as long as the source's oplog does: see the window in its status.`,
		Example: `  millrace pause --job orders`,
	}, func(c *control, ctx context.Context) error {
		st, err := c.Pause(ctx)
		return c.changed(st, err, "paused")
	})
}

func (a *app) resumeCommand() *cobra.Command {
	return a.controlCommand(&cobra.Command{
		Use:     "resume",
		Short:   "Let a paused sync go on",
		Example: `  millrace resume --job orders`,
	}, func(c *control, ctx context.Context) error {
		st, err := c.Resume(ctx)
		return c.changed(st, err, "resumed")
	})
}

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
	}, func(c *control, ctx context.Context) error {
		st, err := c.SetLimits(ctx, c.Limits)
		text := limitsText(st.Limits)
		if l := loadText(st.Load); l != "" {
			text += "; load: " + l
		}
		return c.changed(st, err, text)
	})
}

// changed tells the status of a job after a request.
func (c *control) changed(st job.Status, err error, done string) error {
	if err != nil {
		return err
	}
	return c.Tell(c.Output, st, fmt.Sprintf("%s: %s (phase %s)\n", cli.Plain(st.Job), done, st.Phase))
}

func (a *app) finalizeCommand() *cobra.Command {
	return a.controlCommand(&cobra.Command{
		Use:   "finalize",
		Short: "Cut over: drain a running sync to the source's newest position",
		Long: `Asks a running sync for the cut-over and waits for it: everything the source has
at this moment is applied and durable, and what was deferred (unique indexes,
TTL, limits of capped collections) is restored. Stop the writes to the source first; later ones stay behind.
The sync ends after that.

Before the sync follows the source (phase following) that is refused, unless
--when-caught-up asks for it as soon as it does. An interrupt ends the waiting,
not the wish; --cancel takes the wish back until the sync has begun to finalize.

Exit code 1 when something differs from the source, 2 when it was refused.`,
		Example: `  millrace finalize --job orders
  millrace finalize --when-caught-up
  millrace finalize --cancel`,
	}, (*control).finalize)
}

func (c *control) finalize(ctx context.Context) error {
	if c.Cancel {
		st, err := c.CancelFinalize(ctx)
		return refused(c.changed(st, err, "finalize taken back"))
	}
	var st job.Status
	err := during(ctx, func() (err error) { st, err = c.Finalize(ctx, c.WhenCaughtUp); return err }, c.showMeanwhile)
	switch {
	case err != nil && ctx.Err() != nil:
		return mongo.WithHint(fmt.Errorf("%w; the finalization goes on", context.Cause(ctx)), "see millrace status; millrace finalize --cancel takes it back")
	case err != nil:
		return refused(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: finalized at %s\n", cli.Plain(st.Job), st.Follow.Applied)
	b.WriteString(wayBack(st.TargetPosition))
	writeDifferences(&b, st.Differences)
	writeLeftOut(&b, st.LeftOut)
	return cmp.Or(c.Tell(c.Output, st, b.String()), differencesError(st))
}

// wayBack says from where a sync in the other direction would start.
func wayBack(target string) string {
	if target == "" {
		return ""
	}
	return fmt.Sprintf("the target stands at %s: to fall back, follow it from there with sync --mode incremental --start-at %s, source and target exchanged\n", target, target)
}

// refused gives a wish that the job does not take its exit code.
func refused(err error) error {
	if r, ok := errors.AsType[*job.Refusal](err); ok && r.Code != "" {
		return cli.WithCode(cli.ExitUsage, err)
	}
	return err
}

// showMeanwhile shows the progress where there is a terminal.
func (c *control) showMeanwhile(ctx context.Context) {
	if c.screen == nil {
		return
	}
	defer c.screen.clear()
	every(ctx, time.Second, func() {
		if st, err := c.Status(ctx); err == nil {
			c.screen.draw(func(columns, rows int) []string { return view(st, time.Now(), columns, rows) })
		}
	})
}

// differencesError is the error of a job that is finalized but differs.
func differencesError(s job.Status) error {
	if len(s.Differences) == 0 {
		return nil
	}
	return mongo.WithHint(errors.New("finalized, but the target differs from the source in "+plural(len(s.Differences), "thing")),
		"millrace verify compares again and lists documents")
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
	if cmp.Or(l.Source, pace.Normal) == pace.Normal && cmp.Or(l.Target, pace.Normal) == pace.Normal {
		return ""
	}
	return side("source", l.Source, l.SourceAtOnce) + ", " + side("target", l.Target, l.TargetAtOnce)
}

// compressionText says what is compressed, "" when nothing is.
func compressionText(c job.Compressions) string {
	var parts []string
	for _, side := range []struct {
		name string
		job.Compression
	}{{"source", c.Source}, {"target", c.Target}} {
		switch {
		case !side.On:
		case side.Gain > 0:
			parts = append(parts, fmt.Sprintf("%s with zstd, %.1f times as fast", side.name, side.Gain))
		default:
			parts = append(parts, side.name+", as its connection string says")
		}
	}
	return strings.Join(parts, ", ")
}

// limitsText says what holds a sync back, "no limit" when nothing does.
func limitsText(r pace.Rates) string {
	var parts []string
	if r.Docs > 0 {
		parts = append(parts, humanize.Comma(r.Docs)+" documents")
	}
	if r.Bytes > 0 {
		parts = append(parts, humanize.Bytes(uint64(r.Bytes)))
	}
	if len(parts) == 0 {
		return "no limit"
	}
	return "at most " + strings.Join(parts, " and ") + " a second"
}
