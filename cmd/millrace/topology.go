package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/format"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/topology"
)

// setCommand is one run of a command about a replica set: its flags.
type setCommand struct {
	*app
	uri, output        string
	timeout, interval  time.Duration
	within             time.Duration // the longest time for a change
	plan               topology.PlanOptions
	hypothesis         topology.Hypothesis
	threads, cores     float64
	watch, published   bool
	yes, noNotes, keep bool
	force              bool
	logLevel           string
	logFormat          string
}

const (
	flagURI     = "uri"
	flagMembers = "members"
)

// described gives a command its flags.
func (s *setCommand) described(path string, cmd *cobra.Command, forms ...string) *cobra.Command {
	h, o := &s.hypothesis, &s.plan
	s.app.described(path, cmd, config.Vars{flagURI: &s.uri, "timeout": &s.timeout, "interval": &s.interval,
		"within": &s.within, "watch": &s.watch, "published": &s.published, "yes": &s.yes, "no-notes": &s.noNotes,
		"keep": &s.keep, "force": &s.force, "threads": &s.threads, "cores": &s.cores,
		flagMembers: &h.Members, "voters": &h.Voters, "zones": &h.Zones, "zone-rtt": &h.ZoneMillis,
		"spread-voters": &h.SpreadVoters,
		"policy":        (*string)(&o.Policy), "zone-tag": &o.ZoneTag, "avoid": &o.Avoid, "fan-out": &o.FanOut,
		"primary-fan-out": &o.PrimaryFanOut, "depth": &o.Depth, "spare-voters": &o.Spare, "write-concern": &o.WriteConcern})
	cli.BindOutput(cmd, &s.output, forms...)
	return cmd
}

// onSet is the RunE of a command that observes a replica set.
func (s *setCommand) onSet(do func(context.Context, *topology.Observer, []string) error) func(*cobra.Command,
	[]string) error {
	return func(cmd *cobra.Command, args []string) error {
		uri, err := s.address(flagURI, s.uri, errors.New("no replica set is given"))
		if err != nil {
			return err
		}
		o, err := topology.Open(uri, s.timeout)
		if err != nil {
			return cli.WithCode(cli.ExitUsage, mongo.Wrap(err, "--uri"))
		}
		defer o.Close()
		return do(cmd.Context(), o, args)
	}
}

func longEnough(interval time.Duration) error {
	if interval < 100*time.Millisecond {
		return cli.WithCode(cli.ExitUsage, fmt.Errorf("--interval %s is too short; use 100ms or more", interval))
	}
	return nil
}

func topologyShowCommand(a *app) *cobra.Command {
	s := setCommand{app: a}
	return s.described("topology show", &cobra.Command{
		RunE: s.onSet(func(ctx context.Context, o *topology.Observer, _ []string) error {
			if err := longEnough(s.interval); err != nil {
				return err
			}
			if s.watch {
				return s.watchSet(ctx, o, s.interval)
			}
			return s.showSet(ctx, o)
		}),
	}, "text", "json", "dot", "svg")
}

func (s *setCommand) showSet(ctx context.Context, o *topology.Observer) error {
	set, err := o.Observe(ctx)
	return then(err, func() error { return s.showTree(set, set.Tree(), set, setText(set)) })
}

// watchSet redraws the tree on a terminal, and elsewhere writes one form after the other, JSON as one line each.
func (s *setCommand) watchSet(ctx context.Context, o *topology.Observer, interval time.Duration) error {
	s.Results.Stream = true
	var screen *screen
	if s.output == "text" {
		if screen = s.screen(); screen != nil {
			defer screen.clear()
		}
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		set, err := o.Observe(ctx)
		if ctx.Err() != nil {
			return nil // an interrupt is how a watch ends
		}
		if err := s.showOnce(screen, set, err); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (s *setCommand) showOnce(screen *screen, set *topology.Set, failed error) error {
	var b strings.Builder
	if failed != nil {
		b.WriteString("not seen: " + cli.Plain(failed.Error()) + "\n")
	} else if s.output == "json" {
		return json.NewEncoder(s.Stdout).Encode(set)
	} else if err := drawTree(&b, s.output, set, set.Tree(), setText(set)); err != nil {
		return err
	}
	if screen == nil {
		_, err := io.WriteString(s.Stdout, b.String())
		return err
	}
	screen.draw(func(columns, rows int) []string {
		lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
		for i := range lines {
			lines[i] = cut(lines[i], columns)
		}
		return lines[:min(len(lines), rows)]
	})
	return nil
}

func setText(set *topology.Set) string { return textOf("set", set) }

func (s *setCommand) showTree(set *topology.Set, tree map[string]string, v any, text string) error {
	if s.output == "json" {
		return s.Tell(s.output, v, text)
	}
	return drawTree(s.Stdout, s.output, set, tree, text)
}

func drawTree(w io.Writer, output string, set *topology.Set, tree map[string]string, text string) error {
	switch output {
	case "dot":
		return topology.WriteDOT(w, set, tree)
	case "svg":
		return topology.WriteSVG(w, set, tree)
	}
	_, err := io.WriteString(w, text)
	return err
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

// pingText is the time of a ping from a member to its source.
func pingText(m *topology.Member) string {
	if ms, ok := m.Ping[m.Source]; ok {
		return strconv.FormatFloat(ms, 'f', -1, 64) + " ms"
	}
	return ""
}

func lagText(m *topology.Member, lag float64) string {
	if m.Arbiter || m.State == topology.StatePrimary || !m.Healthy {
		return ""
	}
	return format.Seconds(lag)
}

func ago(now, then time.Time) string {
	if then.IsZero() || !then.Before(now) {
		return ""
	}
	return format.Seconds(now.Sub(then).Seconds())
}

const anyConcern = "any"

func topologyAdviseCommand(a *app) *cobra.Command {
	s := setCommand{app: a}
	advise := func(set *topology.Set) error {
		params, err := s.params()
		if err != nil {
			return err
		}
		return s.showAdvice(set, s.plan.WriteConcern, params)
	}
	live := s.onSet(func(ctx context.Context, o *topology.Observer, _ []string) error {
		set, err := o.Observe(ctx)
		return then(err, func() error { return advise(set) })
	})
	cmd := s.described("topology advise", &cobra.Command{
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed(flagMembers) {
				if err := s.hypothesis.Check(); err != nil {
					return cli.WithCode(cli.ExitUsage, err)
				}
				return advise(topology.Hypothetical(s.hypothesis))
			}
			for _, name := range []string{"voters", "zones", "zone-rtt", "spread-voters"} {
				if cmd.Flags().Changed(name) {
					return misuse(fmt.Errorf("--%s describes a set that need not exist", name), "give --members with it")
				}
			}
			return live(cmd, args)
		},
	}, "text", "json")
	cmd.MarkFlagsMutuallyExclusive(flagURI, flagMembers)
	return cmd
}

func (s *setCommand) showAdvice(set *topology.Set, concern string, p topology.Params) error {
	concerns := []string{concern}
	if concern == anyConcern {
		concerns = []string{"1", topology.Majority}
	}
	if set.Primary() == nil {
		return mongo.WithHint(errors.New("the set has no primary, so there is nothing to advise"), "wait for the election")
	}
	var all []*topology.Advice
	for _, c := range concerns {
		advice, err := topology.Advise(set, c, p)
		if err != nil {
			return err
		}
		all = append(all, advice)
	}
	return s.Tell(s.output, all, textOf("advice", struct {
		Params topology.Params
		All    []*topology.Advice
	}{p, all}))
}
