package transform

import (
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// Unmapped is a document of the source that the rules cannot map.
type Unmapped struct {
	Target, Source string // the names of its collection
	UUID           *[16]byte
	ID             bsonraw.ID
	Doc            bson.Raw
	// At is the position of Doc. What happens up to Until may be in it already.
	At, Until mongo.OpTime
	Reason    string
	Err       error // what a job ends with that does not go on without it
}

// LeftOut keeps documents that the rules cannot map, which the target goes without. It is
// safe for concurrent use of different documents.
type LeftOut interface {
	// LeaveOut keeps one, in place of what is kept of it. It fails where the job is not to
	// go on.
	LeaveOut(ctx context.Context, u Unmapped) error
	// IsUnmapped reports a document that is kept, by its collection on the target.
	IsUnmapped(target string, id bsonraw.ID) bool
	// SettleUnmapped records that the target has the document now, or need not have it.
	SettleUnmapped(ctx context.Context, target string, id bsonraw.ID, reason string) error
}

// leaveOut has the target go without the document that an event writes.
func (st *Stage) leaveOut(ctx context.Context, ev *stream.Event, why string, err error) error {
	u := Unmapped{Target: ev.Route.Target, Source: ev.NS, UUID: ev.UUID, ID: ev.Key.ID, Doc: ev.Doc,
		At: ev.At, Until: mongo.MaxOpTime(ev.At, ev.Until), Reason: why, Err: err}
	become(ev, nil, nil)
	return st.leaves.LeaveOut(ctx, u)
}

// cut ends a batch after the first change to collections, where documents may be left out or
// renames skipped. The change moves or settles what is kept of them, before later events are
// decided. rest is what follows.
func (st *Stage) cut(b *stream.Batch) (some, rest *stream.Batch) {
	if st.leaves == nil && st.retainer.of == nil {
		return b, nil
	}
	i := 1 + slices.IndexFunc(b.Events, moves)
	if i == 0 || i == len(b.Events) {
		return b, nil
	}
	return b.Cut(i, st.mark)
}

// moves reports a change that makes, renames or drops collections.
func moves(ev stream.Event) bool {
	if ev.Kind != stream.SchemaChange {
		return false
	}
	switch ev.Change.Kind {
	case stream.ChangeCreate, stream.ChangeDrop, stream.ChangeRename, stream.ChangeDropDatabase:
		return true
	}
	return false
}
