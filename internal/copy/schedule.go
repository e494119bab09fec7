package copy

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/pace"
)

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
	turn  chan struct{} // full while somebody waits for room, others wait for their turn
	freed chan struct{} // full when something has changed since the one in turn has looked
}

func newBudget(limit int64) *budget {
	return &budget{limit: limit, turn: make(chan struct{}, 1), freed: make(chan struct{}, 1)}
}

func (b *budget) take(ctx context.Context, n int64) error {
	select {
	case b.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-b.turn }()
	for used := b.used.Load(); used > 0 && used+n > b.limit; used = b.used.Load() {
		select {
		case <-b.freed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	b.used.Add(n)
	return nil
}

// adjust corrects a taken amount by delta. What has arrived counts even beyond the limit.
func (b *budget) adjust(delta int64) {
	b.used.Add(delta)
	select {
	case b.freed <- struct{}{}:
	default:
	}
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
