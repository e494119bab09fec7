package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

const (
	threeShards = "sharded:3x1"
	twoShards   = "sharded:2x1"
	oneMember   = "rs:1"
)

type pairing struct{ source, target string }

func (p pairing) name() string { return strings.ReplaceAll(p.source+"-to-"+p.target, ":", "") }

func (p pairing) describe() string {
	return p.source + " to " + p.target + ", sharded by {_id: \"hashed\"} where there are shards"
}

// pairings are those that the options name, or all three.
func (b *bench) pairings() ([]pairing, error) {
	s := b.o.Servers
	if s.given() {
		return nil, mongo.WithHint(errors.New("this measurement moves chunks and counts at the lab's routers"),
			"run it without --source-uri and --target-uri")
	}
	if s.SourceTopology == "" && s.TargetTopology == "" {
		return []pairing{{threeShards, oneMember}, {oneMember, twoShards}, {threeShards, twoShards}}, nil
	}
	return []pairing{{cmp.Or(s.SourceTopology, threeShards), cmp.Or(s.TargetTopology, twoShards)}}, nil
}

// rules returns arguments of a sync that shard the collection: a replica set does not say how.
func (st *site) rules() []string {
	if st.source.cluster != nil || st.target.cluster == nil {
		return nil
	}
	return []string{"--shard", dataDB + "." + collection(0) + "=_id:hashed"}
}

// shardedColumns are the table's: what each router of the target took, and the effect of the balancer.
func shardedColumns() []string {
	return []string{"time", "min-max", "of ceiling", "rate", RouterRate(1), RouterRate(2), routersTotal, ofBalancerOff,
		movesEach, "CPU tool", "source", "target", routersCPU, "us each", "peak"}
}

// ofBalancerOff is the rate with the balancer on as a part of that without, round by round.
const ofBalancerOff = "of balancer off"

// What the names of contenders end in that run beside moving chunks, or without them.
const (
	BalancerOff = ", balancer off"
	BalancerOn  = ", balancer on"
)

// competePaired runs all contenders, and compares those with the balancer on with the same ones without.
func (b *bench) competePaired(ctx context.Context, st *site, c Case, all []contender) error {
	err := b.compete(ctx, st, c, all)
	done := &b.report.Cases[len(b.report.Cases)-1]
	for i := range done.Contenders {
		on := &done.Contenders[i]
		name, ok := strings.CutSuffix(on.Name, BalancerOn)
		at := slices.IndexFunc(done.Contenders,
			func(x Contender) bool { return x.Name == name+BalancerOff || x.Name == name })
		if !ok || at < 0 {
			continue
		}
		off := done.Contenders[at]
		for r := range min(len(on.Rounds), len(off.Rounds)) {
			put(&on.Rounds[r].Values, ofBalancerOff, per(on.Rounds[r].Rate(done.Count), off.Rounds[r].Rate(done.Count)))
		}
	}
	done.summarize()
	return err
}

// copyingShards is the experiment of a copy from sharded clusters and to them.
type copyingShards struct{ docs int }

func (f copyingShards) run(ctx context.Context, b *bench, s scenario) error {
	return b.eachPairing(func(p pairing) error {
		w := &shardedFull{fullWork{bench: b, data: dataset{ycsb(), b.o.Scale.of(f.docs), 1}}, p}
		return w.measure(ctx, s)
	})
}

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

type shardedFull struct {
	fullWork
	pair pairing
}

func (w *shardedFull) measure(ctx context.Context, s scenario) error {
	c := Case{
		Scenario: s.name, Variant: w.pair.name(), Work: "copy " + w.data.describe() + ", " + w.pair.describe(),
		Ceiling: s.ceiling,
		Unit:    "documents", Count: w.data.docs, Bytes: w.data.bytes(), Columns: shardedColumns(),
	}
	n := needs{sourceCacheGB: w.cacheGB(w.data.bytes()), targetCacheGB: w.cacheGB(w.data.bytes()), pairing: w.pair}
	return w.onServers(ctx, s, n, func(st *site) (err error) {
		w.site = st
		w.say("%s: loading %s", c.Name(), w.data.describe())
		if err := st.source.load(ctx, w.data, nil); err != nil {
			return err
		}
		if err := w.bestInsert(ctx, &c, 1, w.target.grid()); err != nil {
			return err
		}
		return w.competePaired(ctx, st, c, w.contenders())
	})
}

