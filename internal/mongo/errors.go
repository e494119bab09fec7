package mongo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/wire"
)

// Class says what an error means for a running job.
type Class int

const (
	// ClassFatal errors end the job: the operator has to act.
	ClassFatal Class = iota
	// ClassRetry errors pass by themselves: an election, a cut, a killed
	// cursor, or a full disk when somebody frees it.
	ClassRetry
	// ClassDuplicate is a duplicate key.
	ClassDuplicate
	// ClassGone is a missing collection, index or database.
	ClassGone
	// ClassExists is a collection, view or index that is there already.
	ClassExists
	// ClassCanceled is our own context ending.
	ClassCanceled
)

// String names the class for logs, status and metrics.
func (c Class) String() string {
	return [...]string{"fatal", "retry", "duplicate", "gone", "exists", "canceled"}[c]
}

// Server error codes that millrace acts upon (MongoDB manual, "Error Codes").
const (
	CodeUnauthorized         = 13
	CodeNamespaceNotFound    = 26
	CodeIndexNotFound        = 27
	CodeNamespaceExists      = 48
	CodeDocumentValidation   = 121
	CodeCappedPositionLost   = 136
	CodeIndexOptionsConflict = 85
	CodeIndexKeySpecsClash   = 86
	CodeQueryPlanKilled      = 175
	CodeDuplicateKey         = 11000
	// CodeSampleFailed is $sample's: its random cursor went on meeting the same
	// documents. Trying again helps mostly, as the message says.
	CodeSampleFailed = 28799

	// codeNotAView is 5.0's answer to a view where a collection has the name.
	codeNotAView = 17399
	// What $collStats says of a collection that is gone, up to 4.4.
	codeNoStorageStats = 40280
	codeNoCount        = 40481
)

// unindexable knows the codes by which servers (4.2 to 6.0, tried) say that a
// document's values do not fit an index: parallel arrays, an array in a text
// index's other field, geometry, an array in a hashed one, languages, numbers as
// field names, and keys too large for servers before 4.2.
func unindexable(code int32) bool {
	switch code {
	case 171, 201, 13026, 13027, 13068, 16746, 16755, 16766, 17261, 17262, 17280:
		return true
	}
	return false
}

// Unindexable reports that an index does not take a document, or was not built
// because of one.
func Unindexable(err error) bool {
	code, _, _ := answer(err)
	return unindexable(code)
}

// passesByItself knows the codes of elections, shutdowns, killed cursors and
// operations, full queues, lock and snapshot time-outs.
func passesByItself(code int32) bool {
	switch code {
	case 6, 7, 43, 50, 64, 89, 91, 112, 134, 136, 175, 189, 202, 237, 239, 246, 251, 262,
		290, 317, 384, 9001, 10058, 10107, 11600, 11601, 11602, 13435, 13436:
		return true
	}
	return false
}

// diskFull reports that a server's disk has no room for what a command writes or
// makes, such as the files of a collection; it has again when somebody frees
// some. A write may fail with the operating system's number for it as the code,
// which is PathNotViable otherwise (observed with 6.0); the texts of that end
// with a value in braces.
func diskFull(code int32, message string) bool {
	const unknownError, enospc, outOfDiskSpace = 8, 28, 14031
	const text = "No space left on device"
	switch code {
	case outOfDiskSpace:
		return true
	case unknownError:
		return strings.Contains(message, text)
	case enospc:
		return strings.HasSuffix(message, text)
	}
	return false
}

// Retryable is an error that passes by itself by millrace's own judgement. What
// a server said, if it said anything, is its Cause.
type Retryable struct {
	Message string
	Cause   error // may be nil
}

// Retry makes a Retryable. cause may be nil, and hint empty.
func Retry(message string, cause error, hint string) error {
	return WithHint(&Retryable{Message: message, Cause: cause}, hint)
}

// Error is the message and the cause.
func (r *Retryable) Error() string {
	if r.Cause == nil {
		return r.Message
	}
	return r.Message + ": " + r.Cause.Error()
}

// Unwrap gives the cause.
func (r *Retryable) Unwrap() error { return r.Cause }

