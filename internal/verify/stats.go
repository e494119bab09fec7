package verify

import (
	"sync/atomic"

	"github.com/millrace/millrace/internal/assign"
)

// Stats is a snapshot of a run.
type Stats struct {
	Collections, CollectionsDone int64
	Ranges                       int64 // grows while collections are planned
	// Docs were read by scans of both sides so far (ranges that were tried again
	// count again); EstimatedDocs is what the servers estimate, growing while
	// collections are planned.
	Docs, Bytes, EstimatedDocs int64
	// Mismatches were handed to recheck, Settled of them turned out equal,
	// Waiting are undecided. Differences are final.
	Mismatches, Settled, Waiting int64
	Differences                  int64
	// BufferedBytes are document bytes held now, PeakBytes the most so far.
	BufferedBytes, PeakBytes int64
	// Assignable are slices that other workers may read now, Assistants those that have read some,
	// or could not.
	Assignable int
	Assistants []assign.Figures
}

type counters struct {
	collections, collectionsDone, ranges atomic.Int64
	docs, bytes, estDocs                 atomic.Int64
	mismatches, settled, waiting         atomic.Int64
	differences, buffered, peakSeen      atomic.Int64
}

// read counts documents that a scan has read.
func (c *counters) read(docs int, bytes int64) {
	c.docs.Add(int64(docs))
	c.bytes.Add(bytes)
}

// account counts n document bytes kept in memory, negative when let go.
func (c *counters) account(n int) {
	now := c.buffered.Add(int64(n))
	for {
		peak := c.peakSeen.Load()
		if now <= peak || c.peakSeen.CompareAndSwap(peak, now) {
			return
		}
	}
}

// Stats reports how far the run is. Safe for concurrent use.
func (e *Engine) Stats() Stats {
	c := &e.c
	st := Stats{
		Collections: c.collections.Load(), CollectionsDone: c.collectionsDone.Load(), Ranges: c.ranges.Load(),
		Docs: c.docs.Load(), Bytes: c.bytes.Load(), EstimatedDocs: c.estDocs.Load(),
		Mismatches: c.mismatches.Load(), Settled: c.settled.Load(), Waiting: c.waiting.Load(),
		Differences: c.differences.Load(), BufferedBytes: c.buffered.Load(), PeakBytes: c.peakSeen.Load(),
	}
	if e.assigner != nil {
		st.Assignable, st.Assistants = e.assigner.Status()
	}
	return st
}
