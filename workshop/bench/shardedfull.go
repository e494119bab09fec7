package bench

import (
	"context"
	"fmt"
	"time"
)

// copyingShards is the experiment of a copy from sharded clusters and to them.
type copyingShards struct{ docs int }

func (f copyingShards) run(ctx context.Context, b *bench, s scenario) error {
	return b.eachPairing(func(p pairing) error {
		w := &shardedFull{bench: b, pair: p, data: dataset{ycsb(), b.o.Scale.of(f.docs), 1}}
		return w.measure(ctx, s)
	})
}

// eachPairing measures one after the other.
func (b *bench) eachPairing(measure func(pairing) error) error {
	all, err := b.pairings()
	if err != nil {
		return err
	}
	for _, p := range all {
		if err := measure(p); err != nil {
			return err
		}
	}
	return nil
}

// shardedFull is a case of such a copy on its servers.
type shardedFull struct {
	*bench
	*site
	pair  pairing
	data  dataset
	write settings
}

func (w *shardedFull) measure(ctx context.Context, s scenario) error {
	c := Case{
		Scenario: s.name, Variant: w.pair.name(), Work: "copy " + w.data.describe() + ", " + w.pair.describe(), Ceiling: s.ceiling,
		Unit: "documents", Count: w.data.docs, Bytes: w.data.bytes(), Columns: shardedColumns(),
	}
	n := needs{sourceCacheGB: w.cacheGB(w.data.bytes()), targetCacheGB: w.cacheGB(w.data.bytes()), pairing: w.pair}
	return w.onServers(ctx, s, n, func(st *site) (err error) {
		w.site = st
		w.say("%s: loading %s", c.Name(), w.data.describe())
		if err := st.source.load(ctx, w.data, nil); err != nil {
			return err
		}
		if err := w.calibrate(ctx, &c); err != nil {
			return err
		}
		return w.competePaired(ctx, st, c, w.contenders())
	})
}

// calibrate finds the best settings of the lean writers.
func (w *shardedFull) calibrate(ctx context.Context, c *Case) error {
	w.say("%s: finding the best way to insert", c.Name())
	part := w.data.part(trialSize(w.data.docs, 1))
	best, note, err := choose(ctx, part.docs, w.target.grid(), func(ctx context.Context, s settings) (time.Duration, error) {
		if err := w.empty(ctx); err != nil {
			return 0, err
		}
		return w.target.timed(ctx, func() error { return insert(ctx, w.target, dataDB, part, s) })
	})
	w.write = best
	c.Notes = append(c.Notes, fmt.Sprintf("inserting, %d documents: %s", part.docs, note))
	return err
}

// grid is what is tried of settings of lean writers. Behind a router each write has
// to wait for a majority: nobody could prove later that it has it.
func (s *side) grid() []settings {
	all := grid([]int{4, 8, 16}, []int{128 << 10, 1 << 20})
	for i := range all {
		all[i].majority = s.cluster != nil
	}
	return all
}

// timed is how long something takes until a majority has it.
func (s *side) timed(ctx context.Context, do func() error) (time.Duration, error) {
	began := time.Now()
	err := do()
	if err == nil {
		err = s.majority(ctx)
	}
	return time.Since(began), err
}

func (w *shardedFull) empty(ctx context.Context) error {
	if err := w.target.clear(ctx); err != nil {
		return err
	}
	return w.target.create(ctx, w.data.collections, nil)
}

func (w *shardedFull) contenders() []contender {
	all := []contender{{
		name: "ceiling", kind: KindCeiling, how: "insert alone from memory" + w.target.through() + ": " + w.write.String(),
		prepare: w.empty, check: w.complete,
		run: func(ctx context.Context, m *meter) error {
			return counted(ctx, w.site, m, func() error {
				_, err := w.target.timed(ctx, func() error { return insert(ctx, w.target, dataDB, w.data, w.write) })
				return err
			})
		},
	}}
	for _, x := range w.syncs(w.site, w.target.clear, w.complete, append(w.rules(), "--until", "caught-up")...) {
		all = append(all, balanced(w.site, x)...)
	}
	return append(all, besideMoves(w.site, all[0])...)
}

// besideMoves is what lean writers get while chunks move on the source, of which they
// read nothing: what the moves take of a machine that the servers share.
func besideMoves(st *site, ceiling contender) []contender {
	if st.source.cluster == nil {
		return nil
	}
	x := ceiling
	x.name, x.kind, x.how = x.name+BalancerOn, KindReference, "the same while chunks move on the source"
	x.run = func(ctx context.Context, m *meter) error {
		return whileMoving(ctx, st.source, m, func() error { return ceiling.run(ctx, m) })
	}
	return []contender{x}
}

// through says how lean writers reach a cluster.
func (s *side) through() string {
	if s.cluster == nil {
		return ""
	}
	return ", connections spread evenly over the routers"
}

func (w *shardedFull) complete(ctx context.Context) error {
	return w.target.holds(ctx, "the target", w.data)
}

// balanced are a contender without chunks that move, and from a sharded source the
// same with chunks that move all the while. Both count at the target's routers.
func balanced(st *site, x contender) []contender {
	off, on := x, x
	off.run = func(ctx context.Context, m *meter) error {
		return counted(ctx, st, m, func() error { return x.run(ctx, m) })
	}
	if st.source.cluster == nil {
		return []contender{off}
	}
	off.name, on.name = x.name+BalancerOff, x.name+BalancerOn
	on.how += "; the balancer on, and chunks moved by force, one each " + moveEvery.String() + " at most"
	on.run = func(ctx context.Context, m *meter) error {
		return whileMoving(ctx, st.source, m, func() error { return off.run(ctx, m) })
	}
	return []contender{off, on}
}
