package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/topology"
)

// anyConcern asks for advice for each concern that the model knows.
const anyConcern = "any"

func (a *app) topologyAdviseCommand() *cobra.Command {
	var s topologySettings
	var h topology.Hypothesis
	var m modelSettings
	var concern string
	advise := func(set *topology.Set) error {
		params, err := m.params()
		if err != nil {
			return err
		}
		return a.showAdvice(set, concern, params, s.output)
	}
	live := a.onSet(&s, func(ctx context.Context, o *topology.Observer, _ []string) error {
		set, err := o.Observe(ctx)
		if err != nil {
			return err
		}
		return advise(set)
	})
	cmd := &cobra.Command{
		Use:   "advise {--uri URI | --members N}",
		Short: "Say whether a set should have chaining on, off, or a planned tree",
		Long: `Predicts chaining off, chaining on and the planned tree for the write concern of
most writes, and applies a rule: the faster of off and on, or either where they
are nearly alike, and the plan where it is clearly faster than both. Beside it
stands what the publication advises that the model is fitted to.

The set is that of --uri, or one of --members members that need not exist.
Nothing is changed.`,
		Example: `  millrace topology advise --uri mongodb://a,b,c/?replicaSet=rs --write-concern majority
  millrace topology advise --members 15
  millrace topology advise --members 9 --zones 3 --zone-rtt 40 --spread-voters --threads 64`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed(flagMembers) {
				if err := h.Check(); err != nil {
					return cli.WithCode(cli.ExitUsage, err)
				}
				return advise(topology.Hypothetical(h))
			}
			for _, name := range []string{"voters", "zones", "zone-rtt", "spread-voters"} {
				if cmd.Flags().Changed(name) {
					return cli.WithCode(cli.ExitUsage, mongo.WithHint(fmt.Errorf("--%s describes a set that need not exist", name), "give --members with it"))
				}
			}
			return live(cmd, args)
		},
	}
	f := cmd.Flags()
	s.bind(cmd, "text or json", "text", "json")
	f.IntVar(&h.Members, flagMembers, 0, "members of a set that need not exist, 3 to 50, in the place of --uri")
	bindHypothesis(f, &h)
	config.Choice(f, &concern, "write-concern", anyConcern, "`concern` of most writes: 1, majority, or any for advice on both", "1", topology.Majority, anyConcern)
	m.bind(f)
	cmd.MarkFlagsMutuallyExclusive(flagURI, flagMembers)
	return cmd
}

// showAdvice writes the advice for a set, for one concern or each.
func (a *app) showAdvice(set *topology.Set, concern string, p topology.Params, output string) error {
	concerns := []string{concern}
	if concern == anyConcern {
		concerns = []string{"1", topology.Majority}
	}
	if set.Primary() == nil {
		return mongo.WithHint(errors.New("the set has no primary, so there is nothing to advise"), "wait for the election")
	}
	var all []*topology.Advice
	var b strings.Builder
	for i, c := range concerns {
		advice, err := topology.Advise(set, c, p)
		if err != nil {
			return err
		}
		all = append(all, advice)
		if i == 0 {
			fmt.Fprintf(&b, "%s, of which %d vote, in %s; %g clients, a primary of %g cores\n",
				plural(advice.Members, "member"), advice.Voters, plural(advice.Zones, "zone"), p.Threads, p.Cores)
		}
		writeAdvice(&b, advice)
	}
	return a.Tell(output, all, b.String())
}

// writeAdvice writes the advice for one write concern.
func writeAdvice(b *strings.Builder, a *topology.Advice) {
	fmt.Fprintf(b, "\nwrite concern %s: %s\n", a.WriteConcern, choiceText(a))
	t := newTable("predicted", "writes", "primary's CPU", "majority waits", "under primary", "depth")
	var first float64
	for i, o := range a.Outcomes {
		rate, cpu := o.Prediction.For(a.WriteConcern)
		if i == 0 {
			first = rate
		}
		t.AppendRow(table.Row{o.Name, rateText(rate, first), percent(cpu), fmt.Sprintf("%.1f ms", o.Prediction.WaitMillis), tidy(o.Prediction.Direct), tidy(o.Prediction.Depth)})
	}
	alignRight(t, 2, 3, 4, 5, 6)
	fmt.Fprintf(b, "%s\nwhy: %s\nthe publication advises: %s\n", t.Render(), a.Why, a.Published)
}

// choiceText is the choice with the commands that make it.
func choiceText(a *topology.Advice) string {
	native := func(way string) string {
		if way == topology.WayEither {
			return "chaining on or off, they are nearly alike"
		}
		return way
	}
	const chain = "millrace topology chaining on --yes"
	hold := "millrace topology hold --write-concern " + a.WriteConcern + " --yes"
	switch {
	case a.Choice == topology.WayPlanned && a.Chaining:
		return fmt.Sprintf("a planned tree (%s); without one %s", hold, native(a.Native))
	case a.Choice == topology.WayPlanned:
		return fmt.Sprintf("a planned tree (%s, %s); without one %s", chain, hold, native(a.Native))
	case a.Choice == topology.WayOff && a.Chaining:
		return a.Choice + " (millrace topology chaining off --yes)"
	case a.Choice == topology.WayOn && !a.Chaining:
		return a.Choice + " (" + chain + ")"
	case a.Choice == topology.WayEither:
		return native(a.Choice)
	}
	return a.Choice + ", as it is"
}
