// Package ycsb is a load generator compatible with the Yahoo! Cloud Serving Benchmark: workload files, properties,
// keys and output are the same (docs/reference/benchmarks.md has what differs). Each thread has a connection and
// one operation at a time. Documents come out of a block of random bytes, framed by hand over internal/wire, so
// that the client costs little. Latencies go into HDR histograms in a few shards, drained once a second. Sources are
// the wiki of YCSB ("Core Properties", "Core Workloads", "Running a Workload"), the README of its MongoDB binding,
// and published output. The zipfian generator is that of Gray et al., "Quickly Generating Billion-Record Synthetic
// Databases", SIGMOD 1994.
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
	Status     io.Writer // Status takes a line every status.interval seconds; nil for none.
	Label      string    // Label stands in each status line.
	// Raw takes single latencies when measurementtype is raw and no file is named; nil discards them.
	Raw   io.Writer
	Log   *slog.Logger // Log takes errors of operations, the first of each second; nil discards them.
	Seed  uint64       // Seed of all that is drawn; 0 draws one.
	Noise []byte       // Noise is NewNoise, made before by one who runs often; nil makes it.
}

// grace is how long operations under way may go on when a run is to end.
const grace = 5 * time.Second

type run struct {
	*workload
	options Options
	taken   atomic.Int64
	shards  []*shard
	threads []*thread
	raw     *rawWriter
	began   time.Time

	total  *runStats
	course course
	status *statusLine

	errors struct {
		sync.Mutex
		count  int64
		first  string
		logged time.Time
	}
}

