package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/topology"
)

// restoreTime bounds how long an interrupted hold restores.
const restoreTime = 30 * time.Second

// actSettings are the flags of the commands that change a set.
type actSettings struct {
	topologySettings
	yes       bool
	within    time.Duration
	interval  time.Duration
	noNotes   bool
	holds     bool // the command keeps on
	logLevel  string
	logFormat string
}

func (s *actSettings) bindAct(cmd *cobra.Command, within time.Duration) {
	s.bind(cmd, "text or json", "text", "json")
	cmd.Flags().BoolVar(&s.yes, "yes", false, "do it; without this flag it is only said what would be done")
	cmd.Flags().DurationVar(&s.within, "within", within, "how long it may take")
	config.BindLog(cmd.Flags(), &s.logLevel, &s.logFormat)
}

func (s *actSettings) bindNotes(fs *pflag.FlagSet) {
	fs.BoolVar(&s.noNotes, "no-notes", false, "write no notes into the oplog; in a set without writes a change then takes long, for a member keeps a new source only if that is ahead of it")
}

// acting is what the commands that change a set work with.
type acting struct {
	*app
	*actSettings
	observer *topology.Observer
	set      *topology.Set
	dir      string // of memories
	log      *slog.Logger
	control  *topology.Controller
}

// acts is the RunE of a command that works on a set, and looks at it first.
func (a *app) acts(s *actSettings, o *topology.PlanOptions, do func(context.Context, *acting, []string) error) func(*cobra.Command, []string) error {
	return a.onSet(&s.topologySettings, func(ctx context.Context, observer *topology.Observer, args []string) error {
		if s.holds {
			if err := longEnough(s.interval); err != nil {
				return err
			}
		}
		dir, err := server.StateDir(a.LookupEnv)
		if err != nil {
			return err
		}
		if s.holds && s.yes {
			observer.Announce()
			observer.Lean()
		}
		set, err := observer.Observe(ctx)
		if err != nil {
			return err
		}
		log := config.NewLog(a.Stderr, s.logLevel, s.logFormat)
		control := topology.NewController(observer, topology.ControlOptions{Plan: *o, Interval: s.interval, NoNotes: s.noNotes, Log: log})
		return do(ctx, &acting{a, s, observer, set, filepath.Join(dir, "topology"), log, control}, args)
	})
}

// limited bounds what is done to a set by --within.
func (t *acting) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, t.within, fmt.Errorf("%s are over", t.within))
}

// plans is the RunE of a command that brings a set into a planned tree. Without
// --yes it shows the plan; else do is told the tree from before the first change.
func (a *app) plans(s *actSettings, o *topology.PlanOptions, do func(context.Context, *acting, *topology.Memory) error) func(*cobra.Command, []string) error {
	return a.acts(s, o, func(ctx context.Context, t *acting, _ []string) error {
		if !s.yes {
			return t.untouched(t.showPlan(t.set, *o, topology.FitPublished(), t.output))
		}
		if err := t.observer.CheckAlone(ctx, t.set); err != nil {
			return err
		}
		was, err := topology.Remember(t.set).Save(t.dir)
		if err != nil {
			return err
		}
		return do(ctx, t, was)
	})
}

// untouched says so, unless err says more.
func (t *acting) untouched(err error) error {
	if err == nil {
		fmt.Fprintln(t.Stderr, "dry run: nothing was changed; give --yes to do it")
	}
	return err
}

func (a *app) topologyApplyCommand() *cobra.Command {
	var s actSettings
	var o topology.PlanOptions
	cmd := &cobra.Command{
		Use:   "apply --uri URI --yes",
		Short: "Bring the set into the planned tree, once",
		Long: `Tells the members, sources before those who fetch from them, whom to fetch from,
until all do. Without --yes it shows the plan and changes nothing.

Nothing is stored in the cluster: members choose for themselves again when they
restart, when their source is lost and after an election. topology hold keeps
the tree, topology release leads back to the one before.

The user needs the roles clusterMonitor and clusterManager.`,
		Example: `  millrace topology apply --uri mongodb://a,b,c/?replicaSet=rs
  millrace topology apply --policy balanced --yes`,
		RunE: a.plans(&s, &o, func(ctx context.Context, t *acting, _ *topology.Memory) error {
			applying, cancel := t.limited(ctx)
			defer cancel()
			if _, err := t.control.Apply(applying); err != nil {
				return err
			}
			return t.showSet(ctx, t.observer, t.output)
		}),
	}
	s.bindAct(cmd, 2*time.Minute)
	s.bindNotes(cmd.Flags())
	bindPlan(cmd.Flags(), &o)
	return cmd
}

func (a *app) topologyHoldCommand() *cobra.Command {
	var s actSettings
	var o topology.PlanOptions
	var keep bool
	cmd := &cobra.Command{
		Use:   "hold --uri URI --yes",
		Short: "Keep the set in the planned tree until interrupted",
		Long: `Applies the plan and keeps it: members that drift, restart or lose their source
are brought back, and a new plan is made when a member fails or returns, when
another primary is elected and when the configuration changes. A member in its
initial sync is left alone. Without --yes it shows the plan and changes nothing.

On an interrupt the members go back under the sources that they had before,
unless --keep is given.

While a hold is connected to a set, another hold, apply and release refuse to
work on it.`,
		Example: `  millrace topology hold --uri mongodb://a,b,c/?replicaSet=rs --yes
  millrace topology hold --policy latency --interval 5s --keep --yes`,
		RunE: a.plans(&s, &o, func(ctx context.Context, t *acting, was *topology.Memory) error { return t.hold(ctx, was, keep) }),
	}
	s.holds = true
	s.bindAct(cmd, restoreTime)
	cmd.Flags().Lookup("within").Usage = "how long restoring may take at the end"
	s.bindNotes(cmd.Flags())
	cmd.Flags().DurationVar(&s.interval, "interval", time.Second, "how often the set is looked at")
	cmd.Flags().BoolVar(&keep, "keep", false, "leave the members where they are at the end")
	bindPlan(cmd.Flags(), &o)
	return cmd
}

