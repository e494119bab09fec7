package copy

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/pace"
)

// crew is the workers of one side.
type crew struct {
	gate       *pace.Gate
	base, most int // workers at the begin; to which the gate may let them grow
	// work is what a worker does. The reserve, who come later, may end without a
	// connection instead of failing.
	work func(ctx context.Context, reserve bool) error
}

// run has the base work, and more while the gate has room for them, until all
// of the base have nothing left to do.
func (c crew) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	steered, over := context.WithCancel(ctx)
	g.Go(func() error {
		defer over()
		base, ctx := errgroup.WithContext(ctx)
		for range c.base {
			base.Go(func() error { return c.work(ctx, false) })
		}
		return base.Wait()
	})
	if c.most > c.base {
		g.Go(func() error {
			c.gate.Steer(steered, c.base, c.most)
			return nil
		})
	}
	g.Go(func() error {
		for n := c.base + 1; n <= c.most && c.gate.Reaches(ctx, n, steered.Done()); n++ {
			g.Go(func() error { return c.work(ctx, true) })
		}
		return nil
	})
	return g.Wait()
}
