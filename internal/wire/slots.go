package wire

import (
	"context"
	"slices"
	"sync"
	"time"
)

// slots bound how many connections are in use at once. It is safe for concurrent use.
type slots struct {
	mu      sync.Mutex
	most    int // 0 is without a bound
	beyond  int // how many more there are, until most would do
	used    int
	waiting []chan struct{} // first come first served; closed when the slot is taken
	moved   time.Time       // when a slot was taken or given back last
}

// standstill is the time without a slot taken or given back after which callers get one more: an owner may wait for
// another connection.
const standstill = 5 * time.Second

// take waits for a slot. The only error is ctx's.
func (s *slots) take(ctx context.Context) error {
	s.mu.Lock()
	if len(s.waiting) == 0 && s.room() {
		s.takeOne()
		s.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	s.waiting = append(s.waiting, turn)
	s.mu.Unlock()
	tick := time.NewTicker(standstill / 4)
	defer tick.Stop()
	for {
		select {
		case <-turn:
			return nil
		case <-tick.C:
			s.unblock()
		case <-ctx.Done():
			return s.leave(ctx, turn)
		}
	}
}

func (s *slots) force() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takeOne()
}

func (s *slots) leave(ctx context.Context, turn chan struct{}) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.waiting, turn); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	} else { // it has come meanwhile
		s.giveOne()
	}
	return ctx.Err()
}

func (s *slots) unblock() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) > 0 && time.Since(s.moved) >= standstill {
		s.beyond = s.used + 1 - s.most
		s.grant()
	}
}

func (s *slots) give() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.giveOne()
}

// spare reports more slots in use than allowed.
func (s *slots) spare() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most > 0 && s.used > s.most+s.beyond
}

// bound changes how many slots there are. Those in use stay so.
func (s *slots) bound(most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most, s.beyond = most, 0
	s.grant()
}

// The rest is called with mu locked.

func (s *slots) room() bool { return s.most <= 0 || s.used < s.most+s.beyond }

func (s *slots) takeOne() {
	s.used++
	s.moved = time.Now()
}

func (s *slots) giveOne() {
	s.used--
	s.moved = time.Now()
	if s.used < s.most {
		s.beyond = 0
	}
	s.grant()
}

func (s *slots) grant() {
	for len(s.waiting) > 0 && s.room() {
		close(s.waiting[0])
		s.waiting = slices.Delete(s.waiting, 0, 1)
		s.takeOne()
	}
}
