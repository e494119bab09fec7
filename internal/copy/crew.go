package copy

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/pace"
)

// crew is the workers of one side.
type crew struct {
	gate       *pace.Gate
	base, most int // workers at the begin; to which the gate may let them grow
	work       func(context.Context) error
	// reserve is work for those who come later: without a connection it ends
	// instead of failing.
	reserve func(context.Context) error
}

// run has the base work, and more while the gate has room for them, until all
// of the base have nothing left to do.
func (c crew) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	over := make(chan struct{})
	var base sync.WaitGroup
	for range c.base {
		base.Add(1)
		g.Go(func() error {
			defer base.Done()
			return c.work(ctx)
		})
	}
	steered, stop := context.WithCancel(ctx)
	g.Go(func() error {
		base.Wait()
		close(over)
		stop()
		return nil
	})
	if c.most > c.base {
		g.Go(func() error {
			c.gate.Steer(steered, c.base, c.most)
			return nil
		})
	}
	g.Go(func() error {
		for n := c.base + 1; n <= c.most && c.gate.Reaches(ctx, n, over); n++ {
			g.Go(func() error { return c.reserve(ctx) })
		}
		return nil
	})
	return g.Wait()
}
