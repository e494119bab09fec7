package mongo

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"

	driver "go.mongodb.org/mongo-driver/v2/mongo"
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

// RefusesDocument knows the codes by which a server says that it does not store
// a document, or not with the indexes that it has: names, depth, size, values
// that cannot be indexed. Codes of the server's or the user's state are not
// among them.
func RefusesDocument(code int32) bool {
	switch code {
	case 2, 9, 14, 15, 28, 40, 52, 53, 54, 55, 56, 57, 66, CodeDocumentValidation, 10334, 17419, 17420:
		return true
	}
	return unindexable(code)
}

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

// Unindexable reports that an index was not built because of a document.
func Unindexable(err error) bool {
	var ce driver.CommandError
	return errors.As(err, &ce) && unindexable(ce.Code)
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

// Classify tells what err means. Errors of the driver's API and of package
// wire are both understood; nil is not to be passed.
func Classify(err error) Class {
	if errors.Is(err, context.Canceled) {
		return ClassCanceled
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
	if errors.As(err, &ce) {
		if slices.Contains(ce.Labels, "NetworkError") || slices.Contains(ce.Labels, "RetryableWriteError") ||
			slices.Contains(ce.Labels, "TransientTransactionError") {
			return ClassRetry
		}
		return classifyCode(ce.Code, ce.Message)
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
	var ce driver.CommandError
	if errors.As(err, &ce) {
		return ce.Code == code
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

// WithHint wraps err with an operator's hint; nil stays nil.
func WithHint(err error, text string) error {
	if err == nil {
		return nil
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
