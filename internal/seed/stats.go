package seed

import (
	"sync"
	"time"
)

// Phase is what a copy is doing.
type Phase string

// The phases of a copy, in order.
const (
	PhaseStart   Phase = "starting"
	PhaseCopy    Phase = "copying"
	PhaseClone   Phase = "cloning"
	PhaseFreeze  Phase = "freezing the source"
	PhaseAgain   Phase = "copying what changed"
	PhaseSync    Phase = "making durable"
	PhaseRecover Phase = "recovering"
	PhaseMember  Phase = "starting the member"
	PhaseCatchUp Phase = "catching up"
)

// Stats counts what a copy does. The zero value is ready; it is safe for
// concurrent use.
type Stats struct {
	mu    sync.Mutex
	now   Snapshot
	began time.Time
}

// Snapshot is how far a copy is.
type Snapshot struct {
	Phase        Phase
	Done, Total  int64   // bytes of the phase; Total 0 is unknown
	PhaseSeconds float64 // since the phase began
}

// Stats returns how far the copy is.
func (s *Stats) Stats() Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now
	if now.Phase == "" {
		now.Phase = PhaseStart
	}
	if !s.began.IsZero() {
		now.PhaseSeconds = time.Since(s.began).Seconds()
	}
	return now
}

func (s *Stats) enter(p Phase, total int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now, s.began = Snapshot{Phase: p, Total: total}, time.Now()
}

func (s *Stats) pass(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.Done += n
}

// add adds to a counter of the report.
func (s *Stats) add(counter *int64, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*counter += n
}
