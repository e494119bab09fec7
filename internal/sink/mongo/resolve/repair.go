package resolve

import (
	"context"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/state/deadletter"
)

// Repaired is what has come of a document that was held to repair the target's.
type Repaired string

// What may come of it.
const (
	RepairNothing Repaired = ""        // it is not known here
	RepairWritten Repaired = "written" // as the source has it
	RepairDeleted Repaired = "deleted" // the source has none
	RepairSame    Repaired = "same"    // the target had it so
)

// Hold keeps a document as the source has it, or its absence, to repair the target's. The
// document's changes go to its dead letter. It is written when the stream has passed all that
// may be in it. The caller must have drained everything fed. The result why says why there is
// no repair.
func (r *Resolver) Hold(ctx context.Context, t *fold.Target, l deadletter.Letter) (why string, err error) {
	switch {
	case t.Capped:
		return "a capped collection takes a document at its end only, where it does not belong", nil
	case !t.Key.IsZero():
		return "its collection is sharded on the target, where nothing is repaired", nil
	case l.Doc == nil && !deadletter.Nameable(l.DocID):
		return "its _id cannot be noted", nil
	case l.Doc != nil && !bsonraw.IDOf(l.Doc).Equal(l.DocID):
		return "the source has it under an _id that is equal but has other bytes: verify again", nil
	}
	l.NS, l.State, l.Cause = t.NS, deadletter.Held, deadletter.CauseRepair
	l.Reason = "to be as the source has it, on request"
	return "", r.o.Letters.Write(ctx, l)
}

// repaired notes what has come of a document that was held.
func (r *Resolver) repaired(g *goal) {
	if !g.held() {
		return
	}
	how := RepairWritten
	switch {
	case g.same:
		how = RepairSame
	case g.doc == nil && !g.there:
		how = RepairSame
	case g.doc == nil:
		how = RepairDeleted
	}
	r.repairs[parkID(g.Target, g.ID)] = how
}

// Repaired is what has come of a document that was held, once.
func (r *Resolver) Repaired(ns string, id bsonraw.ID) Repaired {
	key := parkID(&fold.Target{NS: ns}, id)
	how := r.repairs[key]
	delete(r.repairs, key)
	return how
}
