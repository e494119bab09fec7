package router

import (
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Error codes are those that servers send (server manual, error codes).
const (
	codeFailedToParse     = 9
	codeNamespaceNotFound = 26
	codeCursorNotFound    = 43
	codeShardKeyNotFound  = 61
	codeStaleShardVersion = 63
	codeInvalidOptions    = 72
	codeOwningShard       = 283
	codeDuplicateKey      = 11000
	codeInterrupted       = 11601
	codeStaleConfig       = 13388
	codeStaleDb           = 249
	codeUnsupported       = 238 // NotImplemented
)

// cmdError is an error that a client gets as a reply.
type cmdError struct {
	code   int32
	name   string
	msg    string
	labels []string
}

func (e *cmdError) Error() string { return fmt.Sprintf("%s (%s, code %d)", e.msg, e.name, e.code) }

// fail makes an error of a server's code and name.
func fail(code int32, name, format string, args ...any) *cmdError {
	return &cmdError{code: code, name: name, msg: fmt.Sprintf(format, args...)}
}

// unsupported is what the router says to what it does not do.
func unsupported(what string) *cmdError {
	return fail(codeUnsupported, "NotImplemented", "%s: not supported by the lab's router", what)
}

// rawOf is the reply that made an error, nil when there was none.
func rawOf(err error) bson.Raw {
	if e, ok := errors.AsType[mongo.CommandError](err); ok {
		return e.Raw
	}
	return nil
}

// codeOf is a server's error code, 0 when a server did not answer.
func codeOf(err error) int32 {
	if e, ok := errors.AsType[mongo.CommandError](err); ok {
		return e.Code
	}
	if e, ok := errors.AsType[*cmdError](err); ok {
		return e.code
	}
	return 0
}

// isStale reports a code that says that the routing table is old, or that the
// shard's own is.
func isStale(code int32) bool {
	return code == codeStaleConfig || code == codeStaleShardVersion || code == codeStaleDb
}

// isPassing reports an error that another try may not meet: no primary, or no
// connection. A command that may have been done must not be sent again for it
// unless it may be done twice.
func isPassing(err error) bool {
	e, ok := errors.AsType[mongo.CommandError](err)
	if !ok {
		return false
	}
	switch e.Code {
	case 0: // the connection broke
		return e.HasErrorLabel("NetworkError")
	case 91, 189, 10107, 11600, 11602, 13435, 13436: // shutdown, step-down, no primary
		return true
	}
	return false
}

// errorReply is the reply that tells an error.
func errorReply(err error) bson.D {
	if raw := rawOf(err); len(raw) > 0 {
		return passed(bsoncore.Document(raw))
	}
	e, ok := errors.AsType[*cmdError](err)
	if !ok {
		e = fail(6, "HostUnreachable", "%v", err)
	}
	d := bson.D{{Key: "ok", Value: 0.0}, {Key: "errmsg", Value: e.msg}, {Key: "code", Value: e.code}, {Key: "codeName", Value: e.name}}
	if len(e.labels) > 0 {
		d = append(d, bson.E{Key: "errorLabels", Value: e.labels})
	}
	return d
}
