package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/shown"
	"github.com/millrace/millrace/internal/topology"
)

// bindPlan registers the flags that shape a plan.
func bindPlan(fs *pflag.FlagSet, o *topology.PlanOptions) {
	bindLimits(fs, o)
	config.Choice(fs, (*string)(&o.Policy), "policy", string(topology.PolicyBalanced), "`policy`: balanced, latency or fan-out",
		string(topology.PolicyBalanced), string(topology.PolicyLatency), string(topology.PolicyFanOut))
	fs.StringVar(&o.ZoneTag, "zone-tag", "", "`tag` of the members that names their zone; by default zone, az, dc, datacenter, data_center or region, whichever differs")
	fs.StringSliceVar(&o.Avoid, "avoid", nil, "`host`:port of a member that no other is to fetch from; may be repeated")
}

func bindLimits(fs *pflag.FlagSet, o *topology.PlanOptions) {
	fs.IntVar(&o.FanOut, "fan-out", 0, "most members that fetch from one secondary; 0 takes the least that relieves the primary")
	fs.IntVar(&o.PrimaryFanOut, "primary-fan-out", 0, "most members that fetch from the primary, but for those that make the majority; 0 follows from the policy")
	fs.IntVar(&o.Depth, "depth", 0, "most fetches between the primary and a member; 0 follows from the policy: balanced 3, latency 2, fan-out 5")
	fs.IntVar(&o.Spare, "spare-voters", 0, "voters directly under the primary beyond those that writes wait for")
	fs.StringVar(&o.WriteConcern, "write-concern", "", "`concern` of most writes: majority, or how many members they wait for, 1 being the primary alone; by default the plan suits all")
}

// modelSettings are the flags of predictions.
type modelSettings struct {
	threads, cores float64
}

func (m *modelSettings) bind(fs *pflag.FlagSet) {
	fs.Float64Var(&m.threads, "threads", 8, "clients that write at once, for the prediction")
	fs.Float64Var(&m.cores, "cores", 4, "cores of the primary, for the prediction")
}

// params are the fitted ones for the machine and the load that the flags describe.
func (m *modelSettings) params() (topology.Params, error) {
	p := topology.FitPublished()
	if m.threads <= 0 || m.cores <= 0 {
		return p, cli.WithCode(cli.ExitUsage, errors.New("--threads and --cores have to be above zero"))
	}
	p.Threads, p.Cores = m.threads, m.cores
	return p, nil
}

func (a *app) topologyPlanCommand() *cobra.Command {
	var s topologySettings
	var o topology.PlanOptions
	var m modelSettings
	cmd := &cobra.Command{
		Use:   "plan --uri URI",
		Short: "Plan a better tree, and say what it would change",
		Long: `Plans a tree for the set as it is and changes nothing. The voters that make the
majority come directly under the primary, the others under the nearest suitable
secondary, with bounded fan-out and depth. Where writes wait for nobody
(--write-concern 1), one voter alone does. Hidden, delayed and incomplete
members are never sources, and each member has a second choice for the case that
its source is lost.

The prediction is that of a model fitted to published measurements of another
machine. Trust the comparison of its rows, not its absolute figures.`,
		Example: `  millrace topology plan --uri mongodb://a,b,c/?replicaSet=rs
  millrace topology plan --policy latency --fan-out 4 --output json`,
		RunE: a.onSet(&s, func(ctx context.Context, observer *topology.Observer, _ []string) error {
			params, err := m.params()
			if err != nil {
				return err
			}
			set, err := observer.Observe(ctx)
			if err != nil {
				return err
			}
			return a.showPlan(set, o, params, s.output)
		}),
	}
	s.bind(cmd, "text, json, dot or svg", "text", "json", "dot", "svg")
	bindPlan(cmd.Flags(), &o)
	m.bind(cmd.Flags())
	return cmd
}

