package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// drainingShards is the experiment of a backlog of a sharded cluster, or for one.
// Each round writes its own: that with the balancer on has the moves' own entries.
type drainingShards struct{ load workload }

func (d drainingShards) run(ctx context.Context, b *bench, s scenario) error {
	d.load.shape, d.load.collections, d.load.operations = ycsb(), 1, b.o.Scale.of(d.load.operations)
	return b.eachPairing(func(p pairing) error {
		w := &shardedIncr{bench: b, pair: p, load: d.load}
		return w.measure(ctx, s)
	})
}

// shardedIncr is a case of such a backlog on its servers.
type shardedIncr struct {
	*bench
	*site
	pair  pairing
	load  workload
	write settings
	done  incrWork // what checks the target
}

func (w *shardedIncr) measure(ctx context.Context, s scenario) error {
	bytes := w.load.operations * w.load.shape.size
	c := Case{
		Scenario: s.name, Variant: w.pair.name(), Work: "apply a backlog of " + w.load.describe() + "; " + w.load.shape.name + ", " + w.pair.describe(),
		Ceiling: s.ceiling, Unit: "operations", Count: w.load.operations, Columns: shardedColumns(),
	}
	n := needs{
		sourceCacheGB: w.cacheGB(2 * bytes), targetCacheGB: w.cacheGB(2 * bytes),
		oplogMB: oplogMB(w.load.operations, w.load.shape.size+200), pairing: w.pair,
	}
	return w.onServers(ctx, s, n, func(st *site) error {
		w.site = st
		w.done = incrWork{bench: w.bench, site: st, load: w.load}
		for changes := range w.load.fold(w.load.ops(), 0) {
			w.done.final = changes
		}
		if err := w.calibrate(ctx, &c); err != nil {
			return err
		}
		return w.competePaired(ctx, st, c, w.contenders())
	})
}

// calibrate finds the best settings of the lean writers.
func (w *shardedIncr) calibrate(ctx context.Context, c *Case) error {
	w.say("%s: finding the best way to apply", c.Name())
	n := trialSize(w.load.operations, 1)
	best, note, err := choose(ctx, n, w.target.grid(), func(ctx context.Context, s settings) (time.Duration, error) {
		if err := w.done.empty(ctx); err != nil {
			return 0, err
		}
		p := newPlan(w.load.fold(limit(w.load.ops(), n), foldWindow), s.connections)
		return w.target.timed(ctx, func() error { return w.load.apply(ctx, w.target, p, s) })
	})
	w.write = best
	c.Notes = append(c.Notes, fmt.Sprintf("applying the first %d operations: %s", n, note))
	return err
}

func (w *shardedIncr) contenders() []contender {
	folded := newPlan(w.load.fold(w.load.ops(), foldWindow), w.write.connections)
	all := []contender{
		w.lean("ceiling", KindCeiling, folded, "apply alone from memory, folded within "+kib(foldWindow)+" of oplog"),
		w.lean("unfolded", KindReference, w.load.unfolded(w.write.connections), "the same, each operation by itself, in order"),
	}
	for _, v := range w.variants() {
		begin := append(w.millraceSync(w.rules()...), v.Args...)
		goOn := append(w.millraceResume(append(w.rules(), "--until", "caught-up")...), v.Args...)
		x := contender{
			name: v.Name, kind: KindMillrace, how: commandLine(goOn) + ", a job that was stopped before the backlog was written", check: w.done.complete,
			run: func(ctx context.Context, m *meter) error { return w.runMillrace(ctx, w.site, m, goOn) },
		}
		for i, x := range balanced(w.site, x) {
			x.prepare = func(ctx context.Context) error { return w.begin(ctx, begin, i == 1) }
			all = append(all, x)
		}
	}
	all = append(all, w.peers(w.peer)...)
	return append(all, besideMoves(w.site, all[0])...) // when the source has something to move
}

