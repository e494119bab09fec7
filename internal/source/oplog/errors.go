package oplog

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/internal/mongo"
)

// Errors of a Source that no retry fixes. Both carry a hint.
var (
	// ErrTooOld reports that the oplog has lost entries that are needed.
	ErrTooOld = errors.New("the source's oplog no longer reaches back far enough")
	// ErrRolledBack reports that the position is not part of the source's history.
	ErrRolledBack = errors.New("the source's history differs from the one before")
)

// tooOld is ErrTooOld with the lost position; oldest is zero if unknown.
func tooOld(what string, wanted, oldest mongo.OpTime) error {
	err := fmt.Errorf("%w: %s at %s (%s) is gone", ErrTooOld, what, wanted, wanted.Time().Format("2006-01-02 15:04:05Z"))
	if !oldest.IsZero() {
		err = fmt.Errorf("%w; the oldest entry is %s (%s)", err, oldest, oldest.Time().Format("2006-01-02 15:04:05Z"))
	}
	return mongo.WithHint(err,
		"restart with a fresh copy, and give the source a larger oplog (replSetResizeOplog) so that it does not happen again")
}

func rolledBack(what string, wanted, found mongo.OpTime) error {
	return mongo.WithHint(
		fmt.Errorf("%w: no entry for %s at %s (term %d); the next one is %s (term %d)",
			ErrRolledBack, what, wanted, wanted.Term, found, found.Term),
		"the source was rolled back or restored, or it is another cluster: check the address; if it is right, restart with "+
			"a fresh copy")
}

// readError explains a cursor error. It does not wrap a server error that would count as temporary.
func readError(addr string, last mongo.OpTime, err error) error {
	switch {
	case mongo.IsCode(err, mongo.CodeCappedPositionLost):
		return mongo.WithHint(
			fmt.Errorf("%w: it overwrote the changes after %s on %s: %s", ErrTooOld, last, addr, err.Error()),
			"copy again with --restart; give the source a larger oplog, or the target more capacity")
	case mongo.IsCode(err, codeReadConcernMajorityNotEnabled):
		return mongo.WithHint(fmt.Errorf("read oplog of %s: %w", addr, err),
			"start the source's members with enableMajorityReadConcern:true, for writes that may roll back must not be "+
				"replicated")
	case mongo.IsCode(err, mongo.CodeUnauthorized):
		return mongo.WithHint(fmt.Errorf("read oplog of %s: %w", addr, err),
			"grant the source's user the role read on the database local, or clusterMonitor and backup on admin")
	}
	return fmt.Errorf("read oplog of %s after %s: %w", addr, last, err)
}

const codeReadConcernMajorityNotEnabled = 148
