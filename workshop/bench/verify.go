package bench

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// comparing is the experiment of two equal sides that are compared.
type comparing struct{ docs int }

func (v comparing) run(ctx context.Context, b *bench, s scenario) error {
	d := dataset{ycsb(), b.o.Scale.of(v.docs), 1}
	c := Case{
		Scenario: s.name, Work: "compare " + d.describe() + " that are equal", Ceiling: s.ceiling,
		Unit: "documents", Count: d.docs, Bytes: d.bytes(),
	}
	n := needs{sourceCacheGB: b.cacheGB(d.bytes()), targetCacheGB: b.cacheGB(d.bytes())}
	return b.onServers(ctx, s, n, func(st *site) error {
		b.say("%s: loading both sides", s.name)
		for _, side := range []*side{st.source, st.target} {
			if err := side.load(ctx, d, nil); err != nil {
				return err
			}
		}
		way, err := b.bestReading(ctx, &c, "reading %d documents of both sides: %s", d, st.source, st.target)
		if err != nil {
			return err
		}
		nothing := func(context.Context) error { return nil }
		args := []string{"verify", "--include", dataDB + ".*", "--output", "json", "--log-level", "warn"}
		return b.compete(ctx, st, c, []contender{
			{
				name: "ceiling", kind: KindCeiling, how: "read, on each side: " + way.String(), prepare: nothing,
				run: func(ctx context.Context, m *meter) error {
					return m.part("read", func() error { return readEach(ctx, d, way, st.source, st.target) })
				},
			},
			{
				name: "millrace", kind: KindMillrace, how: commandLine(args), prepare: nothing,
				run: func(ctx context.Context, m *meter) error {
					return toEnd(ctx, m, program{name: b.o.Millrace, args: args, env: b.clusterEnv(st)})
				},
			},
		})
	})
}

// readEach reads a dataset of several clusters at the same time.
func readEach(ctx context.Context, d dataset, r reading, from ...*side) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, side := range from {
		g.Go(func() error { return readAll(ctx, side, d, r) })
	}
	return g.Wait()
}

// bestReading finds how clusters are read fastest; note is a format for how much
// was read and what was tried.
func (b *bench) bestReading(ctx context.Context, c *Case, note string, d dataset, from ...*side) (reading, error) {
	b.say("%s: finding the best way to read", c.Name())
	part := d.part(mostRead)
	r, tried, err := choose(ctx, part.docs, readings(d, from[0].Info.Version.AtLeast(4, 4)), func(ctx context.Context, r reading) (time.Duration, error) {
		began := time.Now()
		err := readEach(ctx, part, r, from...)
		return time.Since(began), err
	})
	if err == nil {
		c.Notes = append(c.Notes, fmt.Sprintf(note, part.docs, tried))
	}
	return r, err
}
