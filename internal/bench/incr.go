package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// foldWindow is how much of the oplog the ceiling folds together: about what a
// tool of bounded memory can have in its hands at once.
const foldWindow = 64 << 20

// incrCase is a backlog that has to be drained.
type incrCase struct {
	variant string
	load    workload
	indexes []index
}

func incrBacklog(ctx context.Context, b *bench, s scenario) error {
	return b.incr(ctx, s, incrCase{load: workload{shape: ycsb(), collections: 1, operations: b.o.Scale.of(1_000_000), inserts: 0.7}})
}

func incrSmall(ctx context.Context, b *bench, s scenario) error {
	return b.incr(ctx, s, incrCase{load: workload{shape: small(), collections: 10, operations: b.o.Scale.of(2_000_000), inserts: 0.5, deletes: 0.1}})
}

func incrHot(ctx context.Context, b *bench, s scenario) error {
	return b.incr(ctx, s, incrCase{load: workload{shape: ycsb(), collections: 1, operations: b.o.Scale.of(1_000_000), hot: 10}})
}

func incrUnique(ctx context.Context, b *bench, s scenario) error {
	load := workload{shape: unique(), collections: 1, operations: b.o.Scale.of(500_000), inserts: 0.7}
	if err := b.incr(ctx, s, incrCase{variant: "with", load: load, indexes: []index{{"serial", true}, {"email", true}}}); err != nil {
		return err
	}
	return b.incr(ctx, s, incrCase{variant: "without", load: load})
}

// incrWork is an incrCase on its servers.
type incrWork struct {
	*bench
	*site
	incrCase
	span  span
	read  oplogReading
	write settings
	final []change // everything folded together
	// behind keeps the files of a secondary from before the backlog.
	behind string
}

// incr measures how fast a backlog is drained.
func (b *bench) incr(ctx context.Context, s scenario, f incrCase) (err error) {
	bytes := f.load.operations * f.load.shape.size
	n := needs{
		sourceCacheGB: b.cacheGB(2 * bytes), targetCacheGB: b.cacheGB(2 * bytes),
		oplogMB: oplogMB(f.load.operations, f.load.shape.size+200), member: b.hasPeer(peerSecondary),
	}
	b.say("%s: starting servers", s.name)
	st, err := b.open(ctx, n)
	if err != nil {
		return err
	}
	defer func() { err = joinClose(err, st) }()
	c := Case{
		Scenario: s.name, Variant: f.variant, Work: "apply a backlog of " + f.load.describe() + "; " + f.load.shape.name,
		Ceiling: s.ceiling, Unit: "operations", Count: f.load.operations,
	}
	if f.load.collections > 1 {
		c.Work += "; " + itoa(f.load.collections) + " collections"
	}
	w := &incrWork{bench: b, site: st, incrCase: f}
	if err := w.begin(ctx, &c); err != nil {
		return err
	}
	if err := w.calibrate(ctx, &c); err != nil {
		return err
	}
	return b.compete(ctx, st, c, w.contenders())
}

// begin writes the backlog.
func (w *incrWork) begin(ctx context.Context, c *Case) (err error) {
	if err := w.source.clear(ctx); err != nil {
		return err
	}
	if err := w.source.create(ctx, w.load.collections, w.indexes); err != nil {
		return err
	}
	if w.hasPeer(peerSecondary) {
		w.behind = filepath.Join(w.dir, "behind-"+c.Variant)
		if err := os.CopyFS(w.behind, os.DirFS(w.source.spare().DBPath)); err != nil {
			return fmt.Errorf("keep the secondary's files: %w", err)
		}
	}
	w.bench.say("%s: writing %s", c.Name(), w.load.describe())
	if w.span, err = w.load.write(ctx, w.source); err != nil {
		return err
	}
	for changes := range w.load.fold(w.load.ops(), 0) {
		w.final = changes
	}
	return w.source.settle(ctx)
}

// calibrate finds the best settings of the ceilings.
func (w *incrWork) calibrate(ctx context.Context, c *Case) (err error) {
	w.bench.say("%s: finding the best ways to read and to apply", c.Name())
	var note string
	part := w.span.head(float64(mostRead) / float64(w.load.operations))
	w.read, note, err = choose(ctx, w.load.operations, oplogReadings(), func(ctx context.Context, r oplogReading) (time.Duration, error) {
		began := time.Now()
		_, err := readOplog(ctx, w.source, part, r)
		return time.Since(began), err
	})
	if err != nil {
		return err
	}
	c.Notes = append(c.Notes, fmt.Sprintf("reading the oplog of about %d operations: %s", min(w.load.operations, mostRead), note))
	n := trialSize(w.load.operations)
	w.write, note, err = choose(ctx, n, grid([]int{2, 4, 8, 16}, []int{128 << 10, 512 << 10, 2 << 20}), func(ctx context.Context, s settings) (time.Duration, error) {
		if err := w.empty(ctx); err != nil {
			return 0, err
		}
		p := newPlan(w.load.fold(limit(w.load.ops(), n), foldWindow), s.connections)
		began := time.Now()
		err := w.load.apply(ctx, w.target, p, s.batchBytes)
		return time.Since(began), err
	})
	c.Notes = append(c.Notes, fmt.Sprintf("applying the first %d operations: %s", n, note))
	return err
}

