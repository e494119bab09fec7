package stream

import (
	"cmp"
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
)

// Source reads the changes of a deployment in order.
type Source interface {
	// Run reads from pos and calls emit for each batch until ctx ends or reading fails. An empty batch
	// comes about every second, so that End advances. A position that the source has lost is an error
	// that no retry resolves.
	Run(ctx context.Context, pos Position, emit func(context.Context, *Batch) error) error
	// Stats returns a snapshot of the counters. It may be called while Run runs.
	Stats() SourceStats
}

// SourceStats counts what a source has read since it started.
type SourceStats struct {
	Entries, Bytes, Events int64
	Newest                 mongo.OpTime // the position of the newest entry seen
	OpenTransactions       int          // not committed yet
	BufferedBytes          int64        // of open transactions
	Waits                  Wait         // says which part of a source delays the others
	Parts                  []PartStats  // those of a merged source, such as shards
}

// PartStats are those of a part of a source.
type PartStats struct {
	Name          string
	Events, Bytes int64
	At            mongo.OpTime // the part's completely known position, zero while unknown
}

// Wait is a part of a source, such as a shard, whose pending events come first.
type Wait struct {
	Part      string        // empty: nobody waits
	For       time.Duration // how long it has not moved
	Moved     time.Time     // when it last did
	Since     mongo.OpTime  // where it stands
	Undecided bool          // a prepared transaction is undecided there
}

// Insertion is the insert of one document, after a position and up to another.
type Insertion struct {
	UUID         bson.Binary
	ID           bson.RawValue
	After, Until mongo.OpTime
}

// FindInsertion finds the position of an insertion with commands that run sends to one member. found is
// false for none or several.
type FindInsertion func(ctx context.Context, run func(context.Context, string, bson.D) (bsoncore.Document, error),
	in Insertion) (at mongo.OpTime, found bool, err error)

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

// Position is a point in a source's history from which a consumer goes on.
type Position struct {
	// At orders positions: the events at or before it are done. It is cluster time, so that all
	// positions and events of one source can be compared.
	At   mongo.OpTime
	Mark string // the source's resume token, which others only store
}

// Past returns the position after a schema change in the middle of the next batch.
func (p Position) Past(ev *Event) Position {
	return Position{At: ev.At, Mark: cmp.Or(ev.Change.Mark, p.Mark)}
}

// Batch is a run of events in source order. Each batch's Start is the End of the batch before.
//
// The events of one position, such as a transaction, may be too many for a batch. Then all its batches
// but the last have Partial set, and End stays before the position until the last one. So a consumer's
// durable position is never inside a transaction, and a restart gets the complete transaction again.
type Batch struct {
	Events []Event
	// Everything after Start up to and including End has been read, even without events.
	Start, End mongo.OpTime
	Mark       string       // the resume token of a consumer that has applied everything up to End
	Partial    bool         // the next batch goes on with the position after End
	Until      mongo.OpTime // the latest Event.Until of its events
	// Undecided is the position of the earliest prepared transaction that is undecided at End, zero for
	// none. Its events may get an earlier position than entries after it. Only parts of merged sources
	// set it (oplog.Options.CommitTimes).
	Undecided mongo.OpTime
	More      bool // more was read already: the consumer is behind
	Bytes     int  // size of what was read for it
	Entries   int  // entries of the source's history, those without an event included
	// EventBytes is the size of its events. It exceeds Bytes if they were read before, such as a
	// transaction's.
	EventBytes int
}

// Held returns the memory of the batch in bytes.
func (b *Batch) Held() int64 { return int64(max(b.Bytes, b.EventBytes)) }

// Resume returns the position after the batch.
func (b *Batch) Resume() Position { return Position{At: b.End, Mark: b.Mark} }

// Cut splits the batch before event i. mark is the resume token of the batch before, where the position
// stays until rest is done.
func (b *Batch) Cut(i int, mark string) (first, rest *Batch) {
	one, other := *b, *b
	one.Events, other.Events = b.Events[:i:i], b.Events[i:]
	one.End, one.Mark, one.Partial, one.More = b.Start, mark, true, true
	other.Bytes, other.EventBytes, other.Entries = 0, 0, 0
	return &one, &other
}
