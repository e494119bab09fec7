package stream

import "context"

// Sink takes the events of a source to where they shall be.
//
// Run owns the sink's goroutines; it is called once and ends when ctx ends or
// the sink fails. Feed and Drain are called while it runs, by one goroutine at a
// time; Applied and Stats by any at any time.
//
// Events may come again: after a restart from a position that Applied returned, or
// an earlier one, the target may be ahead of what is fed. When it has caught up
// it holds what it would hold if each event had come once. Events of one document
// take effect in order, those of different documents in any.
type Sink interface {
	Run(ctx context.Context) error
	// Feed takes a batch over. It blocks while too much is under way. Batches
	// follow one another as a Source emits them.
	Feed(ctx context.Context, b *Batch) error
	// Drain returns when everything fed is applied.
	Drain(ctx context.Context) error
	// Applied is a position from which a source may go on after a restart:
	// everything up to it is applied. It never goes back.
	Applied() Position
	Stats() SinkStats
}

// SinkStats counts what a sink did since it was made.
type SinkStats struct {
	Operations int64 // events applied, or folded into an update that is kept back
	Bytes      int64 // of the batches fed
	Folded     int64 // events merged into another
	Parked     int64 // operations that had to wait for others
	Schema     int64 // schema changes
	Backlog    int64 // bytes in flight
	// Of a sharded target: documents that were looked for on all shards, to know which
	// has them, and updates that all shards got, for none has the document, or two.
	Located, Broadcast int64
}
