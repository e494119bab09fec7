package mongosink

import (
	"context"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/sink/mongo/resolve"
	"github.com/millrace/millrace/internal/state/deadletter"
)

// Repaired is what has come of a document that was held to repair the target's.
type Repaired = resolve.Repaired

// What may come of it.
const (
	RepairNothing = resolve.RepairNothing
	RepairWritten = resolve.RepairWritten
	RepairDeleted = resolve.RepairDeleted
	RepairSame    = resolve.RepairSame
)

// Hold keeps a document as the source has it, to repair the target's; see
// resolve.Resolver.Hold. It is for the goroutine that feeds.
func (e *Engine) Hold(ctx context.Context, l deadletter.Letter) (why string, err error) {
	t, err := e.target(ctx, l.NS)
	if err != nil {
		return "", err
	}
	return e.resolver.Hold(ctx, t, l)
}

// Repaired is what has come of a document that was held, once. It is for the goroutine
// that feeds.
func (e *Engine) Repaired(ns string, id bsonraw.ID) Repaired { return e.resolver.Repaired(ns, id) }