// hold holds until an interrupt, which is its good end.
func (t *acting) hold(ctx context.Context, was *topology.Memory, keep bool) error {
	err := t.control.Hold(ctx)
	stats := t.control.Stats()
	t.log.Info("hold ends", "plans", stats.Plans, "commands", stats.Commands, "settled", stats.Settled)
	switch {
	case ctx.Err() == nil:
		return err
	case keep:
		return nil
	}
	return t.restore(context.WithoutCancel(ctx), was)
}

// restore leads back to the tree before, and forgets it.
func (t *acting) restore(ctx context.Context, was *topology.Memory) error {
	t.log.Info("restoring the tree as it was", "at", was.At)
	ctx, cancel := t.limited(ctx)
	defer cancel()
	if err := t.control.Restore(ctx, was); err != nil {
		return mongo.WithHint(err, "millrace topology release tries again")
	}
	return was.Forget(t.dir)
}

func (a *app) topologyReleaseCommand() *cobra.Command {
	var s actSettings
	cmd := &cobra.Command{
		Use:   "release --uri URI --yes",
		Short: "Lead the set back to the tree that it had before apply or hold",
		Long: `Brings the members back under the sources that they had before the first apply
or hold of this user on this machine, where these can still be sources. Members
that were under the primary come under the one of today. From then on they
choose for themselves. Without --yes it says what it knows and changes nothing.`,
		Example: `  millrace topology release --uri mongodb://a,b,c/?replicaSet=rs --yes`,
		RunE: a.acts(&s, &topology.PlanOptions{}, func(ctx context.Context, t *acting, _ []string) error {
			was, err := topology.LoadMemory(t.dir, t.set.Name, t.set.ID)
			switch {
			case err != nil:
				return err
			case was == nil:
				fmt.Fprintln(a.Stderr, "nothing to release: no tree of this set is noted on this machine")
				return nil
			case !s.yes:
				return t.untouched(a.Tell(s.output, was, memoryText(t.set, was)))
			}
			if err := t.observer.CheckAlone(ctx, t.set); err != nil {
				return err
			}
			if err := t.restore(ctx, was); err != nil {
				return err
			}
			return t.showSet(ctx, t.observer, t.output)
		}),
	}
	s.bindAct(cmd, 2*time.Minute)
	s.bindNotes(cmd.Flags())
	return cmd
}

func memoryText(set *topology.Set, was *topology.Memory) string {
	t := newTable("member", "now under", "was under")
	for _, m := range set.Members {
		if src, known := was.Tree[m.Host]; known || m.Source != "" {
			t.AppendRow([]any{m.Host, m.Source, src})
		}
	}
	return fmt.Sprintf("%s as it was %s ago\n%s\n", cli.Plain(set.Name), ago(set.At, was.At), t.Render())
}

func (a *app) topologyChainingCommand() *cobra.Command {
	var s actSettings
	var force bool
	cmd := &cobra.Command{
		Use:   "chaining on|off --uri URI --yes",
		Short: "Switch chaining by a new configuration, after checks",
		Long: `Sets chainingAllowed in the set's configuration, if the checks allow it: there
is a primary, a majority of the voters is up, no member is in its initial sync,
and the configuration is the one that was checked. With chaining off,
replSetSyncFrom has no effect but on members that were started with
enableOverrideClusterChainingSetting, and no tree can be held.

Without --yes it says what the checks find and changes nothing.`,
		Example: `  millrace topology chaining off --uri mongodb://a,b,c/?replicaSet=rs
  millrace topology chaining on --yes`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"on", "off"},
		RunE: a.acts(&s, &topology.PlanOptions{}, func(ctx context.Context, t *acting, args []string) error {
			return t.chaining(ctx, args[0] == "on", force)
		}),
	}
	s.bindAct(cmd, 30*time.Second)
	cmd.Flags().BoolVar(&force, "force", false, "do it although a check speaks against it")
	return cmd
}

// chaining checks and, if wanted, switches.
func (t *acting) chaining(ctx context.Context, on, force bool) error {
	if t.set.Chaining == on {
		fmt.Fprintf(t.Stderr, "chaining is %s already\n", onOff(on))
		return nil
	}
	findings := topology.CheckChaining(t.set, on, topology.FitPublished())
	stops, text := false, ""
	for _, f := range findings {
		mark := "note"
		if f.Stops {
			mark, stops = "STOP", true
		}
		text += fmt.Sprintf("%s: %s\n", mark, cli.Plain(f.What))
	}
	if err := t.Tell(t.output, findings, text); err != nil {
		return err
	}
	if stops && !force {
		return cli.WithCode(cli.ExitUsage, mongo.WithHint(errors.New("a check speaks against it; nothing was changed"), "--force does it nevertheless"))
	}
	if !t.yes {
		return t.untouched(nil)
	}
	ctx, cancel := t.limited(ctx)
	defer cancel()
	if err := t.observer.SetChaining(ctx, t.set, on); err != nil {
		return err
	}
	t.log.Info("chaining switched", "set", t.set.Name, "chaining", on, "configuration", t.set.ConfigVersion+1)
	return nil
}
