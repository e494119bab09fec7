package ycsb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
)

// Options describe a run.
type Options struct {
	Phase      Phase
	Properties Properties
	// Status takes a line every status.interval seconds; nil for none.
	Status io.Writer
	// Label stands in each status line.
	Label string
	// Raw takes single latencies when measurementtype is raw and no file is
	// named; nil discards them.
	Raw io.Writer
	// Log takes errors of operations, the first of each second; nil discards them.
	Log *slog.Logger
	// Seed of all that is drawn; 0 draws one.
	Seed uint64
	// Noise is NewNoise, made before by one who runs often; nil makes it.
	Noise []byte
}

// grace is how long operations under way may go on when a run is to end.
const grace = 5 * time.Second

// run is one under way.
type run struct {
	*workload
	options Options
	taken   atomic.Int64
	shards  []*shard
	threads []*thread
	raw     *rawWriter
	began   time.Time

	total  *tallies
	course course
	status *statusLine

	errors struct {
		sync.Mutex
		count  int64
		first  string
		logged time.Time
	}
}

// Execute does a phase of a workload and returns what was measured. When ctx
// ends it stops early: the report then says so, and there is no error. A load
// whose inserts fail is an error beside a report.
func Execute(ctx context.Context, o Options) (*Report, error) {
	c, err := parse(o.Properties, o.Phase)
	if err != nil {
		return nil, err
	}
	cluster, err := mongo.Connect(ctx, c.url, mongo.Options{AppName: "millrace ycsb", MaxPoolSize: uint64(2*c.threads + 8)})
	if err != nil {
		return nil, err
	}
	defer cluster.Close()
	r, err := newRun(cluster, c, o)
	if err != nil {
		return nil, err
	}
	rep, err := r.execute(ctx)
	if r.raw != nil {
		err = errors.Join(err, r.raw.close())
	}
	return rep, err
}

func newRun(cluster *mongo.Cluster, c *config, o Options) (*run, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	for o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	if o.Noise == nil {
		o.Noise = NewNoise()
	}
	r := &run{workload: newWorkload(c, o.Noise), options: o}
	buckets := 0
	if c.measure.kind == "histogram" || c.measure.kind == "hdrhistogram+histogram" {
		buckets = c.measure.buckets
	}
	if c.measure.kind == "raw" || c.measure.kind == "hdrhistogram+raw" {
		if o.Raw == nil {
			o.Raw = io.Discard
		}
		var err error
		if r.raw, err = newRawWriter(c.measure.rawFile, o.Raw); err != nil {
			return nil, err
		}
	}
	for range min(c.threads, 2*runtime.GOMAXPROCS(0)) {
		r.shards = append(r.shards, newShard(c.measure, buckets, r.raw))
	}
	r.total = &tallies{buckets: buckets}
	r.course = course{each: c.measure.granularity, window: &tallies{buckets: buckets}}
	if o.Status != nil {
		r.status = &statusLine{w: o.Status, label: o.Label, total: c.operations, window: &tallies{buckets: buckets}}
	}
	for i := range c.threads {
		t := &thread{workload: r.workload, run: r, shard: r.shards[i%len(r.shards)], rand: rand.New(rand.NewPCG(o.Seed, uint64(i)))}
		var err error
		if t.store, err = newStore(cluster.Pool, c, r.content, t.rand); err != nil {
			return nil, err
		}
		t.first.Store(idle)
		r.threads = append(r.threads, t)
	}
	return r, nil
}

// take hands out the next operation.
func (r *run) take() (int64, bool) {
	n := r.taken.Add(1) - 1
	return n, n < r.operations
}

// note counts an operation's error and logs the first of each second.
func (r *run) note(err error) {
	e := &r.errors
	e.Lock()
	defer e.Unlock()
	e.count++
	if e.first == "" {
		e.first = err.Error()
	}
	if now := time.Now(); now.Sub(e.logged) >= time.Second {
		e.logged = now
		r.options.Log.Warn("operation failed", "error", err.Error(), "failedSoFar", e.count)
	}
}

// execute runs the threads and, beside them, the collector.
func (r *run) execute(ctx context.Context) (*Report, error) {
	before := usage()
	r.began = time.Now()
	stop, end := context.WithCancel(ctx)
	defer end()
	if r.limit > 0 {
		stop, end = context.WithDeadline(stop, r.began.Add(r.limit))
		defer end()
	}
	// Operations outlive the wish to stop, so that none is cut in the middle.
	ops, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	defer context.AfterFunc(stop, func() { time.AfterFunc(grace, abort) })()

	g, stop := errgroup.WithContext(stop)
	for i, t := range r.threads {
		g.Go(func() error { return t.loop(stop, ops, newPacer(r.target, i, len(r.threads), r.began)) })
	}
	finished, collected := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(collected)
		r.collect(finished)
	}()
	err := g.Wait()
	took := time.Since(r.began)
	close(finished)
	<-collected
	rep := r.report(took, usage().since(before))
	rep.Interrupted = ctx.Err() != nil
	if r.phase == Load {
		r.resume(rep)
		if err != nil {
			err = mongo.WithHint(fmt.Errorf("load stopped: %w", err), r.resumeHint(rep))
		}
	}
	return rep, err
}

// collect drains the shards every second, and once more at the end.
func (r *run) collect(finished <-chan struct{}) {
	every := min(time.Second, r.course.each)
	tick := time.NewTicker(every)
	defer tick.Stop()
	r.status.write(0, &r.total.returns, r.statusEvery, false)
	for {
		last := false
		select {
		case <-tick.C:
		case <-finished:
			last = true
		}
		since := time.Since(r.began)
		for _, s := range r.shards {
			if r.status == nil {
				s.drain(r.total, r.course.window)
			} else {
				s.drain(r.total, r.course.window, r.status.window)
			}
		}
		r.course.tick(since, last)
		r.status.write(since, &r.total.returns, r.statusEvery, last)
		if last {
			return
		}
	}
}

// resume finds out from where a load that stopped early is to go on.
func (r *run) resume(rep *Report) {
	next := min(r.taken.Load(), r.operations)
	for _, t := range r.threads {
		if n := t.first.Load(); n != idle {
			next = min(next, n-r.insertStart)
		}
	}
	if next < r.operations {
		rep.Resume = &Resume{InsertStart: r.insertStart + next, InsertCount: r.operations - next}
	}
}

func (r *run) resumeHint(rep *Report) string {
	if rep.Resume == nil {
		return "run the load again with -p mongodb.upsert=true"
	}
	return rep.Resume.Hint()
}