// showPlan writes a plan for the set with its predicted effect.
func (a *app) showPlan(set *topology.Set, o topology.PlanOptions, p topology.Params, output string) error {
	plan, err := topology.MakePlan(set, o)
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
	fmt.Fprintf(&b, "%s: policy %s, fan-out %d, depth %d, majority of %d\n", cli.Plain(set.Name), plan.Policy, plan.FanOut, plan.Depth, plan.Majority)
	fmt.Fprintln(&b, planTable(set, plan).Render())
	writeLeft(&b, plan)
	fmt.Fprintln(&b, effectTable(effect).Render())
	return a.showTree(output, set, plan.Tree(), struct {
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

// planTable is the planned tree.
func planTable(set *topology.Set, plan *topology.Plan) table.Writer {
	t := newTable("planned", "role", "now under", "second choice", "why")
	for _, l := range topology.Lines(set, plan.Tree()) {
		m, seat := set.Member(l.Host), plan.Seat(l.Host)
		switch {
		case m.Host == plan.Primary:
			t.AppendRow(table.Row{m.Host, role(m), "", "", "primary"})
		case seat != nil && seat.Changed():
			t.AppendRow(table.Row{l.Prefix + m.Host, role(m), cmp.Or(seat.Current, "none") + " → moves", seat.Second, seat.Why})
		case seat != nil:
			t.AppendRow(table.Row{l.Prefix + m.Host, role(m), "stays", seat.Second, seat.Why})
		}
	}
	return t
}

// effectTable compares predictions; throughput is also relative to the first.
func effectTable(outcomes []topology.Outcome) table.Writer {
	t := newTable("predicted", "w:1", "majority", "majority waits", "CPU w:1", "CPU majority", "CPU inner", "under primary", "depth", "fan-out")
	first := outcomes[0].Prediction
	for _, o := range outcomes {
		p := o.Prediction
		t.AppendRow(table.Row{o.Name, rateText(p.W1, first.W1), rateText(p.Majority, first.Majority), fmt.Sprintf("%.1f ms", p.WaitMillis),
			percent(p.CPUW1), percent(p.CPUMajority), percent(p.CPUInner), tidy(p.Direct), tidy(p.Depth), tidy(p.FanOut)})
	}
	alignRight(t, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	return t
}

func rateText(v, first float64) string {
	switch {
	case v == 0:
		return "none"
	case v == first || first == 0:
		return shown.Count(v) + "/s"
	}
	return fmt.Sprintf("%s/s %+.0f %%", shown.Count(v), 100*(v/first-1))
}

func percent(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }

// tidy writes a number without needless decimals.
func tidy(v float64) string { return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") }

func (a *app) topologyWhatIfCommand() *cobra.Command {
	var h topology.Hypothesis
	var o topology.PlanOptions
	var m modelSettings
	var output string
	var published bool
	cmd := &cobra.Command{
		Use:   "what-if",
		Short: "Predict chaining off, on and planned for a set that need not exist",
		Long: `Predicts throughput, load of the primary and depth for a set of 3 to 50 members
in 1 to 3 zones, without any server: chaining off, chaining on (the trees that
members choose themselves, on average), and the plan of each policy.

--published shows how well the model reproduces the measurements it is fitted to.`,
		Example: `  millrace topology what-if --members 15
  millrace topology what-if --members 30 --zones 3 --zone-rtt 40 --fan-out 4
  millrace topology what-if --published`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if published {
				return a.showFit(output)
			}
			params, err := m.params()
			if err != nil {
				return err
			}
			if err := h.Check(); err != nil {
				return cli.WithCode(cli.ExitUsage, err)
			}
			outcomes, err := topology.Compare(topology.Hypothetical(h), o, params)
			if err != nil {
				return cli.WithCode(cli.ExitUsage, err)
			}
			return a.Tell(output, outcomes, effectTable(outcomes).Render()+"\n")
		},
	}
	f := cmd.Flags()
	f.IntVar(&h.Members, flagMembers, 7, "members of the set, 3 to 50")
	bindHypothesis(f, &h)
	f.BoolVar(&published, "published", false, "show the model beside the measurements it is fitted to")
	cli.BindOutput(cmd, &output, "`form` of the result: text or json", "text", "json")
	bindLimits(f, &o)
	m.bind(f)
	return cmd
}

const flagMembers = "members"

// bindHypothesis registers the flags of a set that need not exist, but for the
// number of its members.
func bindHypothesis(f *pflag.FlagSet, h *topology.Hypothesis) {
	f.IntVar(&h.Voters, "voters", 0, "members that vote; 0 is as many as may, up to 7")
	f.IntVar(&h.Zones, "zones", 1, "zones, 1 to 3")
	f.Float64Var(&h.ZoneMillis, "zone-rtt", 20, "round trip between neighbouring zones, in `milliseconds`")
	f.BoolVar(&h.SpreadVoters, "spread-voters", false, "spread the voters over the zones; otherwise the primary's zone has a majority of them")
}

// showFit shows the model beside the table that it is fitted to.
func (a *app) showFit(output string) error {
	p, cells := topology.FitPublished(), topology.PublishedFit()
	t := newTable("members", "write concern", "chaining", "published", "model", "difference", "left out", "CPU, published", "model", "difference", "left out")
	change := func(v float64) string { return fmt.Sprintf("%+.1f %%", 100*v) }
	for _, c := range cells {
		concern := "1"
		if c.Majority {
			concern = topology.Majority
		}
		t.AppendRow(table.Row{c.Members, concern, onOff(c.Chaining), fmt.Sprintf("%.0f/s", c.OpsPerSecond), fmt.Sprintf("%.0f/s", c.Model), change(c.Error), change(c.LeftOutError),
			percent(c.CPU), percent(c.ModelCPU), change(c.CPUError), change(c.LeftOutCPUError)})
	}
	alignRight(t, 1, 4, 5, 6, 7, 8, 9, 10, 11)
	return a.Tell(output, struct {
		Params topology.Params `json:"params"`
		Cells  []topology.Cell `json:"cells"`
	}{p, cells}, fmt.Sprintf(`%s
left out: how far a fit to the other cells is off.
published: %.0f clients, a primary of %.0f cores, %.3f ms between them.
fitted: processor time of the primary for one write: %.0f µs, %.1f µs for each member under it, and %.0f µs for each voting member where
clients wait for a majority; a hop takes %.2f ms; members that choose take the primary %.2f times as often as any other.
measured, not published: a secondary takes %.0f µs to apply a write.
`, t.Render(), p.Threads, p.Cores, p.ClientMillis, p.WriteCPU, p.ServeCPU, p.FollowCPU, p.HopMillis, p.PrimaryWeight, p.ApplyCPU))
}
