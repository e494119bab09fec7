package mongo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"

	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/wire"
)

// Class says what an error means for a running job.
type Class string

const (
	// ClassFatal errors end the job: an operator has to act.
	ClassFatal Class = "fatal"
	// ClassRetry errors pass by themselves (an election, a killed cursor) or when somebody acts (a full disk,
	// blocked writes).
	ClassRetry Class = "retry"
	// ClassDuplicate is a duplicate key.
	ClassDuplicate Class = "duplicate"
	// ClassGone is a missing collection, index or database.
	ClassGone Class = "gone"
	// ClassExists is a collection, view or index that is there already.
	ClassExists Class = "exists"
	// ClassCanceled is our own context ending.
	ClassCanceled Class = "canceled"
)

// Server error codes that millrace acts upon (MongoDB manual, "Error Codes").
const (
	CodeUnauthorized         = 13
	CodeBadValue             = 2
	CodeNamespaceNotFound    = 26
	CodeIndexNotFound        = 27
	CodeNamespaceExists      = 48
	CodeDocumentValidation   = 121
	CodeCappedPositionLost   = 136
	CodeCannotCreateIndex    = 67
	CodeInvalidOptions       = 72
	CodeIndexOptionsConflict = 85
	CodeIndexKeySpecsClash   = 86
	CodeQueryPlanKilled      = 175
	codeSnapshotTooOld       = 239 // the time that is read as of is too long ago
	codeSnapshotUnavailable  = 246 // likewise, or what is read is newer
	CodeCannotMakeUnique     = 359 // of collMod: documents have a key in common
	CodeShardKeyIndex        = 373 // the only one cannot be dropped
	CodeDuplicateKey         = 11000
	CodeInvalidView          = 182 // of the database's view catalog as it is
	CodeDatabaseDifferCase   = 13297
	// CodeSampleFailed: the random cursor of $sample met the same documents repeatedly. A retry mostly helps.
	CodeSampleFailed = 28799

	codeUserWritesBlocked = 371

	// The server is overloaded. A document that does not fit into the cache now may fit later: whether 6.0 calls
	// a document of 16 MB too large depends on other content.
	codeTemporarilyUnavailable = 365
	codeTooLargeForCache       = 388
	codeTooManyRequests        = 462
	codeTooManyOperations      = 463
	codeOverload               = 473

	codeNotAView       = 17399
	codeNoStorageStats = 40280
	codeNoCount        = 40481
)

// Unindexable reports an index that refuses a document. Servers (4.2 to 6.0, tried) refuse parallel arrays, and arrays
// in a hashed field or a text index's other field. They also refuse geometry, languages, numbers as field names and,
// before 4.2, keys that are too large.
func Unindexable(err error) bool {
	code, _, _ := answer(err)
	return slices.Contains([]int32{171, 201, 13026, 13027, 13068, 16746, 16755, 16766, 17261, 17262, 17280}, code)
}

// diskFull reports that a server's disk is full. A failed write may have the operating system's error number as its
// code, which otherwise is PathNotViable (observed with 6.0); messages of that end with a value in braces.
func diskFull(code int32, message string) bool {
	const unknownError, enospc, outOfDiskSpace = 8, 28, 14031
	const text = "No space left on device"
	return code == outOfDiskSpace || code == unknownError && strings.Contains(message, text) ||
		code == enospc && strings.HasSuffix(message, text)
}

// Retryable is an error that millrace itself considers transient.
type Retryable struct {
	Message string
	Cause   error // may be nil
}

// Retry returns a Retryable. cause may be nil, and hint empty.
func Retry(message string, cause error, hint string) error {
	return WithHint(&Retryable{Message: message, Cause: cause}, hint)
}

func (r *Retryable) Error() string {
	if r.Cause == nil {
		return r.Message
	}
	return r.Message + ": " + r.Cause.Error()
}

func (r *Retryable) Unwrap() error { return r.Cause }

// Interrupted returns a transient error in the reply to a write command, such as an election or a full disk, of one
// of the writes or of the write concern. It is of ClassRetry. Nil means that the reply is valid.
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

// answer returns the server's error of a command, or of the first write that failed.
func answer(err error) (code int32, message string, ok bool) {
	if e, ok := errors.AsType[wire.WriteError](err); ok {
		return e.Code, e.Message, true
	}
	if e, ok := errors.AsType[driver.WriteException](err); ok && len(e.WriteErrors) > 0 {
		return int32(e.WriteErrors[0].Code), e.WriteErrors[0].Message, true
	}
	if e, ok := errors.AsType[driver.BulkWriteException](err); ok && len(e.WriteErrors) > 0 {
		return int32(e.WriteErrors[0].Code), e.WriteErrors[0].Message, true
	}
	e, ok := errors.AsType[driver.CommandError](err)
	return e.Code, e.Message, ok
}

// Reported reports an error that a server returned.
func Reported(err error) bool {
	_, _, ok := answer(err)
	return ok
}

// Forgotten reports that a server cannot read as of a time: that is too old, or before what is read. Another time
// may work.
func Forgotten(err error) bool {
	return IsCode(err, codeSnapshotTooOld) || IsCode(err, codeSnapshotUnavailable)
}

