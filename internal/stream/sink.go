package stream

import "context"

// Sink applies the events of a source.
//
// Run owns the sink's goroutines. It is called once and ends when ctx ends or the sink fails. One
// goroutine at a time calls Feed and Drain while it runs. Any goroutine may call Applied and Stats.
//
// After a restart from Applied or an earlier position the target may be ahead of the events. Once it has
// caught up, it is as if each event had come once. Events of one document take effect in order, those of
// different documents in any.
type Sink interface {
	Run(ctx context.Context) error
	// Feed takes a batch over, in the order of a Source. It blocks while too much is in flight.
	Feed(ctx context.Context, b *Batch) error
	// Drain returns when everything fed is applied.
	Drain(ctx context.Context) error
	// Applied returns a position up to which everything is applied. It never goes back.
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
	// Of a sharded target: documents looked up on all shards, and updates sent to all shards, as no
	// document was found, or two.
	Located, Broadcast int64
}
