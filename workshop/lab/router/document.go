package router

import (
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
)

// fields are a document's fields at the top level, their values as they are.
func fields(doc []byte) bson.D {
	var d bson.D
	for e, ok := range bsonraw.Fields(doc) {
		if !ok {
			break
		}
		d = append(d, bson.E{Key: string(e.Name), Value: bson.RawValue{Type: e.Type, Value: e.Value}})
	}
	return d
}

// passed are the fields of a server's reply that a client gets.
func passed(reply bsoncore.Document) bson.D {
	return without(fields(reply), "$clusterTime", "operationTime", "lastCommittedOpTime", "$gleStats",
		"$configServerState", "$configTime", "$topologyTime", "electionId", "opTime", "readOnly")
}

func without(d bson.D, names ...string) bson.D {
	return slices.DeleteFunc(slices.Clone(d), func(e bson.E) bool { return slices.Contains(names, e.Key) })
}

// with is a copy of d in which the field of a name has a value.
func with(d bson.D, name string, value any) bson.D {
	d = slices.Clone(d)
	for i := range d {
		if d[i].Key == name {
			d[i].Value = value
			return d
		}
	}
	return append(d, bson.E{Key: name, Value: value})
}

// get is a field's value as it came; the zero value when there is none.
func get(d bson.D, name string) bson.RawValue {
	for _, e := range d {
		if e.Key == name {
			v, _ := e.Value.(bson.RawValue)
			return v
		}
	}
	return bson.RawValue{}
}

// number is an integer of a command, 0 when there is none.
func number(v bson.RawValue) int64 {
	n, _ := v.AsInt64OK()
	return n
}

// truth is a boolean of a command, which may be a number.
func truth(v bson.RawValue) bool {
	if b, ok := v.BooleanOK(); ok {
		return b
	}
	n, ok := v.AsInt64OK()
	return ok && n != 0
}

func text(v bson.RawValue) string {
	s, _ := v.StringValueOK()
	return s
}

func documents(array []byte) []bson.Raw {
	var all []bson.Raw
	for e, ok := range bsonraw.Fields(array) {
		if ok && e.Type == bson.TypeEmbeddedDocument {
			all = append(all, bson.Raw(e.Value))
		}
	}
	return all
}

// listed returns the documents of an array in a document.
func listed(doc bson.Raw, name string) []bson.Raw {
	array, _ := doc.Lookup(name).ArrayOK()
	return documents(array)
}

func valueOf(e bsonraw.Element) bson.RawValue { return bson.RawValue{Type: e.Type, Value: e.Value} }

func emptyDocument() bson.Raw { return bson.Raw{5, 0, 0, 0, 0} }

func rawValue(v any) bson.RawValue {
	t, data, err := bson.MarshalValue(v)
	if err != nil {
		return bson.RawValue{}
	}
	return bson.RawValue{Type: t, Value: data}
}

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

// isStale reports a code that says that the routing table is old, or that the shard's own is.
func isStale(code int32) bool {
	return code == codeStaleConfig || code == codeStaleShardVersion || code == codeStaleDb
}

// isPassing reports an error that another try may not meet: no primary or connection. The command may have been done.
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
	d := bson.D{{Key: "ok", Value: 0.0}, {Key: "errmsg", Value: e.msg}, {Key: "code", Value: e.code},
		{Key: "codeName", Value: e.name}}
	if len(e.labels) > 0 {
		d = append(d, bson.E{Key: "errorLabels", Value: e.labels})
	}
	return d
}
