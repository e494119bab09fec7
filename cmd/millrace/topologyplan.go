package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/format"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/topology"
)

// params are the fitted ones for the machine and the load that the flags describe.
func (s *setCommand) params() (topology.Params, error) {
	p := topology.FitPublished()
	if s.threads <= 0 || s.cores <= 0 {
		return p, cli.WithCode(cli.ExitUsage, errors.New("--threads and --cores have to be above zero"))
	}
	p.Threads, p.Cores = s.threads, s.cores
	return p, nil
}

func topologyPlanCommand(a *app) *cobra.Command {
	s := setCommand{app: a}
	return s.described("topology plan", &cobra.Command{
		RunE: s.onSet(func(ctx context.Context, observer *topology.Observer, _ []string) error {
			params, err := s.params()
			if err != nil {
				return err
			}
			set, err := observer.Observe(ctx)
			return then(err, func() error { return s.showPlan(set, params) })
		}),
	}, "text", "json", "dot", "svg")
}

func (s *setCommand) showPlan(set *topology.Set, p topology.Params) error {
	plan, err := topology.MakePlan(set, s.plan)
	if err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	effect := []topology.Outcome{
		{Name: "as it is", Prediction: topology.Predict(set, set.Tree(), p)},
		{Name: "planned", Prediction: topology.Predict(set, plan.Tree(), p)},
		{Name: "all direct", Prediction: topology.Predict(set, topology.DirectTree(set), p)},
		{Name: "all automatic", Prediction: topology.PredictAutomatic(set, p)},
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: policy %s, fan-out %d, depth %d, majority of %d\n", cli.Plain(set.Name), plan.Policy, plan.FanOut,
		plan.Depth, plan.Majority)
	fmt.Fprintln(&b, planTable(set, plan).Render())
	writeLeft(&b, plan)
	fmt.Fprintln(&b, effectTable(effect).Render())
	return s.showTree(set, plan.Tree(), struct {
		*topology.Plan
		Effect []topology.Outcome `json:"effect"`
	}{plan, effect}, b.String())
}

func writeLeft(b *strings.Builder, plan *topology.Plan) {
	for _, l := range plan.Left {
		fmt.Fprintf(b, "left alone: %s %s\n", cli.Plain(l.Host), cli.Plain(l.Why))
	}
	for _, n := range plan.Notes {
		fmt.Fprintf(b, "note: %s\n", cli.Plain(n))
	}
	if n := len(plan.Changes()); n > 0 {
		fmt.Fprintf(b, "%s to move\n", plural(n, "member"))
	} else {
		b.WriteString("the set has this tree already\n")
	}
}

func planTable(set *topology.Set, plan *topology.Plan) table.Writer {
	t := newTable("planned", "role", "now under", "second choice", "why")
	for _, l := range topology.Lines(set, plan.Tree()) {
		m, seat := set.Member(l.Host), plan.Seat(l.Host)
		switch {
		case m.Host == plan.Primary:
			t.AppendRow(table.Row{m.Host, role(m), "", "", "primary"})
		case seat != nil && seat.Changed():
			t.AppendRow(table.Row{l.Prefix + m.Host, role(m), cmp.Or(seat.Current, "none") + " → moves", seat.Second,
				seat.Why})
		case seat != nil:
			t.AppendRow(table.Row{l.Prefix + m.Host, role(m), "stays", seat.Second, seat.Why})
		}
	}
	return t
}

