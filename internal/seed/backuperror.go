package seed

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
)

// What servers reply to $backupCursor. MongoDB's error list names 50915
// BackupCursorOpenConflictWithCheckpoint and calls it retriable; the others
// have no name, so that their text counts as well.
const (
	codeNoSuchStage         = 40324
	codeCommandNotFound     = 59
	codeCommandNotSupported = 115
	codeCursorNotFound      = 43
	codeCheckpointTookPlace = 50915
	codeCursorNotNow        = 50917
	codeCursorLocked        = 50885
	codeCursorIsOpen        = 50886
)

// cursorError adds what can be done about a cursor that does not open.
func cursorError(err error) error {
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("seed: open a backup cursor: %w", err)
	switch {
	case cursorIsOpen(err):
		return mongo.WithHint(wrapped, "another backup runs on this member: wait for it to end, or copy another member")
	case cursorIsLocked(err):
		return mongo.WithHint(wrapped, "the member is locked by fsyncLock: another backup runs, or left its lock behind (db.fsyncUnlock())")
	case mongo.IsCode(err, codeCheckpointTookPlace), mongo.IsCode(err, codeCursorNotNow):
		return mongo.WithHint(wrapped, "checkpoints kept getting in the way, or the member cannot make one now: try again later, or use --way fsync-lock")
	case mongo.IsCode(err, mongo.CodeUnauthorized):
		return mongo.WithHint(wrapped, "give the user a role that may run $backupCursor (see the server's documentation), or use --way fsync-lock")
	}
	return mongo.WithHint(wrapped, "use --way fsync-lock")
}

func cursorIsOpen(err error) bool {
	return mongo.IsCode(err, codeCursorIsOpen) || err != nil && strings.Contains(err.Error(), "existing backup cursor must be closed")
}

func cursorIsLocked(err error) bool {
	return mongo.IsCode(err, codeCursorLocked) || err != nil && strings.Contains(strings.ToLower(err.Error()), "fsynclock")
}
