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

// draining is the experiment of a backlog that has to be drained.
type draining struct {
	shape    func() *shape // nil is ycsb
	load     workload      // without a shape; 0 collections are 1
	variants []indexed     // a case each; none is one without indexes
	settings []setting     // a contender each in place of millrace's own; none leaves them to it
	link     link          // to the target; over one that is far the ceiling reads nothing
	extra    []ruled
}

// indexed is a case by its indexes.
type indexed struct {
	variant string
	indexes []index
}

func (d draining) run(ctx context.Context, b *bench, s scenario) error {
	if len(d.variants) == 0 {
		d.variants = []indexed{{}}
	}
	d.load.shape, d.load.collections, d.load.operations = shapeOf(d.shape), max(d.load.collections, 1), b.o.Scale.of(d.load.operations)
	for _, v := range d.variants {
		if err := d.measure(ctx, b, s, v); err != nil {
			return err
		}
	}
	return nil
}

// measure measures how fast a backlog is drained.
func (d draining) measure(ctx context.Context, b *bench, s scenario, v indexed) error {
	bytes := d.load.operations * d.load.shape.size
	n := needs{
		sourceCacheGB: b.cacheGB(2 * bytes), targetCacheGB: b.cacheGB(2 * bytes),
		oplogMB: oplogMB(d.load.operations, d.load.shape.size+200), member: b.hasPeer(peerSecondary), targetProxy: d.link.far(),
	}
	c := Case{
		Scenario: s.name, Variant: v.variant, Work: "apply a backlog of " + d.load.describe() + "; " + d.load.shape.name,
		Ceiling: s.ceiling, Unit: "operations", Count: d.load.operations,
	}
	if d.load.collections > 1 {
		c.Work += "; " + itoa(d.load.collections) + " collections"
	}
	if len(d.settings) > 0 {
		describeSettings(&c)
	}
	c.Notes = append(c.Notes, d.link.notes()...)
	return b.onServers(ctx, s, n, func(st *site) error {
		w := &incrWork{bench: b, site: st, load: d.load, indexes: v.indexes, settings: d.settings, link: d.link, extra: d.extra}
		if err := w.begin(ctx, &c); err != nil {
			return err
		}
		if err := w.calibrate(ctx, &c); err != nil {
			return err
		}
		return b.compete(ctx, st, c, w.contenders())
	})
}

// incrWork is a case of draining on its servers.
type incrWork struct {
	*bench
	*site
	load     workload
	indexes  []index
	settings []setting
	link     link
	extra    []ruled
	span     span
	read     oplogReading
	write    settings
	final    []change // everything folded together
	// behind keeps the files of a secondary from before the backlog.
	behind string
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
	n := trialSize(w.load.operations, len(w.target.nodes))
	connections := []int{2, 4, 8, 16}
	if w.link.far() {
		w.target.moveAway(w.link)
		connections = farConnections()
	}
	w.write, note, err = choose(ctx, n, grid(connections, []int{128 << 10, 512 << 10, 2 << 20}), func(ctx context.Context, s settings) (time.Duration, error) {
		if err := w.empty(ctx); err != nil {
			return 0, err
		}
		p := newPlan(w.load.fold(limit(w.load.ops(), n), foldWindow), s.connections)
		return w.target.timed(ctx, func() error { return w.load.apply(ctx, w.target, p, s) })
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
	how := "apply, folded within " + kib(foldWindow) + " of oplog"
	if !w.link.far() {
		how = "read the oplog: " + w.read.String() + "; " + how
	}
	all := []contender{w.ceiling("ceiling", KindCeiling, folded, how)}
	drain := []string{"--mode", "incremental", "--start-at", w.span.from.String(), "--until", "caught-up"}
	if len(w.settings) > 0 {
		return append(append(all, w.swept(drain)...), w.peers(w.peer)...)
	}
	all = append(all,
		w.ceiling("all folded", KindReference, newPlan(w.load.fold(w.load.ops(), 0), w.write.connections),
			"the same, everything folded together as with boundless memory"),
		w.ceiling("unfolded", KindReference, w.load.unfolded(w.write.connections),
			"the same, each operation by itself, in order"),
	)
	all = append(all, w.syncs(w.site, w.empty, w.complete, drain...)...)
	all = append(all, w.ruled(w.site, w.extra, w.empty, w.completeAs, drain...)...)
	return append(all, w.peers(w.peer)...)
}

// ceiling reads the oplog and applies a plan, one after the other.
func (w *incrWork) ceiling(name string, kind Kind, p plan, how string) contender {
	return contender{
		name: name, kind: kind, how: fmt.Sprintf("%s (%d statements left): %s", how, p.statements(), w.write),
		prepare: w.empty,
		run: func(ctx context.Context, m *meter) error {
			if !w.link.far() {
				if err := m.part("read", func() error { return w.readOplog(ctx, w.read) }); err != nil {
					return err
				}
			}
			if err := m.part("apply", func() error { return w.load.apply(ctx, w.target, p, w.write) }); err != nil {
				return err
			}
			return m.part(partMajority, func() error { return w.target.majority(ctx) })
		},
		check: w.complete,
	}
}

// peer is a peer's way to drain a backlog; false when it has none.
func (w *incrWork) peer(p Peer) (contender, bool) {
	if p.Name == peerSecondary {
		return w.catchUp(), true
	}
	t, drains := p.draining(w.span.from.Time().Add(time.Second))
	if !drains {
		return contender{}, false
	}
	f := w.follow(w.site, p, t)
	return contender{
		name: p.Name, kind: KindPeer, how: f.how + "; until the target has everything",
		prepare: w.empty, check: w.complete,
		run: func(ctx context.Context, m *meter) error { return w.drainBy(ctx, f, m) },
	}, true
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
		if err != nil {
			return err
		}
		return w.endsOnMajority(ctx, m, began)
	})
}
