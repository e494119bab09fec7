package copy

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/scan"
)

const maxSlices = 4096

// collection plans, and reads a single slice at once.
func (r *reader) collection(ctx context.Context, c *collection) error {
	r.Owned = c.Owned
	plan, err := r.plan(ctx, c)
	if mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
		plan, err = r.fresh(c, scan.ByID, nil), nil // its one slice finds the collection gone
	}
	if err != nil {
		return fmt.Errorf("plan the copy of %s: %w", c.Source.NS, err)
	}
	fresh := plan[0].Plan != c.generation
	ss := c.adopt(r.run, plan)
	if fresh && len(plan) > 1 {
		// What one of them has done counts only when the states of all are there.
		r.unsaved(ss...)
	}
	if len(ss) == 1 {
		return r.slice(ctx, ss[0])
	}
	var jobs []job
	for _, s := range ss {
		jobs = append(jobs, s.job())
	}
	r.jobs.push(jobs...)
	return nil
}

func (c *collection) adopt(r *run, plan []scan.Slice) []*slice {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.plan, c.generation = plan, plan[0].Plan
	p := &c.progress
	p.Strategy, p.State = plan[0].Strategy, StateCopying
	p.Docs, p.Bytes = 0, 0
	var ss []*slice
	dropped := false
	for _, st := range plan {
		p.Docs += st.Docs
		p.Bytes += st.Bytes
		dropped = dropped || st.Dropped
		if !st.Done {
			ss = append(ss, newSlice(r, c, st))
		}
	}
	p.Slices, p.SlicesDone = len(plan), len(plan)-len(ss)
	switch {
	case len(ss) > 0:
	case dropped:
		p.State = StateDropped
	default:
		p.State = StateDone
	}
	r.e.notify(*p)
	return ss
}

func (r *reader) plan(ctx context.Context, c *collection) ([]scan.Slice, error) {
	if c.serial() {
		return r.planSerial(ctx, c)
	}
	if c.Range != nil {
		return r.fresh(c, scan.ByRange, nil), nil
	}
	if len(c.plan) > 0 {
		ok, err := r.CanResume(ctx, &c.Source, c.plan, r.member)
		if err != nil {
			return nil, err
		}
		if ok {
			return c.plan, nil
		}
		r.e.opts.Log.Warn("record ids of the source member have changed since the copy began; the collection is read again",
			"collection", c.Source.NS, "member", r.member.Node)
		c.plan = nil
	}
	if c.Source.Bytes > r.e.opts.SmallBytes && c.Source.Count <= 0 && !c.measured {
		if err := r.measure(ctx, c); err != nil {
			return nil, err
		}
	}
	return r.cut(ctx, c)
}

// planSerial saves the begin before any write: what was begun is not resumed.
func (r *reader) planSerial(ctx context.Context, c *collection) ([]scan.Slice, error) {
	if err := await(ctx, r.ready); err != nil {
		return nil, err
	}
	if c.generation > 0 {
		if r.e.opts.Recreate == nil {
			return nil, mongo.WithHint(
				fmt.Errorf("%s must be copied again, but its target %s cannot be emptied", c.Source.NS, c.Target),
				"drop the target collection and start the job again with --restart")
		}
		if err := r.e.opts.Recreate(ctx, c.Task); err != nil {
			return nil, fmt.Errorf("empty %s to copy it anew: %w", c.Target, err)
		}
	}
	plan := r.fresh(c, scan.Serial, nil)
	return plan, r.saveStates(ctx, plan)
}

func (r *reader) fresh(c *collection, strategy scan.Strategy, bounds []scan.Bound) []scan.Slice {
	like := scan.Slice{Collection: c.uuid, Plan: c.generation + 1, NS: c.Target, Strategy: strategy}
	if strategy == scan.ByRecord {
		like.Member = r.member
	}
	return scan.Slices(like, bounds)
}

// cut makes a new plan, by _id if the source refuses record order.
func (r *reader) cut(ctx context.Context, c *collection) ([]scan.Slice, error) {
	strategy := scan.ByStorage(&c.Source, r.e.src.Info)
	if strategy == scan.ByRecord && r.e.noRecords.Load() {
		strategy = scan.ByID
	}
	n := 1
	if o := &r.e.opts; c.Source.Bytes > o.SmallBytes {
		// Readers share them and a crash loses little, but each is worth a cursor. A sample above
		// 5 % of the documents would read the whole collection.
		enough := max(c.Source.Bytes/o.SliceBytes, min(int64(o.Readers)*4, c.Source.Bytes/o.SmallBytes))
		n = int(max(min(enough, maxSlices, c.Source.Count/(25*2)), 1))
	}
	bounds, served, err := r.Cut(ctx, &c.Source, strategy, n)
	if err != nil {
		return nil, err
	}
	if served != strategy {
		r.e.noRecords.Store(true)
	}
	if n > 1 && len(bounds) == 0 {
		r.e.opts.Log.Warn("the source gives no sample; the collection is copied as one slice", "collection", c.Source.NS)
	}
	return r.fresh(c, served, bounds), nil
}

