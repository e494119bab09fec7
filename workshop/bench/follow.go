package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
)

// follower starts a tool that copies and then follows until it is ended.
type follower struct {
	name  string
	kind  Kind
	how   string
	start func(ctx context.Context, m *meter) (*child, error) // start returns as soon as the tool runs.
}

func (b *bench) followers(st *site) []follower {
	var all []follower
	for _, v := range b.variants() {
		all = append(all, b.follower(st, v))
	}
	for _, p := range b.o.Peers {
		if t, _ := p.tool(); t.args != nil {
			all = append(all, b.follow(st, p, t))
		}
	}
	return all
}

// follower is millrace with arguments.
func (b *bench) follower(st *site, v Variant) follower {
	args := append(b.millraceSync(st.rules()...), v.Args...)
	return follower{
		name: v.Name, kind: KindMillrace, how: commandLine(args),
		start: func(ctx context.Context, m *meter) (*child, error) {
			c, err := startChild(ctx, program{name: b.o.Millrace, args: args, env: b.clusterEnv(st)})
			if err == nil {
				m.runs(c.pid())
			}
			return c, err
		},
	}
}

// watched is what is done for a time, alone and while a tool follows.
type watched struct {
	alone  func(context.Context, *meter) error
	how    string // of alone
	with   func(context.Context, *meter) error
	seeing string // how it is seen, added to how of the tools

	collections int // that are there and empty at the begin; 0 is one
}

// follows measures the source alone, then with each of the tools that follow.
func (b *bench) follows(ctx context.Context, st *site, c Case, w watched) error {
	return b.followedBy(ctx, st, c, w, b.followers(st))
}

// followedBy is the same with given tools.
func (b *bench) followedBy(ctx context.Context, st *site, c Case, w watched, tools []follower) error {
	prepare := func(ctx context.Context) error { return st.restartFollowing(ctx, max(w.collections, 1)) }
	all := []contender{{name: "ceiling", kind: KindCeiling, how: w.how, prepare: prepare, run: w.alone}}
	for _, f := range tools {
		all = append(all, contender{
			name: f.name, kind: f.kind, how: f.how + w.seeing, prepare: prepare,
			run: func(ctx context.Context, m *meter) error {
				return following(ctx, st, f, m, func(ctx context.Context) error { return w.with(ctx, m) })
			},
		})
	}
	return b.compete(ctx, st, c, all)
}

// followed are the servers of scenarios that go on for a time.
func followed(oplogMB int) needs { return needs{sourceCacheGB: 2, targetCacheGB: 2, oplogMB: oplogMB} }

// restartFollowing makes both sides as they are before a tool begins: the collections are there and empty.
func (st *site) restartFollowing(ctx context.Context, collections int) error {
	if err := st.source.remake(ctx, collections, nil); err != nil {
		return err
	}
	return st.target.clear(ctx)
}

const coreShare = "% of a core: "

// resting is the experiment of a follower while nothing happens.
type resting struct{}

func (resting) run(ctx context.Context, b *bench, s scenario) error {
	d := b.o.Scale.Duration
	return b.onServers(ctx, s, followed(990), func(st *site) error {
		rest := func(ctx context.Context, m *meter) error {
			err := m.during(ctx, st, func() error {
				tick(ctx, d)
				return ctx.Err()
			})
			if err == nil {
				m.value(coreShare+"tool", m.round.ToolCPU/m.round.Seconds*100)
				m.value(coreShare+"source", m.source.cpu/m.round.Seconds*100)
				m.value(coreShare+"target", m.target.cpu/m.round.Seconds*100)
			}
			return err
		}
		c := Case{Scenario: s.name, Work: "nothing for " + d.String(), Ceiling: s.ceiling, Unit: "operations"}
		return b.follows(ctx, st, c, watched{
			how: "no follower; the bench asks the target for its state twice a second", alone: rest,
			with: func(ctx context.Context, m *meter) error {
				const settle = 2 * time.Second // after what had to be done at the beginning
				if !tick(ctx, settle) {
					return context.Cause(ctx)
				}
				return rest(ctx, m)
			},
		})
	})
}

