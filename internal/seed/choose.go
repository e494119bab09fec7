package seed

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/precheck"
)

// choose picks the way and says why.
func (p *Plan) choose(ctx context.Context, m *member, o SourceOptions) {
	p.Way, p.Why = o.Way, "asked for"
	if o.Way != WayLock && !o.chosen {
		p.tryCursor(ctx, m, o)
	}
	if p.Way == WayCursor {
		p.add(precheck.Warn, "backup cursor", "millrace's use of $backupCursor is untested on a real server: it follows the documentation, and was tested against an imitation",
			"verify the new member (millrace verify), or choose --way fsync-lock")
		return
	}
	if p.Origin.State == "PRIMARY" && (!o.AllowPrimary || !o.YesBlockAllWrites) {
		p.add(precheck.Fail, "source state", "the source is the primary: while it is locked nothing can be written to the whole set",
			"name a secondary, best a hidden one; or give both --allow-primary and --yes-block-all-writes")
	}
}

// tryCursor opens a backup cursor and closes it again: whether a server has it,
// and whether this user may, is told by nothing else.
func (p *Plan) tryCursor(ctx context.Context, m *member, o SourceOptions) {
	cur, err := m.admin.Aggregate(ctx, bson.A{bson.D{{Key: "$backupCursor", Value: bson.D{}}}})
	if err == nil {
		err = cur.Close(ctx)
	}
	has := "the server has $backupCursor, so that nothing is locked"
	switch {
	case err == nil, mongo.IsCode(err, codeCheckpointTookPlace), mongo.IsCode(err, codeCursorNotNow):
		p.Way, p.Why = WayCursor, has+" (untested on a real server)"
	case cursorIsOpen(err), cursorIsLocked(err):
		p.Way, p.Why = WayCursor, has+" (untested on a real server)"
		told := cursorError(err)
		p.add(precheck.Fail, "other backups", told.Error(), mongo.HintOf(told))
	case o.Way == WayCursor:
		told := cursorError(err)
		p.add(precheck.Fail, "backup cursor", told.Error(), mongo.HintOf(told))
	case mongo.IsCode(err, codeNoSuchStage), mongo.IsCode(err, codeCommandNotFound), mongo.IsCode(err, codeCommandNotSupported):
		p.Way, p.Why = WayLock, "the server has no $backupCursor ("+err.Error()+")"
	default:
		p.Way, p.Why = WayLock, "no $backupCursor could be opened ("+err.Error()+")"
	}
}
