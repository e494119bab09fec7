package stream

import (
	"context"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
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