// Interrupted is the error of a write command that was answered, but cut short
// by what passes by itself, such as an election in its middle or a full disk: the
// server reports that as an error of one of the writes, or as one of the write
// concern. It is of ClassRetry; nil means that the reply stands as it is.
func Interrupted(res wire.WriteResult) error {
	for _, e := range res.Errors {
		if Classify(e) == ClassRetry {
			return e
		}
	}
	if len(res.ConcernError) == 0 {
		return nil
	}
	code, _ := res.ConcernError.Lookup("code").AsInt64OK()
	text, _ := res.ConcernError.Lookup("errmsg").StringValueOK()
	return Retry("write concern", wire.WriteError{Code: int32(code), Message: text, Raw: res.ConcernError}, "")
}

// answer is what a server said in err: of a command as a whole, or of one write.
func answer(err error) (code int32, message string, ok bool) {
	var we wire.WriteError
	if errors.As(err, &we) {
		return we.Code, we.Message, true
	}
	var ce driver.CommandError
	if errors.As(err, &ce) {
		return ce.Code, ce.Message, true
	}
	return 0, "", false
}

// Classify reports what err means. Errors of the driver's API and of package
// wire are both understood; nil is not to be passed.
func Classify(err error) Class {
	if errors.Is(err, context.Canceled) {
		return ClassCanceled
	}
	var own *Retryable
	if errors.As(err, &own) {
		return ClassRetry
	}
	var we driver.WriteException
	if errors.As(err, &we) {
		return classifyWrites(we.WriteErrors, we.WriteConcernError)
	}
	var be driver.BulkWriteException
	if errors.As(err, &be) {
		all := make(driver.WriteErrors, len(be.WriteErrors))
		for i, e := range be.WriteErrors {
			all[i] = e.WriteError
		}
		return classifyWrites(all, be.WriteConcernError)
	}
	var ce driver.CommandError
	if errors.As(err, &ce) && (ce.HasErrorLabel("NetworkError") || ce.HasErrorLabel("RetryableWriteError") || ce.HasErrorLabel("TransientTransactionError")) {
		return ClassRetry
	}
	if code, message, ok := answer(err); ok {
		return classifyCode(code, message)
	}
	var ne net.Error
	if driver.IsNetworkError(err) || driver.IsTimeout(err) || errors.As(err, &ne) || errors.Is(err, context.DeadlineExceeded) {
		return ClassRetry
	}
	return ClassFatal
}

// classifyWrites goes by the first of the errors.
func classifyWrites(failed driver.WriteErrors, concern *driver.WriteConcernError) Class {
	for _, e := range failed {
		return classifyCode(int32(e.Code), e.Message)
	}
	if concern != nil {
		return ClassRetry // the writes stand; their durability is asked again
	}
	return ClassFatal
}

func classifyCode(code int32, message string) Class {
	switch code {
	case CodeDuplicateKey:
		return ClassDuplicate
	case CodeNamespaceNotFound, CodeIndexNotFound, codeNoStorageStats, codeNoCount:
		return ClassGone
	case CodeNamespaceExists, codeNotAView:
		return ClassExists
	}
	if passesByItself(code) || diskFull(code, message) {
		return ClassRetry
	}
	return ClassFatal
}

// IsCode reports whether err is the server's error with the given code.
func IsCode(err error, code int32) bool {
	if said, _, ok := answer(err); ok {
		return said == code
	}
	var se driver.ServerError
	return errors.As(err, &se) && se.HasErrorCode(int(code))
}

// Hint attaches what the operator can do to an error. It is printed after the
// error's text.
type Hint struct {
	Err  error
	Text string
}

// Wrap says before an error what failed; nil stays nil.
func Wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}

// WithHint wraps err with an operator's hint; nil stays nil, and no hint adds
// nothing.
func WithHint(err error, text string) error {
	if err == nil || text == "" {
		return err
	}
	return &Hint{Err: err, Text: text}
}

// Error is the wrapped error's text; the hint is read with HintOf.
func (h *Hint) Error() string { return h.Err.Error() }

// Unwrap gives the wrapped error.
func (h *Hint) Unwrap() error { return h.Err }

// HintOf returns the innermost hint on err, or "".
func HintOf(err error) string {
	var h *Hint
	if !errors.As(err, &h) {
		return ""
	}
	if inner := HintOf(h.Err); inner != "" {
		return inner
	}
	return h.Text
}