func effectTable(outcomes []topology.Outcome) table.Writer {
	t := newTable("predicted", "w:1", "majority", "majority waits", "CPU w:1", "CPU majority", "CPU inner",
		"under primary", "depth", "fan-out")
	first := outcomes[0].Prediction
	for _, o := range outcomes {
		p := o.Prediction
		t.AppendRow(table.Row{o.Name, rateText(p.W1, first.W1), rateText(p.Majority, first.Majority),
			fmt.Sprintf("%.1f ms", p.WaitMillis), percent(p.CPUW1), percent(p.CPUMajority), percent(p.CPUInner), tidy(p.Direct),
			tidy(p.Depth), tidy(p.FanOut)})
	}
	alignRight(t, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	return t
}

func rateText(v, first float64) string {
	switch {
	case v == 0:
		return "none"
	case v == first || first == 0:
		return format.Count(v) + "/s"
	}
	return fmt.Sprintf("%s/s %+.0f %%", format.Count(v), 100*(v/first-1))
}

func percent(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }

func tidy(v float64) string { return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") }

func topologyWhatIfCommand(a *app) *cobra.Command {
	s := setCommand{app: a}
	return s.described("topology what-if", &cobra.Command{
		RunE: func(*cobra.Command, []string) error {
			if s.published {
				return s.showFit()
			}
			params, err := s.params()
			if err != nil {
				return err
			}
			if err := s.hypothesis.Check(); err != nil {
				return cli.WithCode(cli.ExitUsage, err)
			}
			outcomes, err := topology.Compare(topology.Hypothetical(s.hypothesis), s.plan, params)
			if err != nil {
				return cli.WithCode(cli.ExitUsage, err)
			}
			return a.Tell(s.output, outcomes, effectTable(outcomes).Render()+"\n")
		},
	}, "text", "json")
}

func (s *setCommand) showFit() error {
	p, cells := topology.FitPublished(), topology.PublishedFit()
	t := newTable("members", "write concern", "chaining", "published", "model", "difference", "left out", "CPU, published",
		"model", "difference", "left out")
	change := func(v float64) string { return fmt.Sprintf("%+.1f %%", 100*v) }
	for _, c := range cells {
		concern := "1"
		if c.Majority {
			concern = topology.Majority
		}
		t.AppendRow(table.Row{c.Members, concern, onOff(c.Chaining), fmt.Sprintf("%.0f/s", c.OpsPerSecond),
			fmt.Sprintf("%.0f/s", c.Model), change(c.Error), change(c.LeftOutError), percent(c.CPU), percent(c.ModelCPU),
			change(c.CPUError), change(c.LeftOutCPUError)})
	}
	alignRight(t, 1, 4, 5, 6, 7, 8, 9, 10, 11)
	return s.Tell(s.output, struct {
		Params topology.Params `json:"params"`
		Cells  []topology.Cell `json:"cells"`
	}{p, cells}, fmt.Sprintf(`%s
left out: how far a fit to the other cells is off.
published: %.0f clients, a primary of %.0f cores, %.3f ms between them.
fitted: the primary needs %.0f µs of processor time for a write and %.1f µs for each member under it.
Where clients wait for a majority, it needs %.0f µs more for each voting member. A hop takes %.2f ms.
Members that choose take the primary %.2f times as often as any other.
measured, not published: a secondary takes %.0f µs to apply a write.
`, t.Render(), p.Threads, p.Cores, p.ClientMillis, p.WriteCPU, p.ServeCPU, p.FollowCPU, p.HopMillis, p.PrimaryWeight,
		p.ApplyCPU))
}

type acting struct {
	*setCommand
	observer *topology.Observer
	set      *topology.Set
	dir      string // of memories
	log      *slog.Logger
	control  *topology.Controller
}

// acts is a command that works on a set, and looks at it first. It holds the set if it keeps on.
func (s *setCommand) acts(path string, cmd *cobra.Command, holds bool,
	do func(context.Context, *acting, []string) error) *cobra.Command {
	cmd.RunE = s.onSet(func(ctx context.Context, observer *topology.Observer, args []string) error {
		if holds {
			if err := longEnough(s.interval); err != nil {
				return err
			}
		}
		dir, err := server.StateDir(s.LookupEnv)
		if err != nil {
			return err
		}
		if holds && s.yes {
			observer.Announce()
			observer.Lean()
		}
		set, err := observer.Observe(ctx)
		if err != nil {
			return err
		}
		log := config.NewLog(s.Stderr, s.logLevel, s.logFormat)
		control := topology.NewController(observer,
			topology.ControlOptions{Plan: s.plan, Interval: s.interval, NoNotes: s.noNotes, Log: log})
		return do(ctx, &acting{s, observer, set, filepath.Join(dir, "topology"), log, control}, args)
	})
	config.BindLog(cmd.Flags(), &s.logLevel, &s.logFormat)
	return s.described(path, cmd, "text", "json")
}

// limited bounds what is done to a set by --within.
func (t *acting) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, t.within, fmt.Errorf("--within %s is over", t.within))
}

// plans is a command that brings a set into a planned tree. Without --yes it shows the plan; else do gets the tree from
// before the first change.
func (s *setCommand) plans(path string, holds bool,
	do func(context.Context, *acting, *topology.Memory) error) *cobra.Command {
	return s.acts(path, &cobra.Command{}, holds, func(ctx context.Context, t *acting, _ []string) error {
		if !s.yes {
			return t.untouched(t.showPlan(t.set, topology.FitPublished()))
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

// untouched is the error of a command without --yes, which has shown what it would do with the error err.
func (t *acting) untouched(err error) error {
	return cmp.Or(err, misuse(fmt.Errorf("replica set %s: nothing was changed", cli.Plain(t.set.Name)),
		"add --yes to do it"))
}

func topologyApplyCommand(a *app) *cobra.Command {
	s := setCommand{app: a}
	return s.plans("topology apply", false, func(ctx context.Context, t *acting, _ *topology.Memory) error {
		applying, cancel := t.limited(ctx)
		defer cancel()
		if _, err := t.control.Apply(applying); err != nil {
			return err
		}
		return t.showSet(ctx, t.observer)
	})
}

func topologyHoldCommand(a *app) *cobra.Command {
	s := setCommand{app: a}
	return s.plans("topology hold", true, func(ctx context.Context, t *acting, was *topology.Memory) error {
		return t.hold(ctx, was)
	})
}

// hold holds until an interrupt, which is its good end.
func (t *acting) hold(ctx context.Context, was *topology.Memory) error {
	err := t.control.Hold(ctx)
	stats := t.control.Stats()
	t.log.Info("hold ends", "plans", stats.Plans, "commands", stats.Commands, "settled", stats.Settled)
	switch {
	case ctx.Err() == nil:
		return err
	case t.keep:
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

func topologyReleaseCommand(a *app) *cobra.Command {
	s := setCommand{app: a}
	return s.acts("topology release", &cobra.Command{}, false, func(ctx context.Context, t *acting, _ []string) error {
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
		return t.showSet(ctx, t.observer)
	})
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

func topologyChainingCommand(a *app) *cobra.Command {
	s := setCommand{app: a}
	return s.acts("topology chaining", &cobra.Command{
		Args:      cobra.MatchAll(cli.OneArg("state"), cobra.OnlyValidArgs),
		ValidArgs: []string{"on", "off"},
	}, false, func(ctx context.Context, t *acting, args []string) error { return t.chaining(ctx, args[0] == "on") })
}

func (t *acting) chaining(ctx context.Context, on bool) error {
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
	if stops && !t.force {
		return misuse(fmt.Errorf("replica set %s: a check failed, and chaining was not changed", cli.Plain(t.set.Name)),
			"--force changes it nevertheless")
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
