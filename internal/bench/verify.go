package bench

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// verify measures the comparison of equal data.
func verify(ctx context.Context, b *bench, s scenario) (err error) {
	d := dataset{ycsb(), b.o.Scale.of(1_000_000), 1}
	b.say("%s: starting servers", s.name)
	st, err := b.open(ctx, needs{sourceCacheGB: b.cacheGB(d.bytes()), targetCacheGB: b.cacheGB(d.bytes())})
	if err != nil {
		return err
	}
	defer func() { err = joinClose(err, st) }()
	c := Case{
		Scenario: s.name, Work: "compare " + d.describe() + " that are equal", Ceiling: s.ceiling,
		Unit: "documents", Count: d.docs, Bytes: d.bytes(),
	}
	b.say("%s: loading both sides", s.name)
	for _, side := range []*side{st.source, st.target} {
		if err := side.load(ctx, d, nil); err != nil {
			return err
		}
	}
	both := func(ctx context.Context, d dataset, r reading) error {
		g, ctx := errgroup.WithContext(ctx)
		for _, side := range []*side{st.source, st.target} {
			g.Go(func() error { return readAll(ctx, side, d, r) })
		}
		return g.Wait()
	}
	b.say("%s: finding the best way to read", s.name)
	part := d.part(mostRead)
	way, note, err := choose(ctx, part.docs, readings(d, st.source.Info.Version.AtLeast(4, 4)), func(ctx context.Context, r reading) (time.Duration, error) {
		began := time.Now()
		err := both(ctx, part, r)
		return time.Since(began), err
	})
	if err != nil {
		return err
	}
	c.Notes = append(c.Notes, fmt.Sprintf("reading %d documents of both sides: %s", part.docs, note))
	nothing := func(context.Context) error { return nil }
	args := []string{"verify", "--include", dataDB + ".*", "--output", "json", "--log-level", "warn"}
	return b.compete(ctx, st, c, []contender{
		{
			name: "ceiling", kind: KindCeiling, how: "read, on each side: " + way.String(), prepare: nothing,
			run: func(ctx context.Context, m *meter) error {
				return m.part("read", func() error { return both(ctx, d, way) })
			},
		},
		{
			name: "millrace", kind: KindMillrace, how: b.commandLine(args), prepare: nothing,
			run: func(ctx context.Context, m *meter) error {
				child, err := b.startMillrace(ctx, st, m, args)
				if err != nil {
					return err
				}
				if err := child.wait(); err != nil {
					return err
				}
				m.used(child.cpu())
				return nil
			},
		},
	})
}
