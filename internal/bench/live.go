package bench

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"
)

const (
	liveConnections = 8
	liveChunk       = 100 // operations of a connection that go together
	beatEvery       = 50 * time.Millisecond
	lagEnd, lagMax  = "lag at the end s", "largest lag s"
	lagGrowth       = "lag growth s/s"
)

// incrLive measures whether a follower keeps up with writes.
func incrLive(ctx context.Context, b *bench, s scenario) (err error) {
	d := b.o.Scale.Duration
	load := workload{shape: ycsb(), collections: 1, operations: 1 << 30, inserts: 0.7}
	st, c, err := b.openFollowed(ctx, s, "", 8000)
	if err != nil {
		return err
	}
	defer func() { err = joinClose(err, st) }()
	b.say("%s: finding what the source takes", s.name)
	full, err := b.sourceAlone(ctx, st, load)
	if err != nil {
		return err
	}
	for _, share := range []float64{0.5, 0.8, 1} {
		pace := full * share
		what := fmt.Sprintf("%s operations/s", grouped(int64(pace)))
		if share == 1 {
			pace, what = 0, "as fast as it goes"
		}
		c.Variant = itoa(int(share * 100))
		c.Work = fmt.Sprintf("70 %% inserts, 30 %% updates of 1 KB documents for %s, %s, over %d connections in commands of up to %d; alone the source takes %s/s; %s",
			d, what, liveConnections, liveChunk, grouped(int64(full)), load.shape.name)
		if err := b.compete(ctx, st, c, b.liveContenders(st, load, pace, d)); err != nil {
			return err
		}
	}
	return nil
}

// sourceAlone is how many operations a second the source takes without a follower.
func (b *bench) sourceAlone(ctx context.Context, st *site, load workload) (float64, error) {
	if err := st.restartFollowing(ctx); err != nil {
		return 0, err
	}
	began := time.Now()
	n, err := load.run(ctx, st.source, 0, b.o.Scale.Duration)
	return per(float64(n), time.Since(began).Seconds()), err
}

func (b *bench) liveContenders(st *site, load workload, pace float64, d time.Duration) []contender {
	prepare := func(ctx context.Context) error { return st.restartFollowing(ctx) }
	all := []contender{{
		name: "ceiling", kind: KindCeiling, how: "no follower", prepare: prepare,
		run: func(ctx context.Context, m *meter) error {
			return m.during(ctx, st, func() error {
				n, err := load.run(ctx, st.source, pace, d)
				m.done(n)
				return err
			})
		},
	}}
	for _, f := range b.followers(st) {
		all = append(all, contender{
			name: f.name, kind: f.kind, prepare: prepare,
			how: f.how + "; lag: age of the newest of 20 marks a second that is on the target",
			run: func(ctx context.Context, m *meter) error {
				return following(ctx, st, f, m, func(ctx context.Context) error { return b.withLag(ctx, st, m, load, pace, d) })
			},
		})
	}
	return all
}

// withLag writes and watches how far the target is behind.
func (b *bench) withLag(ctx context.Context, st *site, m *meter, load workload, pace float64, d time.Duration) error {
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
			n, err := load.run(gctx, st.source, pace, d)
			m.done(n)
			return err
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

// beat marks the source until ctx ends.
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
			{Key: "find", Value: "beat"}, {Key: "sort", Value: bson.D{{Key: "_id", Value: -1}}}, {Key: "limit", Value: 1}, {Key: "singleBatch", Value: true}})
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

// run does the workload's operations for a time, so many a second, 0 for as
// many as the cluster takes, and returns how many were done.
func (w workload) run(ctx context.Context, to *side, pace float64, d time.Duration) (int, error) {
	g, gctx := errgroup.WithContext(ctx)
	var done atomic.Int64
	queues := make([]chan []op, liveConnections)
	for i := range queues {
		queues[i] = make(chan []op, 1)
		g.Go(func() error {
			wr, err := newWriter(gctx, to, 1)
			if err != nil {
				return err
			}
			defer wr.conn.Release()
			for chunk := range queues[i] {
				if err := w.writeChunk(gctx, wr, chunk); err != nil {
					return err
				}
				done.Add(int64(len(chunk)))
			}
			return nil
		})
	}
	g.Go(func() error {
		defer func() {
			for _, q := range queues {
				close(q)
			}
		}()
		return w.paced(gctx, queues, pace, d)
	})
	err := g.Wait()
	return int(done.Load()), err
}

// paced hands out operations at a pace until the time is over.
func (w workload) paced(ctx context.Context, queues []chan []op, pace float64, d time.Duration) error {
	began := time.Now()
	chunks := make([][]op, len(queues))
	for o := range w.ops() {
		i := int(mix(uint64(o.key)) % uint64(len(queues)))
		if chunks[i] = append(chunks[i], o); len(chunks[i]) < liveChunk {
			continue
		}
		if pace > 0 {
			due := began.Add(time.Duration(float64(o.n) / pace * float64(time.Second)))
			if wait := time.Until(due); wait > 0 && !tick(ctx, wait) {
				return ctx.Err()
			}
		}
		if time.Since(began) >= d {
			return nil
		}
		if err := hand(ctx, queues[i], chunks[i]); err != nil {
			return err
		}
		chunks[i] = nil
	}
	return nil
}
