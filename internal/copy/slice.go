package copy

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/schema"
)

// slice is a slice under way. Its reader numbers chunks, writers acknowledge them in any order; the
// position moves over unbroken runs only.
type slice struct {
	c   *collection
	run *run

	mu    sync.Mutex
	st    scan.Slice
	acked int // chunks 0 … acked-1 are acknowledged
	early map[int]scan.Progress
	ended bool // the reader has sent all
	sent  int  // chunks, then
}

func newSlice(r *run, c *collection, st scan.Slice) *slice {
	return &slice{c: c, run: r, st: st, early: map[int]scan.Progress{}}
}

func (s *slice) job() job {
	st := s.state()
	left := max(s.c.Source.Bytes/int64(max(st.Of, 1))-st.Bytes, 0) // roughly
	return job{size: left, slice: s, run: func(ctx context.Context, rd *reader) error { return rd.slice(ctx, s) }}
}

func (s *slice) ack(n int, p scan.Progress) {
	s.c.add(p)
	s.run.e.count.docs.Add(int64(p.Docs))
	s.run.e.count.bytes.Add(p.Bytes)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.early[n] = p
	for {
		p, ok := s.early[s.acked]
		if !ok {
			break
		}
		delete(s.early, s.acked)
		s.acked++
		s.st.Advance(p)
	}
	s.touched()
}

// end follows the last of so many chunks; dropped says that the collection is gone.
func (s *slice) end(sent int, dropped bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended, s.sent = true, sent
	s.st.Dropped = dropped
	s.touched()
}

// touched marks the slice for saving, and done if it is. s.mu is locked.
func (s *slice) touched() {
	s.run.unsaved(s)
	if s.ended && s.acked == s.sent && !s.st.Done {
		s.st.Done = true
		s.c.sliceDone(s.run, s.st.Dropped)
	}
}

func (s *slice) state() scan.Slice {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.st
}

func (c *collection) add(p scan.Progress) {
	if c.unread != nil && p.Unread > 0 {
		c.unread(p.Unread)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.progress.Docs += int64(p.Docs) + p.Unread
	c.progress.Bytes += p.Bytes + p.UnreadBytes
}

func (c *collection) sliceDone(r *run, dropped bool) {
	c.mu.Lock()
	p := &c.progress
	p.SlicesDone++
	over := p.SlicesDone == p.Slices
	if dropped {
		p.State = StateDropped
	} else if over && p.State != StateDropped {
		p.State = StateDone
	}
	now := *p
	c.mu.Unlock()
	if over {
		r.e.notify(now)
	}
	if over && now.State == StateDropped {
		r.e.opts.Log.Info("collection vanished from the source during its copy; the oplog replays the drop",
			"collection", c.Source.NS, "uuid", c.uuid)
	} else if over {
		r.e.opts.Log.Debug("collection copied", "collection", c.Source.NS, "docs", now.Docs, "bytes", now.Bytes)
	}
}

// CollectionState is the state of a collection's copy.
type CollectionState string

const (
	StateWaiting CollectionState = "waiting"
	StateCopying CollectionState = "copying"
	StateDone    CollectionState = "done"
	StateDropped CollectionState = "dropped" // vanished from the source
)

// CollectionStats is a collection's progress. Documents and bytes were acknowledged by the target,
// in this run or before, or left out. What the source leaves out is an estimate (scan.Prefilter).
type CollectionStats struct {
	Source, Target        string
	State                 CollectionState
	Strategy              scan.Strategy // "" until planned
	Docs, Bytes           int64
	TotalDocs, TotalBytes int64 // the source's estimates
	Slices, SlicesDone    int
}

// Stats is a snapshot of an engine. Counters below the totals are since New.
type Stats struct {
	Collections        []CollectionStats
	Docs, Bytes        int64
	Slices, SlicesDone int

	Refused  int64 // documents that the target did not take
	Replaced int64 // documents the target had already, replaced
	Same     int64 // copied again, and the same on the target
	Exact    int64 // documents with zero timestamps, written by update instead of insert
	Buffered int64 // bytes in flight now
}

type counters struct{ refused, replaced, same, exact, docs, bytes atomic.Int64 }

func (e *Engine) Stats() Stats {
	e.mu.Lock()
	colls, budget := e.colls, e.budget
	e.mu.Unlock()
	n := &e.count
	s := Stats{
		Collections: make([]CollectionStats, len(colls)),
		Refused:     n.refused.Load(), Replaced: n.replaced.Load(), Same: n.same.Load(), Exact: n.exact.Load(),
	}
	if budget != nil {
		s.Buffered = budget.used.Load()
	}
	for i, c := range colls {
		c.mu.Lock()
		cs := c.progress
		c.mu.Unlock()
		s.Collections[i] = cs
		s.Docs += cs.Docs
		s.Bytes += cs.Bytes
		s.Slices += cs.Slices
		s.SlicesDone += cs.SlicesDone
	}
	return s
}

// Done returns the documents and bytes that the target has acknowledged since New, repeated ones
// included.
func (e *Engine) Done() (docs, bytes int64) { return e.count.docs.Load(), e.count.bytes.Load() }

func (e *Engine) Copied() (docs, bytes int64) {
	e.mu.Lock()
	colls := e.colls
	e.mu.Unlock()
	for _, c := range colls {
		c.mu.Lock()
		docs, bytes = docs+c.progress.Docs, bytes+c.progress.Bytes
		c.mu.Unlock()
	}
	return docs, bytes
}

func (e *Engine) notify(c CollectionStats) {
	if e.opts.OnCollection != nil {
		e.opts.OnCollection(c)
	}
}

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
	Member scan.Member `bson:"member"` // that reads; the same one for all of a run, none through routers
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
	if !r.chosen {
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
