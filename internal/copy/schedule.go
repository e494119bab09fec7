package copy

import (
	"cmp"
	"context"
	"slices"
	"sync"
)

// job is one thing for a reader to do: plan a collection or read a slice.
type job struct {
	size  int64 // expected bytes, large ones first
	run   func(ctx context.Context, r *reader) error
	slice *slice // nil: a collection is to be planned
}

// schedule hands out jobs, the largest first. It ends when every job that was
// pushed has been finished: a running job may push more.
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

// enqueue is called with mu held.
func (s *schedule) enqueue(jobs ...job) {
	s.queue = append(s.queue, jobs...)
	slices.SortFunc(s.queue, func(a, b job) int { return cmp.Compare(a.size, b.size) })
	s.changed.Broadcast()
}

// pop waits for a job; ok is false when all work is done or ctx has ended.
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

// finished reports that a popped job has ended.
func (s *schedule) finished() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open--; s.open == 0 {
		s.changed.Broadcast()
	}
}

// assign takes the largest job that is a slice which others may copy: it runs elsewhere. more
// says that jobs wait.
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

// back takes a job back that has run elsewhere and is not finished.
func (s *schedule) back(j job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.enqueue(j)
}

// assignable is how many jobs others may do.
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
