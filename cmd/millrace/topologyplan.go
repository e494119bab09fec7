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
	text := textOf("tree", struct {
		Set    *topology.Set
		Plan   *topology.Plan
		Effect []topology.Outcome
	}{set, plan, effect})
	return s.showTree(set, plan.Tree(), struct {
		*topology.Plan
		Effect []topology.Outcome `json:"effect"`
	}{plan, effect}, text)
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
			return a.Tell(s.output, outcomes, textOf("effect", outcomes))
		},
	}, "text", "json")
}

func (s *setCommand) showFit() error {
	fit := struct {
		Params topology.Params `json:"params"`
		Cells  []topology.Cell `json:"cells"`
	}{topology.FitPublished(), topology.PublishedFit()}
	return s.Tell(s.output, fit, textOf("fit", fit))
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
			return t.untouched(a.Tell(s.output, was, textOf("memory", struct {
				Set *topology.Set
				Was *topology.Memory
			}{t.set, was})))
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
