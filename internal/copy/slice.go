package copy

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/internal/scan"
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

// Stats returns the progress of the latest Run.
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

// Copied returns the documents and bytes of Stats.
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