// Execute does a phase and returns what was measured. The end of ctx stops it early without an error. A load whose
// inserts fail returns an error beside the report.
func Execute(ctx context.Context, o Options) (*Report, error) {
	c, err := parse(o.Properties, o.Phase)
	if err != nil {
		return nil, err
	}
	cluster, err := mongo.Connect(ctx, c.url,
		mongo.Options{AppName: "millrace ycsb", MaxPoolSize: uint64(2*c.threads + 8)})
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
	r.total = &runStats{buckets: buckets}
	r.course = course{each: c.measure.granularity, window: &runStats{buckets: buckets}}
	if o.Status != nil {
		r.status = &statusLine{w: o.Status, label: o.Label, total: c.operations, window: &runStats{buckets: buckets}}
	}
	for i := range c.threads {
		t := &thread{workload: r.workload, run: r, shard: r.shards[i%len(r.shards)],
			rand: rand.New(rand.NewPCG(o.Seed, uint64(i)))}
		var err error
		if t.store, err = newStore(cluster.Pool, c, r.content, t.rand); err != nil {
			return nil, err
		}
		t.first.Store(idle)
		r.threads = append(r.threads, t)
	}
	return r, nil
}

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
	// Operations outlive stop, so that none is interrupted.
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
		hint := "run the load again with -p mongodb.upsert=true"
		if rep.Resume != nil {
			hint = rep.Resume.Hint()
		}
		if err != nil {
			err = mongo.WithHint(fmt.Errorf("load stopped: %w", err), hint)
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

type thread struct {
	*workload
	run   *run
	store *store
	shard *shard
	rand  *rand.Rand
	key   []byte
	first atomic.Int64 // of the load: the first record that may not be there yet
}

// idle says that a thread has no insert of the load under way.
const idle = -1

// loop works until there is nothing left or stop ends. Operations under way then go on in ctx.
func (t *thread) loop(stop, ctx context.Context, p *pacer) error {
	t.first.Store(idle)
	defer t.store.close()
	for stop.Err() == nil {
		due := p.wait(stop)
		if stop.Err() != nil {
			break
		}
		n, ok := t.run.take()
		if !ok {
			break
		}
		if t.phase == Load {
			if err := t.load(stop, ctx, t.insertStart+n, due); err != nil {
				return err
			}
			continue
		}
		t.transact(ctx, due)
		if ctx.Err() != nil {
			break
		}
	}
	start := time.Now()
	err := t.finish(stop, ctx)
	t.shard.record(opCleanup, statusOK, time.Time{}, start, time.Now())
	return err
}

// load inserts record n and tries again as often as is wanted.
func (t *thread) load(stop, ctx context.Context, n int64, due time.Time) error {
	if t.first.Load() == idle {
		t.first.Store(n)
	}
	t.key = t.keys.append(t.key[:0], n)
	start := time.Now()
	st, err := t.store.insert(ctx, start, t.key)
	err = t.again(stop, ctx, &st, err)
	t.shard.record(opInsert, st, due, start, time.Now())
	if err != nil {
		return fmt.Errorf("record %d, key %s: %w", n, t.key, err)
	}
	if st == statusOK {
		t.first.Store(idle)
	}
	return nil
}

// again retries a failed batch after a pause. Duplicate keys then come from an earlier try.
func (t *thread) again(stop, ctx context.Context, st *status, err error) error {
	for try := int64(0); err != nil && try < t.retries && ctx.Err() == nil; try++ {
		t.run.note(err)
		select {
		case <-time.After(t.retryAfter):
		case <-stop.Done():
			return err
		}
		*st, err = t.store.flush(ctx, time.Now())
		if refused := (*writeError)(nil); errors.As(err, &refused) && refused.onlyDup {
			t.store.discard()
			*st, err = statusOK, nil
		}
	}
	return err
}

// finish sends what waits in a batch.
func (t *thread) finish(stop, ctx context.Context) error {
	if t.store.batch.Docs() == 0 {
		return nil
	}
	st, err := t.store.flush(ctx, time.Now())
	if err = t.again(stop, ctx, &st, err); err != nil {
		if t.phase == Load {
			return err
		}
		t.run.note(err)
		return nil
	}
	t.first.Store(idle)
	return nil
}

// transact does one operation of the run phase.
func (t *thread) transact(ctx context.Context, due time.Time) {
	switch k := t.operation(t.rand); k {
	case opInsert:
		t.insert(ctx, due)
	case opModify:
		t.modify(ctx, due)
	default:
		n := t.record(t.rand)
		t.key = t.keys.append(t.key[:0], n)
		switch k {
		case opUpdate:
			t.update(ctx, due)
		case opScan:
			t.scan(ctx, due)
		default:
			t.read(ctx, due)
		}
	}
}

func (t *thread) read(ctx context.Context, due time.Time) status {
	start := time.Now()
	doc, st, err := t.store.read(ctx, start, t.key, t.field(t.readAll))
	t.done(opRead, st, due, start, err)
	if t.verify && st == statusOK {
		start = time.Now()
		if !t.content.verify(doc, t.key) {
			st = statusUnexpected
		}
		t.done(opVerify, st, time.Time{}, start, nil)
	}
	return st
}

func (t *thread) update(ctx context.Context, due time.Time) status {
	start := time.Now()
	st, err := t.store.update(ctx, start, t.key, t.field(t.writeAll))
	t.done(opUpdate, st, due, start, err)
	return st
}

func (t *thread) modify(ctx context.Context, due time.Time) {
	t.key = t.keys.append(t.key[:0], t.record(t.rand))
	start := time.Now()
	st := t.read(ctx, due)
	if second := t.update(ctx, due); st.ok() {
		st = second
	}
	t.done(opModify, st, due, start, nil)
}

func (t *thread) scan(ctx context.Context, due time.Time) {
	n := int(t.scanLength.next(t.rand))
	start := time.Now()
	st, err := t.store.scan(ctx, start, t.key, n, t.field(t.readAll))
	t.done(opScan, st, due, start, err)
}

func (t *thread) insert(ctx context.Context, due time.Time) {
	n := t.inserts.take()
	t.key = t.keys.append(t.key[:0], n)
	start := time.Now()
	st, err := t.store.insert(ctx, start, t.key)
	if err != nil {
		t.store.discard()
	}
	t.done(opInsert, st, due, start, err)
	t.inserts.acknowledge(n)
}

// field draws the field to read or write, -1 for all.
func (t *thread) field(all bool) int {
	if all {
		return -1
	}
	return t.rand.IntN(len(t.fields))
}

func (t *thread) done(k kind, st status, due, start time.Time, err error) {
	t.shard.record(k, st, due, start, time.Now())
	if err != nil {
		t.run.note(err)
	}
}

// pacer says when a thread's operations are due: evenly. A late thread catches up without a pause.
type pacer struct {
	next  time.Time
	every time.Duration
	timer *time.Timer
}

// newPacer is nil when there is no target. The threads begin one after the other within the first period.
func newPacer(target float64, thread, threads int, start time.Time) *pacer {
	if target <= 0 {
		return nil
	}
	every := time.Duration(float64(threads) / target * float64(time.Second))
	return &pacer{next: start.Add(every / time.Duration(threads) * time.Duration(thread)), every: every}
}

// wait waits until the next operation is due and returns when that was meant to be, the zero time without a target.
func (p *pacer) wait(ctx context.Context) time.Time {
	if p == nil {
		return time.Time{}
	}
	due := p.next
	p.next = due.Add(p.every)
	left := time.Until(due)
	if left <= 0 {
		return due
	}
	if p.timer == nil {
		p.timer = time.NewTimer(left)
	} else {
		p.timer.Reset(left)
	}
	select {
	case <-p.timer.C:
	case <-ctx.Done():
		p.timer.Stop()
	}
	return due
}