// Classify returns the class of an error of the driver's API or of package wire, which must not be nil.
func Classify(err error) Class {
	if errors.Is(err, context.Canceled) {
		return ClassCanceled
	}
	if _, ok := errors.AsType[*Retryable](err); ok {
		return ClassRetry
	}
	passing := []string{"NetworkError", "RetryableWriteError", "RetryableError", "TransientTransactionError"}
	if e, ok := errors.AsType[driver.CommandError](err); ok && slices.ContainsFunc(passing, e.HasErrorLabel) {
		return ClassRetry
	}
	if code, message, ok := answer(err); ok {
		return classifyCode(code, message)
	}
	write, _ := errors.AsType[driver.WriteException](err)
	bulk, _ := errors.AsType[driver.BulkWriteException](err)
	if write.WriteConcernError != nil || bulk.WriteConcernError != nil {
		return ClassRetry // the writes stand; their durability is asked again
	}
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return ClassFatal // a file of this machine, whose error number looks like one of a network
	}
	_, broken := errors.AsType[net.Error](err)
	if pool, ok := errors.AsType[poolError](err); ok && pool.Retryable() {
		return ClassRetry // another operation met the failure; this one was not begun
	}
	if broken || driver.IsNetworkError(err) || driver.IsTimeout(err) || errors.Is(err, context.DeadlineExceeded) {
		return ClassRetry
	}
	return ClassFatal
}

// poolError is the driver's error for callers that wait for a connection when another one fails. Its type is private.
type poolError interface {
	error
	Retryable() bool
}

func classifyCode(code int32, message string) Class {
	switch code {
	case CodeDuplicateKey:
		return ClassDuplicate
	case CodeNamespaceNotFound, CodeIndexNotFound, codeNoStorageStats, codeNoCount:
		return ClassGone
	case CodeNamespaceExists, codeNotAView:
		return ClassExists
	// Elections, shutdowns, killed cursors and operations, full queues, time-outs of locks and snapshots;
	// 82 (NoProgressMade) of a router whose chunks keep moving.
	case 6, 7, 24, 43, 46, 50, 64, 82, 89, 90, 91, 112, 133, 134, 136, 145, 175, 189, 202, 211, 215, 216, 237, 239, 246,
		251, 262,
		267, 279, 285, 290, 317, 343, 355, 384, 9001, 10058, 10107, 11600, 11601, 11602, 13435, 13436:
		return ClassRetry
	case codeUserWritesBlocked, codeTemporarilyUnavailable, codeTooLargeForCache, codeTooManyRequests,
		codeTooManyOperations, codeOverload:
		return ClassRetry
	}
	if diskFull(code, message) {
		return ClassRetry
	}
	return ClassFatal
}

// IsCode reports whether err is the server's error with the given code.
func IsCode(err error, code int32) bool {
	if e, ok := errors.AsType[wire.WriteError](err); ok {
		return e.Code == code
	}
	e, ok := errors.AsType[driver.ServerError](err)
	return ok && e.HasErrorCode(int(code))
}

// Hint attaches what an operator can do to an error.
type Hint struct {
	Err  error
	Text string
}

// Wrap prefixes an error with what failed; nil stays nil.
func Wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}

// NeedsRole adds a hint to an error about missing privileges, and returns any other as it is.
func NeedsRole(err error, hint string) error {
	if !IsCode(err, CodeUnauthorized) {
		return err
	}
	return WithHint(err, hint)
}

// RefusedDirectly reports a member of a sharded cluster of 8.0 or newer that refuses a command to a client that is
// not a router.
func RefusedDirectly(err error) bool {
	code, message, _ := answer(err)
	return code == CodeUnauthorized && strings.Contains(message, "connecting directly to a shard")
}

// WithHint adds a hint to err; a nil err stays nil, and "" adds nothing.
func WithHint(err error, text string) error {
	if err == nil || text == "" {
		return err
	}
	return &Hint{Err: err, Text: text}
}

func (h *Hint) Error() string { return h.Err.Error() }

func (h *Hint) Unwrap() error { return h.Err }

// HintOf returns the innermost hint on err, or that of the server's error code, or "".
func HintOf(err error) (text string) {
	if RefusedDirectly(err) { // the hints of callers name other roles
		return "grant the role directShardOperations on admin to the user on each shard, or read through the routers " +
			"with --via routers"
	}
	if err != nil && IsCode(err, codeUserWritesBlocked) {
		text = "turn it off there: setUserWriteBlockMode with global: false; or grant this user the action " +
			"bypassWriteBlockingMode"
	}
	for h, ok := errors.AsType[*Hint](err); ok; h, ok = errors.AsType[*Hint](h.Err) {
		text = h.Text
	}
	return text
}

// Brief returns an error's text, without the driver's description of all servers, and else as [Concise] does.
func Brief(err error) string {
	text := err.Error()
	if none, ok := wire.UnsuitableServers(err); ok {
		text = strings.Replace(text, none.Text, whyNone(none.Servers), 1)
	}
	// The driver begins a command's error with a blank.
	return Concise(strings.ReplaceAll(strings.TrimSpace(text), ":  ", ": "))
}

// Concise shortens commands that a server quotes to their first field. Such a command has its session, its cluster
// time or its database.
func Concise(text string) string {
	var b strings.Builder
	for {
		open := strings.IndexByte(text, '{')
		if open < 0 {
			break
		}
		end := closing(text[open:])
		if end < 0 {
			break
		}
		doc := text[open : open+end]
		if strings.Contains(doc, `, $db: "`) || strings.Contains(doc, ", lsid: ") ||
			strings.Contains(doc, ", $clusterTime: ") {
			first, _, _ := strings.Cut(doc, ",")
			b.WriteString(text[:open] + first + ", … }")
			text = text[open+end:]
			continue
		}
		b.WriteString(text[:open+1])
		text = text[open+1:]
	}
	return b.String() + text
}

// closing returns where the brace that text begins with is closed, -1 for nowhere. Braces in strings do not count.
func closing(text string) int {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{':
			depth++
		case c == '}':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return -1
}
