package published

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/bench"
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

const (
	chainClients = 8
	// chainRTT is that of the publication between client and server.
	chainRTT = 100 * time.Microsecond
)

// Measure measures a set of each size.
func (d chainRun) Measure(ctx context.Context, o Options, m *Measured) error {
	members := []int{3, 7, 15}
	m.Sizes = fmt.Sprintf("inserts for some seconds in place of 5,000,000 records; %d clients as published, %s between members", chainClients, chainRTT)
	if o.Scale.Name == "tiny" {
		members = members[:1]
		for _, n := range []int{7, 15} {
			m.miss("the scale tiny measures sets of 3 members only", d.keys(n)...)
		}
	}
	var all []step
	for _, n := range members {
		all = append(all, step{scenario: "topology", keys: d.keys(n),
			change: func(b *bench.Options) {
				b.Topology = bench.TopologyOptions{Nodes: []int{n}, Clients: chainClients, PrimaryCores: 1, LinkRTT: chainRTT}
			},
			take: func(r *bench.Report) error { return d.take(r, m, n) }})
	}
	return o.steps(ctx, m, all)
}

// keys are the figures of the sets of one size.
func (chainRun) keys(members int) (keys []string) {
	for _, concern := range []string{"majority", "1"} {
		k := chainKey(members, concern)
		for _, way := range []string{"on", "off", "planned"} {
			keys = append(keys, key(k, way), key(k, way+"-cpu"))
		}
	}
	return keys
}

// take reads the cases of both write concerns.
func (d chainRun) take(r *bench.Report, m *Measured, members int) error {
	for i := range r.Cases {
		c := &r.Cases[i]
		for _, concern := range []string{"majority", "1"} {
			if c.Variant != fmt.Sprintf("%d-w%s", members, concern) {
				continue
			}
			if err := d.ways(c, m, chainKey(members, concern)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (chainRun) ways(c *bench.Case, m *Measured, k string) error {
	for name, way := range map[string]string{benchOff: "off", benchOn: "on", benchPlanned: "planned"} {
		x, err := contender(c, name)
		if err != nil {
			return err
		}
		m.set(key(k, way), rates(c, x))
		m.set(key(k, way+"-cpu"), rounds(x, func(r bench.Round) float64 { return r.Values[benchPrimaryCPU] }))
	}
	return nil
}