// following runs do while a tool follows the source and has caught up.
func following(ctx context.Context, st *site, f follower, m *meter, do func(context.Context) error) error {
	return running(ctx, f, m, func(ctx context.Context) error {
		if err := caughtUp(ctx, st); err != nil {
			return err
		}
		return do(ctx)
	})
}

// running starts a tool, runs do and ends the tool. The context of do ends when the tool does.
func running(ctx context.Context, f follower, m *meter, do func(context.Context) error) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c, err := f.start(ctx, m)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-c.Done():
			cancel(errEnded)
		case <-ctx.Done():
		}
	})
	defer func() {
		if errors.Is(context.Cause(ctx), errEnded) {
			err = nil // stop says why
		}
		cancel(nil)
		wg.Wait()
		err = errors.Join(err, c.stop())
	}()
	return do(ctx)
}

var errEnded = errors.New("the tool ended by itself")

// caughtUp waits for two markers, one after the other: the first one may have been copied.
func caughtUp(ctx context.Context, st *site) error {
	for range 2 {
		if err := passMarker(ctx, st); err != nil {
			return err
		}
	}
	return nil
}

const markers = "marker"

func setMarker(ctx context.Context, source *side, mark bson.ObjectID) error {
	_, err := source.direct.Client.Database(dataDB).Collection(markers).InsertOne(ctx, bson.D{{Key: "_id", Value: mark}})
	return mongo.Wrap(err, "write a marker")
}

// passMarker writes a marker on the source and waits until it is on the target.
func passMarker(ctx context.Context, st *site) error {
	mark := bson.NewObjectID()
	if err := setMarker(ctx, st.source, mark); err != nil {
		return err
	}
	err := await(ctx, 10*time.Millisecond, func() (bool, error) { return hasMarker(ctx, st.target, mark) })
	return mongo.Wrap(err, "wait for a marker")
}

func hasMarker(ctx context.Context, target *side, mark bson.ObjectID) (bool, error) {
	n, err := target.direct.Client.Database(dataDB).Collection(markers).
		CountDocuments(ctx, bson.D{{Key: "_id", Value: mark}})
	return n > 0, mongo.Wrap(err, "look for a marker")
}

const (
	liveConnections = 8
	liveChunk       = 100 // operations of a connection that go together
	beatEvery       = 50 * time.Millisecond
	lagEnd, lagMax  = "lag at the end s", "largest lag s"
	lagGrowth       = "lag growth s/s"
)

// followingWrites measures whether a follower keeps up: a case for each share of what the source takes alone.
type followingWrites struct{ shares []float64 }

