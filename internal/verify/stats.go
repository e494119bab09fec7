package verify

import "sync/atomic"

// Stats is a snapshot of a run.
type Stats struct {
	Collections, CollectionsDone int64
	Ranges, RangesDone           int64 // Ranges grows while collections are planned
	// SourceDocs and TargetDocs were read by scans so far (ranges that were
	// tried again count again); EstimatedDocs and EstimatedBytes are both sides
	// together as the servers estimate them, growing while collections are planned.
	SourceDocs, TargetDocs        int64
	Bytes                         int64
	EstimatedDocs, EstimatedBytes int64
	// Mismatches were handed to recheck, Settled of them turned out equal,
	// Waiting are undecided. Differences are final.
	Mismatches, Settled, Waiting int64
	Differences                  int64
	// BufferedBytes are document bytes held now, PeakBytes the most so far.
	BufferedBytes, PeakBytes int64
}

type counters struct {
	collections, collectionsDone    atomic.Int64
	ranges, rangesDone              atomic.Int64
	docs                            [2]atomic.Int64
	bytes                           atomic.Int64
	estDocs, estBytes               atomic.Int64
	mismatches, settled, waiting    atomic.Int64
	differences, buffered, peakSeen atomic.Int64
}

// read counts documents that a scan of a side has read.
func (c *counters) read(i, docs int, bytes int64) {
	c.docs[i].Add(int64(docs))
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
	return Stats{
		Collections: c.collections.Load(), CollectionsDone: c.collectionsDone.Load(),
		Ranges: c.ranges.Load(), RangesDone: c.rangesDone.Load(),
		SourceDocs: c.docs[source].Load(), TargetDocs: c.docs[target].Load(), Bytes: c.bytes.Load(),
		EstimatedDocs: c.estDocs.Load(), EstimatedBytes: c.estBytes.Load(),
		Mismatches: c.mismatches.Load(), Settled: c.settled.Load(), Waiting: c.waiting.Load(),
		Differences:   c.differences.Load(),
		BufferedBytes: c.buffered.Load(), PeakBytes: c.peakSeen.Load(),
	}
}
