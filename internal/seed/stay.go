package seed

import (
	"context"
	"sync"
	"time"
)

// stayer is a Source that notices when a puller is gone.
type stayer interface {
	Stay(ctx context.Context, round, puller string) error
}

// stay tells the source that this puller is there, until the returned function
// is called.
func (p *pull) stay(ctx context.Context, m *Manifest) (stop func()) {
	s, ok := p.src.(stayer)
	if !ok {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Stay(ctx, m.Round, m.Puller); err != nil && ctx.Err() == nil {
			p.o.Log.Debug("the agent is not told any more that this puller is there", "error", err)
		}
	})
	return func() { cancel(); wg.Wait() }
}

// stay notes that a puller is there until ctx ends, which is that of a request
// that it holds open. When the request is cut the puller may have been killed, and
// is not waited for as long as one that is silent; if it was the network it comes
// back, and every request of it says so.
func (r *round) stay(ctx context.Context, id string, limit time.Duration) error {
	r.mu.Lock()
	p := r.pullers[id]
	if p == nil || r.state == roundEnded {
		r.mu.Unlock()
		return errNoRound
	}
	p.stays++
	p.seen, p.cut = time.Now(), false
	r.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.over:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p.stays--
	if ctx.Err() != nil && p.busy == 0 && p.stays == 0 {
		p.seen, p.cut = time.Now(), true
		r.signal()
	}
	return ctx.Err()
}
