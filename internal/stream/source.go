package stream

import (
	"context"

	"github.com/millrace/millrace/internal/mongo"
)

// Source gives the changes of a deployment in order.
type Source interface {
	// Run reads from pos and hands each batch to emit, in order, one at a
	// time, until ctx ends or reading fails. An empty batch comes at least
	// every second or so, so that End moves on an idle source. A position that
	// the source no longer holds is an error that no retry mends.
	Run(ctx context.Context, pos Position, emit func(context.Context, *Batch) error) error
	// Stats is a snapshot of what was read. It may be called concurrently with Run.
	Stats() SourceStats
}

// SourceStats counts what a source has read since it started.
type SourceStats struct {
	Entries, Bytes, Events int64
	// Newest is the position of the newest entry seen.
	Newest mongo.OpTime
	// OpenTransactions and BufferedBytes belong to uncommitted transactions.
	OpenTransactions int
	BufferedBytes    int64
}
