// Package tail reads the changes of a source in order and turns them into
// events: oplog entries today, change streams to come. Transactions are held
// back until they commit.
package tail

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/catalog"
	"github.com/millrace/millrace/internal/mongo"
)

// Op is what an event does.
type Op uint8

// The kinds of events.
const (
	Insert Op = iota + 1
	Update    // Doc is the oplog's o: a $v:2 diff, $v:1 modifiers, or a whole replacement
	Delete
	Schema // Change is set; everything before it comes first, everything after it later
	// Put and Upsert come from applyOps commands of users, which a server applies
	// in its own way: the document may be there or not.
	Put    // Doc is the document from now on
	Upsert // as Update; a missing document is made of its _id and the update
)

// Event is one change of one document, or one schema change. Byte fields alias
// a buffer that nothing reuses.
type Event struct {
	Op     Op
	NS     string         // source namespace, e.g. "db.coll" or "db.system.buckets.x"
	UUID   *[16]byte      // of the collection; nil where the entry does not tell
	ID     bsoncore.Value // _id; unset for Schema
	Doc    bson.Raw       // Insert and Put: the document; Update and Upsert: see Update
	Change *catalog.Change
	// At is the position of the oplog entry that made the event take effect:
	// its own, or that of its transaction's commit.
	At mongo.OpTime
}

// Resume is the position from which to go on when everything up to and including
// a batch is applied.
func (b *Batch) Resume() Position {
	p := Position{ReadFrom: b.End, Applied: b.End}
	if !b.OpenTxn.IsZero() {
		p.ReadFrom = b.OpenTxn
	}
	return p
}

// Position is from where a source is read, and what of it is done already.
type Position struct {
	// ReadFrom is the first entry to read: no transaction still open at
	// Applied began before it.
	ReadFrom mongo.OpTime `bson:"readFrom"`
	// Applied is the last entry whose effect is known; events at or before it
	// are not emitted again.
	Applied mongo.OpTime `bson:"applied"`
}

// Batch is a run of events in source order. Each batch's Start is the End of
// the batch before.
//
// The operations of one oplog entry, or of one transaction, that are too many
// for a batch come in several. All but the last have Partial set: their
// trailing events have At after End, and End stays before the entry that made
// them take effect until its last events are delivered. A consumer whose
// durable position is the End of a batch of which, and before which,
// everything is applied therefore never stands inside a transaction; after a
// restart it gets the whole transaction again.
type Batch struct {
	Events []Event
	// Start and End bound the batch: everything after Start up to and
	// including End has been read. A batch without events moves End only.
	Start, End mongo.OpTime
	// Partial says that the entry after End goes on in the next batch.
	Partial bool
	// More says that entries after End have been read already: the consumer is
	// behind the source.
	More bool
	// OpenTxn is the position of the first entry of the oldest transaction
	// still open at End, as far as it is known, zero when none is: reading
	// must start there again (Position.ReadFrom), or at End when it is zero.
	// It may lie before the ReadFrom of this run, and never after End.
	OpenTxn mongo.OpTime
	Bytes   int // size of the entries read
	Entries int // oplog entries read, skipped ones included
}

// Source gives the changes of a deployment in order.
type Source interface {
	// Run reads from pos and hands each batch to emit, in order, one at a
	// time, until ctx ends or reading fails. An empty batch comes at least
	// every second or so, so that End moves on an idle source. A position
	// that the oplog no longer holds is ErrTooOld.
	Run(ctx context.Context, pos Position, emit func(context.Context, *Batch) error) error
	// Stats is a snapshot of what was read.
	Stats() Stats
}

// Stats counts what a source has read since it started.
type Stats struct {
	Entries, Bytes, Events int64
	// Newest is the wall clock of the newest entry seen.
	Newest mongo.OpTime
	// OpenTransactions and BufferedBytes belong to uncommitted transactions.
	OpenTransactions int
	BufferedBytes    int64
}
