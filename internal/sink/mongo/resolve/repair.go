package resolve

import (
	"context"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/state/deadletter"
)

// Repaired is the result of a repair.
type Repaired string

// Results of a repair.
const (
	RepairNothing Repaired = ""        // it is not known here
	RepairWritten Repaired = "written" // as the source has it
	RepairDeleted Repaired = "deleted" // the source has none
	RepairSame    Repaired = "same"    // the target had it so
)

// Hold keeps a document of the source, or its absence, as a dead letter to repair the target's. It is
// written when the stream has passed everything that may be in it. Everything fed must be drained. why
// says why there is no repair.
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

func (r *Resolver) repaired(g *goal) {
	if !g.held() {
		return
	}
	how := RepairWritten
	switch {
	case g.same, g.doc == nil && !g.there:
		how = RepairSame
	case g.doc == nil:
		how = RepairDeleted
	}
	r.repairs[parkID(g.Target, g.ID)] = how
}

// Repaired returns the result of a repair, once.
func (r *Resolver) Repaired(ns string, id bsonraw.ID) Repaired {
	key := parkID(fold.NewTarget(ns), id)
	how := r.repairs[key]
	delete(r.repairs, key)
	return how
}
