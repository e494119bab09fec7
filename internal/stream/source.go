package stream

import (
	"context"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Source gives the changes of a deployment in order.
type Source interface {
	// Run reads from pos and passes each batch to emit, in order, one at a time, until ctx ends
	// or reading fails. An empty batch comes at least every second or so, so that End moves on
	// an idle source. A position that the source no longer holds is an error that no retry
	// resolves.
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
	// Waits says which part of a source holds the others up.
	Waits Wait
	// Parts are those of a source of several, such as shards.
	Parts []PartStats
}

// PartStats are those of a part of a source.
type PartStats struct {
	Name          string
	Events, Bytes int64
	// At is the position up to which all that happened there is known, zero while that is not.
	At mongo.OpTime
}

// Wait is a part of a source, such as a shard, for which the others wait: its pending events
// come before theirs.
type Wait struct {
	Part  string        // empty: nobody waits
	For   time.Duration // how long it has not moved
	Moved time.Time     // when it last did
	Since mongo.OpTime  // where it stands
	// Undecided says that it has a transaction that is prepared and not decided.
	Undecided bool
}

// Insertion is the insert of one document into a collection, after a position and
// up to another.
type Insertion struct {
	UUID         bson.Binary
	ID           bson.RawValue
	After, Until mongo.OpTime
}

// FindInsertion finds the position of an insertion by commands that run sends to
// one member. found is false where there is none, or more than one.
type FindInsertion func(ctx context.Context, run func(context.Context, string, bson.D) (bsoncore.Document, error),
	in Insertion) (at mongo.OpTime, found bool, err error)