func (l followingWrites) run(ctx context.Context, b *bench, s scenario) error {
	d := b.o.Scale.Duration
	load := workload{shape: ycsb(), collections: 1, operations: 1 << 30, inserts: 0.7}
	return b.onServers(ctx, s, followed(8000), func(st *site) error {
		b.say("%s: finding what the source takes", s.name)
		if err := st.restartFollowing(ctx, 1); err != nil {
			return err
		}
		began := time.Now()
		n, err := paced{load, 0, d}.run(ctx, st.source)
		if err != nil {
			return err
		}
		full := per(float64(n), time.Since(began).Seconds())
		for _, share := range l.shares {
			p := paced{load, full * share, d}
			what := fmt.Sprintf("%s operations/s", grouped(int64(p.pace)))
			if share == 1 {
				p.pace, what = 0, "as fast as it goes"
			}
			c := Case{
				Scenario: s.name, Variant: itoa(int(share * 100)), Ceiling: s.ceiling, Unit: "operations",
				Work: fmt.Sprintf("70 %% inserts, 30 %% updates of 1 KB documents for %s, %s, over %d connections in commands of "+
					"up to %d; alone the source takes %s/s; %s",
					d, what, liveConnections, liveChunk, grouped(int64(full)), load.shape.name),
			}
			err := b.follows(ctx, st, c, watched{
				how: "no follower", seeing: "; lag: age of the newest of 20 marks a second that is on the target",
				alone: func(ctx context.Context, m *meter) error {
					return m.during(ctx, st, func() error { return p.do(ctx, st.source, m) })
				},
				with: func(ctx context.Context, m *meter) error { return p.withLag(ctx, st, m) },
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// paced is a workload for a time, with so many operations a second; 0 is as many as the cluster takes.
type paced struct {
	workload
	pace float64
	d    time.Duration
}

// do runs it and notes how many operations were done.
func (p paced) do(ctx context.Context, to *side, m *meter) error {
	n, err := p.run(ctx, to)
	m.set(func(r *Round) { r.Done = n })
	return err
}

// withLag writes and watches how far the target is behind.
func (p paced) withLag(ctx context.Context, st *site, m *meter) error {
	lags := &lagWatch{first: make(chan struct{})}
	err := m.during(ctx, st, func() error {
		g, gctx := errgroup.WithContext(ctx)
		watched, stop := context.WithCancel(gctx)
		defer stop()
		g.Go(func() error { return lags.beat(watched, st.source) })
		g.Go(func() error { return lags.look(watched, st.target) })
		g.Go(func() error {
			defer stop()
			select {
			case <-lags.first:
			case <-gctx.Done():
				return gctx.Err()
			}
			return p.do(gctx, st.source, m)
		})
		return g.Wait()
	})
	if err != nil {
		return err
	}
	last := lags.lag[len(lags.lag)*9/10:]
	m.value(lagEnd, median(last))
	m.value(lagMax, slices.Max(lags.lag))
	m.value(lagGrowth, slope(lags.at, lags.lag))
	return nil
}

// lagWatch sends marks with their times and looks for them on the target.
type lagWatch struct {
	first   chan struct{} // closed when the first has come
	at, lag []float64     // of each look, in seconds
}

func (l *lagWatch) beat(ctx context.Context, source *side) error {
	coll := source.direct.Client.Database(dataDB).Collection("beat")
	for {
		_, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: time.Now().UnixNano()}})
		if ctx.Err() != nil {
			return nil //nolint:nilerr // its end is not a failure
		}
		if err != nil {
			return fmt.Errorf("mark the source: %w", err)
		}
		if !tick(ctx, beatEvery) {
			return nil
		}
	}
}

// look reads the newest mark on the target until ctx ends.
func (l *lagWatch) look(ctx context.Context, target *side) error {
	began := time.Now()
	for {
		raw, err := target.direct.Command(ctx, dataDB, bson.D{
			{Key: "find", Value: "beat"}, {Key: "sort", Value: bson.D{{Key: "_id", Value: -1}}}, {Key: "limit", Value: 1},
			{Key: "singleBatch", Value: true}})
		if ctx.Err() != nil {
			return nil //nolint:nilerr // its end is not a failure
		}
		if err != nil {
			return fmt.Errorf("look for marks on the target: %w", err)
		}
		now := time.Now()
		if at, ok := raw.Lookup("cursor", "firstBatch", "0", "_id").AsInt64OK(); ok {
			if len(l.at) == 0 {
				close(l.first)
			}
			l.at = append(l.at, now.Sub(began).Seconds())
			l.lag = append(l.lag, float64(now.UnixNano()-at)/1e9)
		}
		if !tick(ctx, beatEvery/2) {
			return nil
		}
	}
}

// run does the operations and returns how many were done.
func (p paced) run(ctx context.Context, to *side) (int, error) {
	began := time.Now()
	return p.spread(ctx, to, writing{liveConnections, liveChunk, func(ctx context.Context, o op) (bool, error) {
		if p.pace > 0 {
			due := began.Add(time.Duration(float64(o.n) / p.pace * float64(time.Second)))
			if wait := time.Until(due); wait > 0 && !tick(ctx, wait) {
				return false, ctx.Err()
			}
		}
		return time.Since(began) < p.d, nil
	}})
}
