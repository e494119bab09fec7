package published

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/topology"
	"github.com/millrace/millrace/workshop/bench"
)

// chainRun measures the fifth table: sets with chaining on, off, and planned.
type chainRun struct{}

// The names in the bench's reports.
const (
	benchOff        = "chaining off"
	benchOn         = "chaining on"
	benchPlanned    = "planned"
	benchPrimaryCPU = "primary CPU %"
)

const chainClients = 8 // as published

// chainLink is a round trip between members, and what ends the keys of its ways.
type chainLink struct {
	rtt  time.Duration
	ends string
	ways []string
}

// chainLinks are that of the publication between client and server, and a
// longer one.
func chainLinks() []chainLink {
	return []chainLink{
		{100 * time.Microsecond, "", []string{"on", "off", "planned"}},
		{time.Millisecond, "-far", []string{"on", "off"}},
	}
}

// Measure measures a set of each size.
func (chainRun) Measure(ctx context.Context, o Options, m *Measured) error {
	members := chainSizes()
	m.Sizes = fmt.Sprintf("inserts for some seconds in place of 5,000,000 records; %d clients as published, 0.1 ms between members", chainClients)
	if o.Scale.Name == "tiny" {
		members = members[:1]
		for _, n := range chainSizes()[1:] {
			for _, l := range chainLinks() {
				m.miss("the scale tiny measures sets of 3 members only", l.keys(n)...)
			}
		}
	}
	var all []step
	for _, n := range members {
		for _, l := range chainLinks() {
			all = append(all, step{scenario: "topology", keys: l.keys(n),
				change: func(b *bench.Options) {
					b.Topology = bench.TopologyOptions{Nodes: []int{n}, Clients: chainClients, PrimaryCores: 1, LinkRTTs: []time.Duration{l.rtt}}
				},
				take: func(r *bench.Report) error { return l.take(r, m, n) }})
		}
	}
	return o.steps(ctx, m, all)
}

// column is a way's.
func (l chainLink) column(way string) string { return way + l.ends }

// keys are the figures of the sets of one size.
func (l chainLink) keys(members int) (keys []string) {
	for _, concern := range chainConcerns() {
		k := chainKey(members, concern)
		for _, way := range l.ways {
			keys = append(keys, key(k, l.column(way)), key(k, l.column(way)+"-cpu"))
		}
	}
	return keys
}

func chainConcerns() []string { return []string{topology.Majority, "1"} }

// take reads the cases of both write concerns.
func (l chainLink) take(r *bench.Report, m *Measured, members int) error {
	for _, concern := range chainConcerns() {
		name := fmt.Sprintf("%d-w%s", members, concern)
		i := slices.IndexFunc(r.Cases, func(c bench.Case) bool { return c.Variant == name || strings.HasPrefix(c.Variant, name+"-") })
		if i < 0 {
			return fmt.Errorf("the report has no case %s", name)
		}
		if err := l.takeWays(&r.Cases[i], m, chainKey(members, concern)); err != nil {
			return err
		}
	}
	return nil
}

// takeWays reads the ways of a case.
func (l chainLink) takeWays(c *bench.Case, m *Measured, k string) error {
	names := map[string]string{"off": benchOff, "on": benchOn, "planned": benchPlanned}
	for _, way := range l.ways {
		x, err := contender(c, names[way])
		if err != nil {
			return err
		}
		m.set(key(k, l.column(way)), rates(c, x))
		m.set(key(k, l.column(way)+"-cpu"), rounds(x, func(r bench.Round) float64 { return r.Values[benchPrimaryCPU] }))
	}
	return nil
}
