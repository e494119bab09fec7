package stream

import (
	"cmp"

	"github.com/millrace/millrace/internal/mongo"
)

// Position is a point in a source's history from which a consumer goes on.
type Position struct {
	// At orders positions of one source: the events at or before it are done.
	// What a cluster did is ordered by its cluster time, whatever is read, so that
	// positions and events of one source can be compared by everybody.
	At mongo.OpTime
	// Mark is the source's own: what else it needs to go on from here. Others
	// store it as it is and make nothing of it.
	Mark string
}

// Past is the position of a consumer that has done a schema change, too, which is amid
// the batch that comes next.
func (p Position) Past(ev *Event) Position {
	return Position{At: ev.At, Mark: cmp.Or(ev.Change.Mark, p.Mark)}
}

// Batch is a run of events in source order. Each batch's Start is the End of the batch before.
//
// The events of one position, such as those of a transaction, may be too many for a batch. They
// come in several batches, of which all but the last have Partial set. Their trailing events
// have At after End, and End stays before that position until its last events are delivered. So
// a consumer never stands inside a transaction if its durable position is the End of a batch up
// to which everything is applied. After a restart it gets the complete transaction again.
type Batch struct {
	Events []Event
	// Start and End bound the batch: everything after Start up to and
	// including End has been read. A batch without events moves End only.
	Start, End mongo.OpTime
	// Mark is that of a consumer that has applied everything up to End.
	Mark string
	// Partial says that the position after End goes on in the next batch.
	Partial bool
	// Until is the latest Event.Until of its events.
	Until mongo.OpTime
	// Undecided is where the earliest transaction stands that is prepared and neither
	// committed nor aborted up to End; zero is none. If it commits, its events have a
	// position at or after it, which may be before that of entries after it. Only
	// sources that are merged tell it (oplog.Options.CommitTimes).
	Undecided mongo.OpTime
	// More says that more has been read already: the consumer is behind.
	More    bool
	Bytes   int // size of what was read for it
	Entries int // entries of the source's history, those without an event included
	// EventBytes is the size of its events. It is more than Bytes where they were
	// read before, as those of a transaction that commits.
	EventBytes int
}

// Held is how many bytes of memory the batch stands for.
func (b *Batch) Held() int64 { return int64(max(b.Bytes, b.EventBytes)) }

// Resume is the position from which to go on when everything up to and including
// a batch is applied.
func (b *Batch) Resume() Position { return Position{At: b.End, Mark: b.Mark} }

// Cut ends the batch before an event; rest is what follows. mark is that of the batch
// before, at which the position stays until the rest is done.
func (b *Batch) Cut(i int, mark string) (first, rest *Batch) {
	one, other := *b, *b
	one.Events, other.Events = b.Events[:i:i], b.Events[i:]
	one.End, one.Mark, one.Partial, one.More = b.Start, mark, true, true
	other.Bytes, other.EventBytes, other.Entries = 0, 0, 0
	return &one, &other
}
