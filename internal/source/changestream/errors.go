package changestream

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
)

// Errors of a Source that no retry fixes. They carry a hint.
var (
	// ErrLost reports that the source does not have the changes after the position.
	ErrLost = errors.New("the source does not have the changes from there on")
	// ErrTooLarge reports an event that exceeds 16 MB, on a server that cannot split it.
	ErrTooLarge = errors.New("a change event is too large")
	// ErrUnknown reports an event that millrace does not understand.
	ErrUnknown = errors.New("unknown change event")
)

// The server's error codes of change streams (MongoDB manual, "Error Codes").
const (
	codeHistoryLost   = 286
	codeFatal         = 280 // also where the token's event is not in the history
	codeNoTokenFound  = 40585
	codeOldNotFound   = 40576 // before 4.2
	codeTooLargeEvent = 10334
	codeNoMatch       = 50811 // the token's event is gone; older servers
	codeUnknownField  = 40415
	codeUnknownStage  = 40324
)

// Lost reports an error of a history that is gone. Its hint says what to do.
func Lost(err error) bool { return errors.Is(err, ErrLost) }

func lostCode(err error) bool {
	codes := []int32{codeHistoryLost, codeFatal, codeOldNotFound, codeNoTokenFound, codeNoMatch,
		mongo.CodeCappedPositionLost}
	return slices.ContainsFunc(codes, func(code int32) bool { return mongo.IsCode(err, code) })
}

// readError explains an error of the stream after a position. A lost history does not wrap the server's
// error, which may count as temporary.
func readError(addr string, last mongo.OpTime, err error) error {
	const what = "read change stream of %s after %s"
	switch {
	case err == nil:
		return nil
	case tooLarge(err):
		return mongo.WithHint(fmt.Errorf(what+": %w: %s", addr, last, ErrTooLarge, mongo.Brief(err)),
			"the event or the document is larger than 16 MB: make the documents smaller, then start the job again with "+
				"--restart; or upgrade the source to 6.0.9, which splits such events; or capture oplogs")
	case lostCode(err):
		when := last.Time().Format("2006-01-02 15:04:05Z")
		return mongo.WithHint(fmt.Errorf(what+" (%s): %w: %s", addr, last, when, ErrLost, mongo.Brief(err)),
			"restart with a fresh copy (--restart), and give the source a larger oplog (replSetResizeOplog) so that it does not "+
				"happen again; check the address if the source should have these changes")
	case mongo.IsCode(err, mongo.CodeUnauthorized):
		return mongo.WithHint(fmt.Errorf(what+": %w", addr, last, err),
			grantHint)
	}
	return fmt.Errorf(what+": %w", addr, last, err)
}

// tooLarge reports BSONObjectTooLarge, which servers also report by ChangeStreamFatalError.
func tooLarge(err error) bool {
	if mongo.IsCode(err, codeTooLargeEvent) {
		return true
	}
	e, ok := errors.AsType[driver.CommandError](err)
	return ok && e.Code == codeFatal && strings.Contains(e.Message, "BSONObjectTooLarge")
}