// readOplog reads the backlog and fails unless it is all there.
func (w *incrWork) readOplog(ctx context.Context, r oplogReading) error {
	n, err := readOplog(ctx, w.source, w.span, r)
	if err == nil && n < int64(w.load.operations) {
		err = fmt.Errorf("the oplog has %d entries for %d operations", n, w.load.operations)
	}
	return err
}

// empty makes the target as the source was before the backlog.
func (w *incrWork) empty(ctx context.Context) error {
	if err := w.target.clear(ctx); err != nil {
		return err
	}
	return w.target.create(ctx, w.load.collections, w.indexes)
}

func (w *incrWork) contenders() []contender {
	folded := newPlan(w.load.fold(w.load.ops(), foldWindow), w.write.connections)
	all := []contender{
		w.ceiling("ceiling", KindCeiling, folded,
			"read the oplog: "+w.read.String()+"; apply, folded within "+kib(foldWindow)+" of oplog"),
		w.ceiling("all folded", KindReference, newPlan(w.load.fold(w.load.ops(), 0), w.write.connections),
			"the same, everything folded together as with boundless memory"),
		w.ceiling("unfolded", KindReference, w.load.unfolded(w.write.connections),
			"the same, each operation by itself, in order"),
	}
	all = append(all, w.follow())
	for _, p := range w.o.Peers {
		if x, ok := w.peer(p); ok {
			all = append(all, x)
		}
	}
	return all
}

// ceiling reads the oplog and applies a plan, one after the other.
func (w *incrWork) ceiling(name string, kind Kind, p plan, how string) contender {
	return contender{
		name: name, kind: kind, how: fmt.Sprintf("%s (%d statements left): %s", how, p.statements(), w.write),
		prepare: w.empty,
		run: func(ctx context.Context, m *meter) error {
			if err := m.part("read", func() error { return w.readOplog(ctx, w.read) }); err != nil {
				return err
			}
			return m.part("apply", func() error { return w.load.apply(ctx, w.target, p, w.write.batchBytes) })
		},
		check: w.complete,
	}
}

// follow is millrace.
func (w *incrWork) follow() contender {
	args := w.millraceSync("--mode", "incremental", "--start-at", w.span.from.String(), "--until", "caught-up")
	return contender{
		name: "millrace", kind: KindMillrace, how: w.commandLine(args),
		prepare: w.empty,
		run:     func(ctx context.Context, m *meter) error { return w.runMillrace(ctx, w.site, m, args) },
		check:   w.complete,
	}
}

// peer is a peer's way to drain a backlog; false when it has none.
func (w *incrWork) peer(p Peer) (contender, bool) {
	switch p.Name {
	case peerSecondary:
		return w.catchUp(), true
	case peerMongoShake:
		f := w.mongoShake(w.site, p, mongoShakeTime(w.span.from.Time().Add(time.Second)))
		return contender{
			name: p.Name, kind: KindPeer, how: f.how + "; until the target has everything",
			prepare: w.empty, check: w.complete,
			run: func(ctx context.Context, m *meter) error { return w.drainBy(ctx, f, m) },
		}, true
	}
	return contender{}, false
}

// drainBy has a follower drain the backlog and stops the clock when everything
// is there: a marker that came after it, the right number of documents, and in
// those that are looked at what they should hold. A tool of several workers may
// bring the marker first.
func (w *incrWork) drainBy(ctx context.Context, f follower, m *meter) error {
	began := time.Now()
	return running(ctx, f, m, func(ctx context.Context) error {
		mark := bson.NewObjectID()
		if err := setMarker(ctx, w.source, mark); err != nil {
			return err
		}
		err := awaitAll(ctx, func(ctx context.Context) (bool, int64, error) {
			n, err := w.target.count(ctx, w.load.collections)
			if err != nil || n != int64(len(w.final)) {
				return false, n, err
			}
			marked, err := hasMarker(ctx, w.target, mark)
			return marked && w.complete(ctx) == nil, n, err
		})
		m.took(time.Since(began).Seconds())
		m.used(processCPU(m.processes()))
		return err
	})
}
