package copy

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/wire"
)

// Borrower gives slices that another engine lends.
type Borrower interface {
	// Borrow waits for a slice, with the task that it is a part of; nil says that there
	// are no more. Several goroutines call it.
	Borrow(ctx context.Context) (*scan.Slice, Task, error)
}

// Borrow copies slices of another engine's run, from the same member, until there are
// no more. What becomes of them the engine's store is told: for it each position counts
// that it takes. An error leaves slices undone.
func (e *Engine) Borrow(ctx context.Context, member scan.Member, from Borrower) error {
	r := newRun(e)
	r.member = member
	close(r.ready)
	g, gctx := errgroup.WithContext(ctx)
	written := make(chan struct{})
	g.Go(func() error { return r.save(gctx, written) })
	g.Go(func() error {
		defer close(written)
		return r.transfer(gctx, func(ctx context.Context, w worker) (bool, error) { return r.borrow(ctx, from, w) })
	})
	err := g.Wait()
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// borrow reads slices over one connection until there are no more, or the worker does not
// stay.
func (r *run) borrow(ctx context.Context, from Borrower, w worker) (more bool, err error) {
	err = r.connected(ctx, r.e.src, wire.ByAddress(r.member.Node), w.reserve, func(conn *wire.Conn) error {
		if err := r.member.Lives(ctx, conn); err != nil {
			return fmt.Errorf("copy: read the source: %w", err)
		}
		rd := r.reader(conn)
		for w.stays() {
			st, t, err := from.Borrow(ctx)
			if err != nil || st == nil {
				return err
			}
			if err := rd.slice(ctx, r.borrowed(t, *st)); err != nil {
				return err
			}
		}
		more = true
		return nil
	})
	return more, err
}

// borrowed is a slice of a collection of its own, of which the others are not known.
func (r *run) borrowed(t Task, st scan.Slice) *slice {
	c := newCollection(t)
	c.key = docwrite.KeyOf(t.Key, t.Source.Collated())
	c.measured, c.generation, c.plan = true, st.Plan, []scan.Slice{st}
	c.progress.Slices = st.Of
	return newSlice(r, c, st)
}

// essentialOptions are those that say how documents of a collection are read and written.
func essentialOptions(options bson.Raw) bson.Raw {
	var out bson.D
	for _, key := range []string{"capped", "collation", "clusteredIndex"} {
		if v, err := options.LookupErr(key); err == nil {
			out = append(out, bson.E{Key: key, Value: v})
		}
	}
	raw, err := bson.Marshal(out)
	if err != nil { // they were read from a valid document
		return options
	}
	return raw
}
