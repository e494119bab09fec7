package verify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/millrace/millrace/internal/mongo"
)

// Pair names two collections that should hold the same documents. Of a
// time-series collection these are its system.buckets collections. Everything
// else about them (capped, clustered, collation) is read from the servers.
type Pair struct {
	SourceNS, TargetNS string // "db.coll"
}

// Options shape a run. The zero value compares offline with sensible limits.
type Options struct {
	// Method is how documents are compared; default Auto.
	Method Method
	// Workers is how many ranges are compared at a time, each with one
	// connection a side; default one a core, 4 to 6.
	Workers int
	// RangeBytes is the size of a range as the source estimates it; default 32 MiB.
	RangeBytes int64
	// MaxBufferedBytes bounds the document bytes held in memory by all workers;
	// default 128 MiB. A reply's size is governed by the collection's average
	// document size, so a collection of very uneven documents may exceed it by
	// one reply (16 MB at most) a connection.
	MaxBufferedBytes int64
	// IgnoreFieldOrder lets documents differ in the order of their fields, at
	// any depth. The order of array elements always counts.
	IgnoreFieldOrder bool
	// CapOrder also compares the natural order of capped collections.
	CapOrder bool
	// MaxDifferences is how many differences the report describes; default
	// 1000. The rest is counted.
	MaxDifferences int
	// Online says that writes go on: mismatches are rechecked as Recheck says.
	Online  bool
	Recheck RecheckOptions
	// Log receives what happens to whole collections; nil discards it.
	Log *slog.Logger
}

// RecheckOptions say how long a mismatch may stay undecided while writes go on.
type RecheckOptions struct {
	// For is how long a mismatch may stay unsettled before it counts as a
	// difference although one side still changes; default 1 minute.
	For time.Duration
	// Every is the pause between two looks; default 500 ms.
	Every time.Duration
	// Quiet is how long both sides have to stand still, byte for byte, to be
	// called different; it has to exceed the replication's lag. Default 10 s.
	Quiet time.Duration
}

func (o Options) withDefaults() Options {
	if o.Method == "" {
		o.Method = Auto
	}
	setDefault(&o.Workers, min(max(runtime.GOMAXPROCS(0), 4), 6))
	setDefault(&o.RangeBytes, 32<<20)
	setDefault(&o.MaxBufferedBytes, 128<<20)
	setDefault(&o.MaxDifferences, 1000)
	setDefault(&o.Recheck.For, time.Minute)
	setDefault(&o.Recheck.Every, 500*time.Millisecond)
	setDefault(&o.Recheck.Quiet, 10*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

func setDefault[T int | int64 | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}

// Engine compares two clusters. Run is called once; Stats at any time from any
// goroutine.
type Engine struct {
	src, dst *mongo.Cluster
	o        Options
	c        counters
	limits   limits
	slots    *semaphore.Weighted // comparisons at a time
	srcAt    position
	dstAt    position
}

// limits share MaxBufferedBytes among those who hold documents: per worker two
// batches a side (one being walked, one read ahead), the documents without a
// partner, and those fetched by _id.
type limits struct {
	batch   int // bytes asked for in one reply
	scan    int // the same where nothing is read ahead
	pending int // documents of a worker that wait for a partner
	probe   int // documents fetched by _id at a time
	queue   int // the recheck queue
}

// New prepares a comparison of src and dst; both stay the caller's to close.
func New(src, dst *mongo.Cluster, o Options) *Engine {
	o = o.withDefaults()
	share := int(o.MaxBufferedBytes) / (o.Workers + 1)
	return &Engine{src: src, dst: dst, o: o, slots: semaphore.NewWeighted(int64(o.Workers)), limits: limits{
		batch:   max(min(share/8, 4<<20), 16<<10),
		scan:    max(min(share/4, 8<<20), 16<<10),
		pending: max(share/4, 16<<10),
		probe:   max(min(share/8, 4<<20), 16<<10),
		queue:   max(share/2, 64<<10),
	}}
}

// Run compares the pairs and returns what differs. An error means that the
// comparison could not be finished; a difference is no error. Failures that
// pass by themselves (an election, a killed cursor) are retried range by range
// for a while.
func (e *Engine) Run(ctx context.Context, pairs []Pair) (*Report, error) {
	begin := time.Now()
	cols := make([]*collection, len(pairs))
	for i, p := range pairs {
		cols[i] = newCollection(e, p)
	}
	e.c.collections.Store(int64(len(pairs)))
	if err := e.advance(ctx); err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	f := newFindings(e.o.MaxDifferences)
	rc := newRechecker(e, f)

	g, gctx := errgroup.WithContext(ctx)
	work := make(chan task)
	g.Go(func() error {
		defer close(work)
		return e.plan(gctx, cols, work)
	})
	g.Go(func() error { return e.compare(gctx, work, f, rc) })
	if e.o.Online {
		g.Go(func() error { return rc.run(gctx) })
	}
	if err := g.Wait(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("verify: %w", err)
	}
	return f.report(begin, e.o.Online, cols), nil
}

// advance has all further reads see at least what both sides have now.
func (e *Engine) advance(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.srcAt.advance(ctx, e.src, e.o.Log) })
	g.Go(func() error { return e.dstAt.advance(ctx, e.dst, e.o.Log) })
	return g.Wait()
}

// side describes one of a pair. A collection that is not there may be one whose
// drop rolls back, so that this has to be seen for good.
func (e *Engine) side(ctx context.Context, c *mongo.Cluster, at *position, ns string) (s side, err error) {
	if s, err = describe(ctx, c, ns); err == nil && !s.exists {
		err = c.Seen(ctx, func() error {
			s, err = describe(ctx, c, ns)
			return err
		})
	}
	s.position, s.log = at, e.o.Log
	return s, err
}

// compare compares ranges with all workers, then tells the rechecker that no more
// mismatches come.
func (e *Engine) compare(ctx context.Context, work <-chan task, f *findings, rc *rechecker) error {
	g, ctx := errgroup.WithContext(ctx)
	for range e.o.Workers {
		g.Go(func() error {
			w := worker{e: e, f: f, rc: rc}
			for {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case t, ok := <-work:
					if !ok {
						return nil
					}
					if err := w.do(ctx, t); err != nil {
						return err
					}
				}
			}
		})
	}
	err := g.Wait()
	rc.noMore()
	return err
}

// plan reads what the servers know of each collection and hands out its ranges.
func (e *Engine) plan(ctx context.Context, cols []*collection, work chan<- task) error {
	for _, c := range cols {
		tasks, err := c.tasks(ctx)
		if err != nil {
			return fmt.Errorf("plan %s: %w", c.pair.SourceNS, err)
		}
		c.open.Store(int64(len(tasks)))
		e.c.ranges.Add(int64(len(tasks)))
		for _, t := range tasks {
			select {
			case work <- t:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// retries is how often one range is tried again after failures that pass by
// themselves; with doubling pauses from 100 ms this spans about 50 s, an
// election several times over.
const retries = 9

// retry runs fn until it succeeds, fails for good, or failed too often.
func retry(ctx context.Context, log *slog.Logger, what string, fn func() error) error {
	pause := 100 * time.Millisecond
	for try := 0; ; try++ {
		err := fn()
		if err == nil || errors.Is(err, context.Canceled) || try == retries || mongo.Classify(err) != mongo.ClassRetry {
			return err
		}
		log.Warn("try again", "what", what, "error", err, "pause", pause)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause *= 2
	}
}
