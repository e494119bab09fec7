package history

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Pace slows endless writers down.
type Pace struct {
	// Step is the pause of a writer after each step.
	Step time.Duration
	// Schema is the least time from one schema change to the next, of all
	// writers together. Those that come too soon are left out.
	Schema time.Duration
}

// Endless runs steps that are drawn from the seed until ctx is over, all
// writers side by side. It does not run Setup. The error is that of a step.
func (r *Runner) Endless(ctx context.Context, o Options, pace Pace) error {
	r.mu.Lock()
	r.init()
	r.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var schema atomic.Int64
	due := func(s Step) bool {
		if !s.Schema() {
			return true
		}
		last, now := schema.Load(), time.Now().UnixNano()
		return now-last >= int64(pace.Schema) && schema.CompareAndSwap(last, now)
	}
	var wg sync.WaitGroup
	for i := range o.Writers {
		own := o
		own.Seed += uint64(i) << 48
		g, w := NewGenerator(own), &writer{}
		wg.Go(func() {
			defer r.abort(ctx, w)
			for ctx.Err() == nil {
				if s := g.Next(i); due(s) {
					left, err := r.step(ctx, w, s)
					if ctx.Err() != nil {
						return
					}
					r.mu.Lock()
					r.count(s, left, err)
					r.mu.Unlock()
					if r.failed() != nil {
						cancel()
						return
					}
				}
				select {
				case <-time.After(pace.Step):
				case <-ctx.Done():
				}
			}
		})
	}
	wg.Wait()
	return r.failed()
}