// grid returns the settings to try. Behind a router each write waits for a majority: nothing proves it later.
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

func (w *shardedFull) contenders() []contender {
	all := []contender{{
		name: "ceiling", kind: KindCeiling, how: "insert alone from memory" + w.target.through() + ": " + w.write.String(),
		prepare: func(ctx context.Context) error { return w.target.remake(ctx, 1, nil) }, check: w.complete,
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

// besideMoves is the ceiling while chunks move on the source: what moves take of the shared machine.
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

// balanced is a contender without moving chunks and, from a sharded source, one with them.
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

// drainingShards drains a backlog of a sharded cluster, or for one. Each round writes its own backlog.
type drainingShards struct{ load workload }

func (d drainingShards) run(ctx context.Context, b *bench, s scenario) error {
	d.load.shape, d.load.collections, d.load.operations = ycsb(), 1, b.o.Scale.of(d.load.operations)
	return b.eachPairing(func(p pairing) error {
		w := &shardedIncr{incrWork{bench: b, load: d.load}, p}
		return w.measure(ctx, s)
	})
}

type shardedIncr struct {
	incrWork
	pair pairing
}

func (w *shardedIncr) measure(ctx context.Context, s scenario) error {
	bytes := w.load.operations * w.load.shape.size
	c := Case{
		Scenario: s.name, Variant: w.pair.name(), Work: "apply a backlog of " + w.load.describe() + "; " + w.load.shape.name +
			", " + w.pair.describe(),
		Ceiling: s.ceiling, Unit: "operations", Count: w.load.operations, Columns: shardedColumns(),
	}
	n := needs{
		sourceCacheGB: w.cacheGB(2 * bytes), targetCacheGB: w.cacheGB(2 * bytes),
		oplogMB: oplogMB(w.load.operations, w.load.shape.size+200), pairing: w.pair,
	}
	return w.onServers(ctx, s, n, func(st *site) error {
		w.site = st
		w.foldAll()
		w.say("%s: finding the best way to apply", c.Name())
		if err := w.bestApply(ctx, &c, 1, w.target.grid()); err != nil {
			return err
		}
		return w.competePaired(ctx, st, c, w.contenders())
	})
}

func (w *shardedIncr) contenders() []contender {
	folded := newPlan(w.load.fold(w.load.ops(), foldWindow), w.write.connections)
	all := []contender{
		w.lean("ceiling", KindCeiling, folded, "apply alone from memory, folded within "+kib(foldWindow)+" of oplog"),
		w.lean("unfolded", KindReference, w.load.unfolded(w.write.connections),
			"the same, each operation by itself, in order"),
	}
	for _, v := range w.variants() {
		begin := append(w.millraceSync(w.rules()...), v.Args...)
		goOn := append(w.millraceResume(append(w.rules(), "--until", "caught-up")...), v.Args...)
		x := contender{
			name: v.Name, kind: KindMillrace, how: commandLine(goOn) + ", a job that was stopped before the backlog was written",
			check: w.complete,
			run:   func(ctx context.Context, m *meter) error { return w.runMillrace(ctx, w.site, m, goOn) },
		}
		for i, x := range balanced(w.site, x) {
			x.prepare = func(ctx context.Context) error { return w.beginJob(ctx, begin, i == 1) }
			all = append(all, x)
		}
	}
	all = append(all, w.peers(w.peer)...)
	return append(all, besideMoves(w.site, all[0])...) // when the source has something to move
}

// peer is a peer's way to drain the backlog with the balancer off, if any. With the balancer on it would take a
// change stream of a router, which the lab's router has not.
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
	x := contender{name: p.Name + BalancerOff, kind: KindPeer, how: t.describe() + "; until the target has everything",
		check: w.complete}
	x.prepare = func(ctx context.Context) error {
		if err := w.restartFollowing(ctx, 1); err != nil {
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
		return counted(ctx, w.site, m, func() error { return w.drainBy(ctx, w.follow(w.site, p, t), m) })
	}
	return x, true
}

func (w *shardedIncr) lean(name string, kind Kind, p plan, how string) contender {
	return contender{
		name: name, kind: kind, how: fmt.Sprintf("%s%s (%d statements left): %s", how, w.target.through(), p.statements(),
			w.write),
		prepare: w.empty, check: w.complete,
		run: func(ctx context.Context, m *meter) error {
			return counted(ctx, w.site, m, func() error {
				_, err := w.target.timed(ctx, func() error { return w.load.apply(ctx, w.target, p, w.write) })
				return err
			})
		},
	}
}

// beginJob begins a job, stops it, and writes the backlog: --start-at takes no position of a sharded cluster.
func (w *shardedIncr) beginJob(ctx context.Context, args []string, moving bool) error {
	if err := w.restartFollowing(ctx, 1); err != nil {
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
		_, err := w.load.spread(ctx, w.source,
			writing{loadConnections, loadChunk, func(context.Context, op) (bool, error) { return true, nil }})
		return mongo.Wrap(err, "write the backlog")
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

// awaitFollowing waits until the job says that it follows: what it does before, it does again after a restart.
func (w *shardedIncr) awaitFollowing(ctx context.Context) error {
	return await(ctx, 50*time.Millisecond, func() (bool, error) {
		phase, err := w.phase(ctx)
		return phase == "following", err
	})
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
	var s struct {
		Phase  string `json:"phase"`
		Status struct {
			Phase string `json:"phase"`
		} `json:"status"`
	}
	err = readJSON(out.Name(), "the phase of the job", &s)
	return cmp.Or(s.Phase, s.Status.Phase), err
}

const (
	movesEach = "chunks moved"
	// moveEvery is the least time between moves: else servers copy all data several times.
	moveEvery = time.Second
)

// moves moves chunks of a collection from shard to shard until stop, one after the other.
type moves struct {
	cluster *sharded.Cluster
	quit    chan struct{}
	wg      sync.WaitGroup
	done    int
	err     error
}

// startMoves turns the balancer on and moves chunks by force besides.
func startMoves(ctx context.Context, of *side) (*moves, error) {
	if err := of.cluster.Balancer(ctx, true); err != nil {
		return nil, err
	}
	m := &moves{cluster: of.cluster, quit: make(chan struct{})}
	m.wg.Go(func() { m.err = m.run(context.WithoutCancel(ctx)) })
	return m, nil
}

// whileMoving does something while chunks move, and notes how many. The end of the last move does not count.
func whileMoving(ctx context.Context, of *side, m *meter, do func() error) error {
	moving, err := startMoves(ctx, of)
	if err != nil {
		return err
	}
	began := time.Now()
	err = do()
	took := time.Since(began).Seconds()
	if err := errors.Join(err, moving.stop(ctx)); err != nil {
		return err
	}
	m.value(movesEach, float64(moving.done))
	m.set(func(r *Round) { r.Seconds = took })
	return nil
}

// stop waits until the move under way has ended, and turns the balancer off.
func (m *moves) stop(ctx context.Context) error {
	close(m.quit)
	m.wg.Wait()
	return errors.Join(m.err, m.cluster.Balancer(context.WithoutCancel(ctx), false))
}

func (m *moves) run(ctx context.Context) error {
	random := rand.New(rand.NewPCG(3, 5))
	names := m.cluster.ShardNames()
	ns := dataDB + "." + collection(0)
	for {
		began := time.Now()
		chunks, err := m.cluster.Chunks(ctx, ns)
		if err != nil {
			return err
		}
		chunk, to := chunks[random.IntN(len(chunks))], names[random.IntN(len(names))]
		if chunk.Shard == to {
			continue
		}
		err = m.cluster.MoveChunk(ctx, ns, chunk.Min, to)
		if _, refused := errors.AsType[driver.CommandError](err); err != nil && !refused { // by the balancer's own, say
			return err
		} else if err == nil {
			m.done++
		}
		select {
		case <-m.quit:
			return nil
		case <-time.After(time.Until(began.Add(moveEvery))):
		}
	}
}
