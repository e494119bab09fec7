package bench

import (
	"context"
	"time"
)

const coreShare = "% of a core: "

// idle measures what following costs while nothing happens.
func idle(ctx context.Context, b *bench, s scenario) (err error) {
	st, c, err := b.openFollowed(ctx, s, "nothing for "+b.o.Scale.Duration.String(), 990)
	if err != nil {
		return err
	}
	defer func() { err = joinClose(err, st) }()
	rest := func(ctx context.Context, m *meter) error {
		err := m.during(ctx, st, func() error {
			tick(ctx, b.o.Scale.Duration)
			return ctx.Err()
		})
		if err == nil {
			m.value(coreShare+"tool", m.round.ToolCPU/m.round.Seconds*100)
			m.value(coreShare+"source", m.source.cpu/m.round.Seconds*100)
			m.value(coreShare+"target", m.target.cpu/m.round.Seconds*100)
		}
		return err
	}
	all := []contender{{name: "ceiling", kind: KindCeiling, how: "no follower; the bench asks the target for its state twice a second",
		prepare: func(ctx context.Context) error { return st.restartFollowing(ctx) }, run: rest}}
	for _, f := range b.followers(st) {
		all = append(all, contender{
			name: f.name, kind: f.kind, how: f.how, prepare: func(ctx context.Context) error { return st.restartFollowing(ctx) },
			run: func(ctx context.Context, m *meter) error {
				return following(ctx, st, f, m, func(ctx context.Context) error {
					const settle = 2 * time.Second // after what had to be done at the beginning
					if !tick(ctx, settle) {
						return context.Cause(ctx)
					}
					return rest(ctx, m)
				})
			},
		})
	}
	return b.compete(ctx, st, c, all)
}

// openFollowed starts servers for scenarios that go on for a time.
func (b *bench) openFollowed(ctx context.Context, s scenario, work string, oplog int) (*site, Case, error) {
	c := Case{Scenario: s.name, Work: work, Ceiling: s.ceiling, Unit: "operations"}
	b.say("%s: starting servers", s.name)
	st, err := b.open(ctx, needs{sourceCacheGB: 2, targetCacheGB: 2, oplogMB: oplog})
	return st, c, err
}

// restartFollowing makes both sides as they are before a tool begins: the
// collection is there and empty.
func (st *site) restartFollowing(ctx context.Context) error {
	if err := st.source.clear(ctx); err != nil {
		return err
	}
	if err := st.source.create(ctx, 1, nil); err != nil {
		return err
	}
	return st.target.clear(ctx)
}
