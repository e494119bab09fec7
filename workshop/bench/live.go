package bench

import (
	"context"
	"fmt"
	"slices"
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

// followingWrites is the experiment of whether a follower keeps up with writes:
// a case for each share of what the source takes alone.
type followingWrites struct{ shares []float64 }

func (l followingWrites) run(ctx context.Context, b *bench, s scenario) error {
	d := b.o.Scale.Duration
	load := workload{shape: ycsb(), collections: 1, operations: 1 << 30, inserts: 0.7}
	return b.onServers(ctx, s, followed(8000), func(st *site) error {
		b.say("%s: finding what the source takes", s.name)
		if err := st.restartFollowing(ctx); err != nil {
			return err
		}
		began := time.Now()
		n, err := load.run(ctx, st.source, 0, d)
		if err != nil {
			return err
		}
		full := per(float64(n), time.Since(began).Seconds())
		for _, share := range l.shares {
			pace := full * share
			what := fmt.Sprintf("%s operations/s", grouped(int64(pace)))
			if share == 1 {
				pace, what = 0, "as fast as it goes"
			}
			c := Case{
				Scenario: s.name, Variant: itoa(int(share * 100)), Ceiling: s.ceiling, Unit: "operations",
				Work: fmt.Sprintf("70 %% inserts, 30 %% updates of 1 KB documents for %s, %s, over %d connections in commands of up to %d; alone the source takes %s/s; %s",
					d, what, liveConnections, liveChunk, grouped(int64(full)), load.shape.name),
			}
			err := b.follows(ctx, st, c, watched{
				how: "no follower", seeing: "; lag: age of the newest of 20 marks a second that is on the target",
				alone: func(ctx context.Context, m *meter) error {
					return m.during(ctx, st, func() error {
						n, err := load.run(ctx, st.source, pace, d)
						m.set(func(r *Round) { r.Done = n })
						return err
					})
				},
				with: func(ctx context.Context, m *meter) error { return withLag(ctx, st, m, load, pace, d) },
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// withLag writes and watches how far the target is behind.
func withLag(ctx context.Context, st *site, m *meter, load workload, pace float64, d time.Duration) error {
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
			m.set(func(r *Round) { r.Done = n })
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
	began := time.Now()
	return w.spread(ctx, to, writing{liveConnections, liveChunk, func(ctx context.Context, o op) (bool, error) {
		if pace > 0 {
			due := began.Add(time.Duration(float64(o.n) / pace * float64(time.Second)))
			if wait := time.Until(due); wait > 0 && !tick(ctx, wait) {
				return false, ctx.Err()
			}
		}
		return time.Since(began) < d, nil
	}})
}
