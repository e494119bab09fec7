package ycsb

import (
	"sync"
	"sync/atomic"
)

// sequence hands out the numbers of new records and knows up to which all are
// there, so that reads ask for no record that is still under way.
type sequence struct {
	next, newest atomic.Int64

	mu   sync.Mutex
	done map[int64]struct{} // beyond newest
}

// newSequence begins with the number first; the records before it are there.
func newSequence(first int64) *sequence {
	s := &sequence{done: map[int64]struct{}{}}
	s.next.Store(first)
	s.newest.Store(first - 1)
	return s
}

func (s *sequence) take() int64 { return s.next.Add(1) - 1 }

// acknowledge notes that the insert of a number has ended.
func (s *sequence) acknowledge(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done[n] = struct{}{}
	at := s.newest.Load()
	for {
		if _, ok := s.done[at+1]; !ok {
			break
		}
		at++
		delete(s.done, at)
	}
	s.newest.Store(at)
}
