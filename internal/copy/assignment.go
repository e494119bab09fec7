package copy

import (
	"bytes"
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/schema"
)

// Assignment is a slice that another process copies for this engine's run. Its positions are kept
// here: what was not reported is copied again, as after a crash.
type Assignment struct{ s *slice }

// Unit is a slice as the other process gets it.
type Unit struct {
	// Source is as much of the collection as reading takes, Slice what is left to do.
	Source schema.Collection `bson:"source"`
	Target string            `bson:"target"`        // of the route
	Key    bson.Raw          `bson:"key,omitempty"` // the shard key of the target; empty: it is not sharded
	Slice  scan.Slice        `bson:"slice"`
	// Part is the shard that the slice belongs to; empty is all of the collection.
	Part   string      `bson:"part,omitempty"`
	Member scan.Member `bson:"member"` // that reads; the same one for all of a run
}

// Assign takes the largest waiting slice that others may copy, nil for none; more says that there
// may be one later. It stays assigned until it is done (Advance) or returned (Return).
func (e *Engine) Assign() (a *Assignment, more bool) {
	r := e.present()
	if r == nil {
		return nil, false
	}
	s, more := r.jobs.assign()
	if s == nil {
		return nil, more
	}
	return &Assignment{s}, true
}

func (a *Assignment) ID() string { return SliceID(&a.s.st) }

// SliceID returns the Assignment.ID of a slice.
func SliceID(st *scan.Slice) string { return fmt.Sprintf("%s/%d", st.Collection, st.N) }

// Unit returns a Unit.
func (a *Assignment) Unit() any {
	c, source := a.s.c, a.s.c.Source
	source.Indexes, source.Options = nil, essentialOptions(source.Options)
	return &Unit{source, c.Route.Target, c.Key, a.s.state(), c.Part, a.s.run.member}
}

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

// Assignable returns how many waiting slices others may copy.
func (e *Engine) Assignable() int {
	if r := e.present(); r != nil {
		return r.jobs.assignable()
	}
	return 0
}

// Reads reports a run whose targets exist and which has chosen the member to read. Before that
// nothing is assigned.
func (e *Engine) Reads() bool { return e.present() != nil }

func (e *Engine) present() *run {
	e.mu.Lock()
	r := e.run
	e.mu.Unlock()
	if r == nil || !r.awaitedReady() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.member.Node == "" {
		return nil
	}
	return r
}

// assignable excludes collections that need an order, and ranges that are read again.
func (s *slice) assignable() bool {
	c := s.c
	return s.st.Of > 1 && s.st.Strategy.Resumable() && !c.serial() && c.Range == nil && !c.alone.Load()
}

// Advance records the progress of the slice and returns how much it adds. st is the slice as
// assigned, with a position up to which the target has acknowledged everything, in the term that
// the store knows.
func (a *Assignment) Advance(st scan.Slice) (docs, bytes int64, err error) {
	s := a.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := &s.st
	switch {
	case !sameSlice(&st, now):
		return 0, 0, fmt.Errorf("slice %d of %d of %s: what was reported is of another slice than the one that was assigned",
			now.N+1, now.Of, s.c.Source.NS)
	case now.Done || st.Docs < now.Docs:
		return 0, 0, nil // reported before
	}
	docs, bytes = st.Docs-now.Docs, st.Bytes-now.Bytes
	now.Position, now.Back, now.Done, now.Dropped = st.Position, st.Back, st.Done, st.Dropped
	now.Docs, now.Bytes = st.Docs, st.Bytes
	s.c.mu.Lock()
	s.c.progress.Docs += docs
	s.c.progress.Bytes += bytes
	s.c.mu.Unlock()
	s.run.unsaved(s)
	if now.Done {
		s.c.sliceDone(s.run, now.Dropped)
		s.run.jobs.finished()
	}
	return docs, bytes, nil
}

func sameSlice(a, b *scan.Slice) bool {
	return a.Collection == b.Collection && a.N == b.N && a.Of == b.Of && a.Plan == b.Plan && a.Strategy == b.Strategy &&
		a.Member == b.Member && bytes.Equal(a.Lower, b.Lower) && bytes.Equal(a.Upper, b.Upper)
}

// Done reports whether all of the slice is copied.
func (a *Assignment) Done() bool { return a.s.state().Done }

// Return gives the slice back once none of its writes is on its way to the target. Others go on
// from what was reported. With alone, only this run copies the rest of the collection.
func (a *Assignment) Return(alone bool) {
	s := a.s
	if alone {
		s.c.alone.Store(true)
	}
	if !a.Done() {
		s.run.jobs.back(s.job())
	}
}

// Assist copies slices of another engine's run, from the same member. next waits for one, with its
// task; nil means that there are no more. Several goroutines call it. The engine's store reports
// their progress. An error leaves slices undone.
func (e *Engine) Assist(ctx context.Context, member scan.Member,
	next func(ctx context.Context) (*scan.Slice, Task, error)) error {
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
				st, t, err := next(ctx)
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

func (r *run) assigned(ctx context.Context, t Task, st scan.Slice) *slice {
	c := newCollection(ctx, t, r.e)
	c.key = docwrite.KeyOf(t.Key, t.Source.Collated())
	c.measured, c.generation, c.plan = true, st.Plan, []scan.Slice{st}
	c.progress.Slices = st.Of
	return newSlice(r, c, st)
}
