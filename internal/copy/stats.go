package copy

import (
	"sync/atomic"

	"github.com/millrace/millrace/internal/scan"
)

// CollectionState is how far a collection's copy is.
type CollectionState string

// The states of a collection.
const (
	StateWaiting CollectionState = "waiting"
	StateCopying CollectionState = "copying"
	StateDone    CollectionState = "done"
	StateDropped CollectionState = "dropped" // vanished from the source
)

// CollectionStats is a collection's progress. Documents and bytes are those that the target
// acknowledged, in this run and before, and those that were left out. They are an estimate for
// what the source itself leaves out (see scan.Prefilter).
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
		cs := c.stats()
		s.Collections[i] = cs
		s.Docs += cs.Docs
		s.Bytes += cs.Bytes
		s.Slices += cs.Slices
		s.SlicesDone += cs.SlicesDone
	}
	return s
}

// Done is the documents and bytes that the target has acknowledged since New, those that
// were read again included.
func (e *Engine) Done() (docs, bytes int64) { return e.count.docs.Load(), e.count.bytes.Load() }

// Copied is the documents and bytes of Stats alone.
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

func (c *collection) stats() CollectionStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.progress
}