// peer is a peer's way to drain the backlog with the balancer off; false when it has
// none. Its way with the balancer on is a change stream of a router, which the lab's
// has not.
func (w *shardedIncr) peer(p Peer) (contender, bool) {
	of := func(from time.Time) (tool, bool) {
		t, drains := p.draining(from)
		if w.source.cluster != nil {
			t = t.with(t.ofShards).with(p.Settings)
		}
		return t, drains
	}
	var from time.Time
	t, drains := of(from)
	if !drains {
		return contender{}, false
	}
	x := contender{name: p.Name + BalancerOff, kind: KindPeer, how: t.describe() + "; until the target has everything", check: w.done.complete}
	x.prepare = func(ctx context.Context) error {
		if err := w.restartFollowing(ctx); err != nil {
			return err
		}
		if err := w.target.create(ctx, 1, nil); err != nil {
			return err
		}
		if !tick(ctx, 2*time.Second) { // it begins at a second, which is to hold nothing from before
			return ctx.Err()
		}
		from = time.Now()
		return w.writeBacklog(ctx, false)
	}
	x.run = func(ctx context.Context, m *meter) error {
		t, _ := of(from)
		return counted(ctx, w.site, m, func() error { return w.done.drainBy(ctx, w.follow(w.site, p, t), m) })
	}
	return x, true
}

// lean applies a plan.
func (w *shardedIncr) lean(name string, kind Kind, p plan, how string) contender {
	return contender{
		name: name, kind: kind, how: fmt.Sprintf("%s%s (%d statements left): %s", how, w.target.through(), p.statements(), w.write),
		prepare: w.done.empty, check: w.done.complete,
		run: func(ctx context.Context, m *meter) error {
			return counted(ctx, w.site, m, func() error {
				_, err := w.target.timed(ctx, func() error { return w.load.apply(ctx, w.target, p, w.write) })
				return err
			})
		},
	}
}

// begin begins a job on an empty collection, stops it, and writes the backlog:
// no position of a sharded cluster can be given on a command line.
func (w *shardedIncr) begin(ctx context.Context, args []string, moving bool) error {
	if err := w.restartFollowing(ctx); err != nil {
		return err
	}
	f := follower{start: func(ctx context.Context, _ *meter) (*child, error) {
		return startChild(ctx, program{name: w.o.Millrace, args: args, env: w.clusterEnv(w.site)})
	}}
	if err := running(ctx, f, &meter{}, w.awaitFollowing); err != nil {
		return err
	}
	return w.writeBacklog(ctx, moving)
}

func (w *shardedIncr) writeBacklog(ctx context.Context, moving bool) error {
	write := func() error {
		_, err := w.load.spread(ctx, w.source, writing{loadConnections, loadChunk, func(context.Context, op) (bool, error) { return true, nil }})
		if err != nil {
			return fmt.Errorf("write the backlog: %w", err)
		}
		return nil
	}
	if moving {
		if err := whileMoving(ctx, w.source, &meter{}, write); err != nil {
			return err
		}
	} else if err := write(); err != nil {
		return err
	}
	return w.source.settle(ctx)
}

// awaitFollowing waits until the job says that it follows: what it does before, it
// does again after a restart.
func (w *shardedIncr) awaitFollowing(ctx context.Context) error {
	for {
		phase, err := w.phase(ctx)
		if phase == "following" || err != nil {
			return err
		}
		if !tick(ctx, 50*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// phase asks the job where it is; empty while it cannot be reached yet.
func (w *shardedIncr) phase(ctx context.Context) (string, error) {
	out, err := os.Create(filepath.Join(w.dir, "status.json"))
	if err != nil {
		return "", fmt.Errorf("ask the job for its phase: %w", err)
	}
	defer out.Close()
	args := []string{"status", "--job", jobName, "--output", "json"}
	c, err := startChild(ctx, program{name: w.o.Millrace, args: args, env: w.clusterEnv(w.site), stdout: out})
	if err != nil {
		return "", err
	}
	if c.wait() != nil {
		return "", nil //nolint:nilerr // it begins
	}
	raw, err := os.ReadFile(out.Name())
	if err != nil {
		return "", fmt.Errorf("ask the job for its phase: %w", err)
	}
	var s struct {
		Phase  string `json:"phase"`
		Status struct {
			Phase string `json:"phase"`
		} `json:"status"`
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", fmt.Errorf("ask the job for its phase: %w", err)
	}
	return cmp.Or(s.Phase, s.Status.Phase), nil
}
