package copy

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/scan"
)

// Assigner assigns slices of another engine's run to this one.
type Assigner interface {
	// NextSlice waits for a slice, with the task that it is a part of; nil says that there
	// are no more. Several goroutines call it.
	NextSlice(ctx context.Context) (*scan.Slice, Task, error)
}

// Assist copies slices of another engine's run, from the same member, until there are no
// more. The engine's store gets what becomes of them, and the other engine counts the positions
// that it takes from there. An error leaves slices undone.
func (e *Engine) Assist(ctx context.Context, member scan.Member, from Assigner) error {
	r := newRun(e)
	r.member = member
	close(r.ready)
	g, gctx := errgroup.WithContext(ctx)
	written := make(chan struct{})
	g.Go(func() error { return r.save(gctx, written) })
	g.Go(func() error {
		defer close(written)
		return r.transfer(gctx, func(ctx context.Context, w worker) (bool, error) {
			return r.reading(ctx, w, func(ctx context.Context, rd *reader) (bool, error) {
				st, t, err := from.NextSlice(ctx)
				if err != nil || st == nil {
					return false, err
				}
				return true, rd.slice(ctx, r.assigned(gctx, t, *st))
			})
		})
	})
	err := g.Wait()
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// assigned is a slice of a collection of its own, whose other slices are not known.
func (r *run) assigned(ctx context.Context, t Task, st scan.Slice) *slice {
	c := newCollection(ctx, t, r.e)
	c.key = docwrite.KeyOf(t.Key, t.Source.Collated())
	c.measured, c.generation, c.plan = true, st.Plan, []scan.Slice{st}
	c.progress.Slices = st.Of
	return newSlice(r, c, st)
}
