package copy

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/pace"
)

// pool is the workers of one side.
type pool struct {
	gate       *pace.Gate
	base, most int // workers at the begin; to which the gate may let them grow
	// work is what a worker does until nothing is left, or until it does not stay: more
	// says that. It has no connection before and after.
	work func(ctx context.Context, w worker) (more bool, err error)
}

// worker is one of a side. Under pace.Low only the first one works.
type worker struct {
	gate  *pace.Gate
	first bool
	// reserve says that it came later: it may end without a connection instead of failing.
	reserve bool
}

// stays reports whether the worker is to go on.
func (w worker) stays() bool { return w.first || !w.gate.Low() }

// run has the base work, and more while the gate has room for them, until all
// of the base have nothing left to do.
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

// member works until nothing is left, with pauses while the load is low.
func (p pool) member(ctx context.Context, w worker, over <-chan struct{}) error {
	for more := true; more && (w.first || p.gate.Employs(ctx, over)); {
		var err error
		if more, err = p.work(ctx, w); err != nil {
			return err
		}
	}
	return nil
}
