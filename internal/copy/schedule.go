package copy

import (
	"container/heap"
	"context"
	"sync"
)

// job is one thing for a reader to do: plan a collection or read a slice.
type job struct {
	size int64 // expected bytes, large ones first
	run  func(ctx context.Context, r *reader) error
}

// schedule hands out jobs, the largest first. It ends when every job that was
// pushed has been finished: a running job may push more.
type schedule struct {
	mu      sync.Mutex
	changed sync.Cond
	queue   jobHeap
	open    int // queued and running
}

func newSchedule() *schedule {
	s := &schedule{}
	s.changed.L = &s.mu
	return s
}

func (s *schedule) push(j job) {
	s.mu.Lock()
	s.open++
	heap.Push(&s.queue, j)
	s.mu.Unlock()
	s.changed.Signal()
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
	if len(s.queue) == 0 || ctx.Err() != nil {
		return job{}, false
	}
	return heap.Pop(&s.queue).(job), true
}

// finished reports that a popped job has ended.
func (s *schedule) finished() {
	s.mu.Lock()
	s.open--
	over := s.open == 0
	s.mu.Unlock()
	if over {
		s.changed.Broadcast()
	}
}

type jobHeap []job

func (h jobHeap) Len() int           { return len(h) }
func (h jobHeap) Less(i, j int) bool { return h[i].size > h[j].size }
func (h jobHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *jobHeap) Push(x any)        { *h = append(*h, x.(job)) }
func (h *jobHeap) Pop() any {
	old := *h
	n := len(old) - 1
	j := old[n]
	old[n] = job{}
	*h = old[:n]
	return j
}
