package stream

import (
	"cmp"

	"github.com/millrace/millrace/internal/mongo"
)

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