// newestPlans returns per collection the slices of its newest plan, in order, if complete.
func newestPlans(states []scan.Slice) (plans map[string][]scan.Slice, generation map[string]int64) {
	plans, generation = map[string][]scan.Slice{}, map[string]int64{}
	for _, s := range states {
		if s.Plan > generation[s.Collection] {
			generation[s.Collection], plans[s.Collection] = s.Plan, nil
		}
		if s.Plan == generation[s.Collection] {
			plans[s.Collection] = append(plans[s.Collection], s)
		}
	}
	maps.DeleteFunc(plans, func(_ string, p []scan.Slice) bool {
		slices.SortFunc(p, func(a, b scan.Slice) int { return a.N - b.N })
		for i, s := range p {
			if s.N != i || s.Of != len(p) {
				return true
			}
		}
		return false
	})
	return plans, generation
}

type job struct {
	size  int64 // expected bytes, large ones first
	run   func(ctx context.Context, r *reader) error
	slice *slice // nil: a collection is to be planned
}

// schedule hands out jobs, the largest first. It ends when every pushed job is finished; a running
// job may push more.
type schedule struct {
	mu      sync.Mutex
	changed sync.Cond
	queue   []job // by size
	open    int   // queued and running
}

func newSchedule() *schedule {
	s := &schedule{}
	s.changed.L = &s.mu
	return s
}

func (s *schedule) push(jobs ...job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open += len(jobs)
	s.enqueue(jobs...)
}

// enqueue is called with mu locked.
func (s *schedule) enqueue(jobs ...job) {
	s.queue = append(s.queue, jobs...)
	slices.SortFunc(s.queue, func(a, b job) int { return cmp.Compare(a.size, b.size) })
	s.changed.Broadcast()
}

func (s *schedule) pop(ctx context.Context) (j job, ok bool) {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed.Broadcast()
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) == 0 && s.open > 0 && ctx.Err() == nil {
		s.changed.Wait()
	}
	last := len(s.queue) - 1
	if last < 0 || ctx.Err() != nil {
		return job{}, false
	}
	j, s.queue[last] = s.queue[last], job{}
	s.queue = s.queue[:last]
	return j, true
}

func (s *schedule) finished() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open--; s.open == 0 {
		s.changed.Broadcast()
	}
}

func (s *schedule) assign() (assigned *slice, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, j := range slices.Backward(s.queue) {
		if j.assignable() {
			s.queue = slices.Delete(s.queue, i, i+1)
			return j.slice, true
		}
	}
	return nil, len(s.queue) > 0
}

func (s *schedule) back(j job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.enqueue(j)
}

func (s *schedule) assignable() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.queue {
		if j.assignable() {
			n++
		}
	}
	return n
}

func (j *job) assignable() bool { return j.slice != nil && j.slice.assignable() }

// budget bounds bytes in flight, first come first served. A request larger than the budget is
// granted when nothing else is in flight.
type budget struct {
	limit int64
	used  atomic.Int64
	queue pace.Queue
}

func newBudget(limit int64) *budget { return &budget{limit: limit, queue: pace.NewQueue()} }

func (b *budget) take(ctx context.Context, n int64) error {
	return b.queue.Wait(ctx, 0, func() bool {
		used := b.used.Load()
		if used > 0 && used+n > b.limit {
			return false
		}
		b.used.Add(n)
		return true
	})
}

// adjust corrects a taken amount by delta. What has arrived counts even beyond the limit.
func (b *budget) adjust(delta int64) {
	b.used.Add(delta)
	b.queue.Freed()
}

type pool struct {
	gate       *pace.Gate
	base, most int // workers at the begin; to which the gate may let them grow
	// work runs until nothing is left, or until the worker should not stay: then more is true. It
	// has no connection before and after.
	work func(ctx context.Context, w worker) (more bool, err error)
}

// worker: under pace.Low only the first works.
type worker struct {
	gate    *pace.Gate
	first   bool
	reserve bool
}

func (w worker) stays() bool { return w.first || !w.gate.Low() }

// run adds workers while the gate has room, until the base has nothing left to do.
func (p pool) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	steered, over := context.WithCancel(ctx)
	g.Go(func() error {
		defer over()
		base, ctx := errgroup.WithContext(ctx)
		for i := range p.base {
			base.Go(func() error {
				defer over() // nothing is left for the others either
				return p.member(ctx, worker{gate: p.gate, first: i == 0}, steered.Done())
			})
		}
		return base.Wait()
	})
	if p.most > p.base {
		g.Go(func() error {
			p.gate.Steer(steered, p.base, p.most)
			return nil
		})
	}
	g.Go(func() error {
		for n := p.base + 1; n <= p.most && p.gate.Reaches(ctx, n, steered.Done()); n++ {
			g.Go(func() error { return p.member(ctx, worker{gate: p.gate, reserve: true}, steered.Done()) })
		}
		return nil
	})
	return g.Wait()
}

func (p pool) member(ctx context.Context, w worker, over <-chan struct{}) error {
	for more := true; more && (w.first || p.gate.Employs(ctx, over)); {
		var err error
		if more, err = p.work(ctx, w); err != nil {
			return err
		}
	}
	return nil
}
