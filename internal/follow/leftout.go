package follow

import (
	"context"
	"log/slog"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/transform"
)

// LeftOut keeps documents that the rules cannot map as dead letters. It implements
// transform.LeftOut.
type LeftOut struct {
	*deadletter.Store
	Stop bool // a document that is not left out already ends the job
	Log  *slog.Logger
}

// LeaveOut implements transform.LeftOut.
func (l LeftOut) LeaveOut(ctx context.Context, u transform.Unmapped) error {
	if l.Stop && !l.IsUnmapped(u.NS, u.ID) {
		return u.Err
	}
	isNew, err := l.Store.LeaveOut(ctx, deadletter.Letter{Origin: u.Origin, DocID: u.ID, Doc: u.Doc, At: u.At,
		Until: u.Until, Reason: u.Reason})
	if isNew && err == nil {
		l.Log.Warn("document left out: the rules cannot map it", "ns", u.Source,
			"documentId", bsonraw.IDText(u.ID), "position", u.At, "reason", u.Reason,
			"in", mongo.StateDB+"."+deadletter.Collection)
	}
	return err
}

// Leaves returns the keeper of documents that the rules cannot map, nil if they end the job. Documents
// that an earlier run left out are always kept.
func Leaves(letters *deadletter.Store, policy deadletter.Policy, log *slog.Logger) transform.LeftOut {
	stop := policy != deadletter.Skip && policy != deadletter.Overwrite
	if stop && !letters.AnyUnmapped() {
		return nil
	}
	return LeftOut{letters, stop, log}
}
