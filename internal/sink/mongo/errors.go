package mongosink

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// ConflictError is a change that the target refuses for good: what the target
// holds is not what the source held.
type ConflictError struct {
	Op     string
	NS     string
	ID     string // extended JSON
	At     mongo.OpTime
	Reason string
	// Index is the unique index and Other the _id of the document that holds
	// the key, in extended JSON, where they are known.
	Index, Other string
	// Doc is the _id and Since the first of the document's events that are not
	// on the target; unset where that is not about one event.
	Doc   bson.RawValue
	Since mongo.OpTime
}

// Error names the operation, namespace, _id, position and reason.
func (c *ConflictError) Error() string {
	return fmt.Sprintf("%s in %s, _id %s, at %s: %s", c.Op, c.NS, c.ID, c.At, c.Reason)
}

func conflict(opName, ns string, o *op, reason string) error {
	return mongo.WithHint(&ConflictError{Op: opName, NS: ns, ID: idString(o.id), At: o.at, Reason: reason, Doc: rawID(o.id), Since: o.first()},
		hintForeign)
}

// first is the position of the first event in the operation.
func (o *op) first() mongo.OpTime { return mongo.OpTime{TS: o.since, Term: o.at.Term} }

func opError(what, ns string, id bsoncore.Value, at mongo.OpTime, err error) error {
	return fmt.Errorf("%s in %s, _id %s, at %s: %w", what, ns, idString(id), at, err)
}

// idString shows an _id as extended JSON, cut to a readable length.
func idString(id bsoncore.Value) string {
	s := bson.RawValue{Type: bson.Type(id.Type), Value: id.Data}.String()
	if len(s) > 200 {
		s = s[:200] + "…"
	}
	return s
}

func (k opKind) String() string {
	switch k {
	case opInsert:
		return "insert"
	case opReplace, opPut:
		return "replace"
	case opUpdate:
		return "update"
	case opDelete, opDeletes:
		return "delete"
	}
	return "operation"
}

// duplicateID is an error as a server words it that names the duplicate _id.
func duplicateID(e wire.WriteError) wire.WriteError {
	e.Code = mongo.CodeDuplicateKey
	key := bsoncore.NewDocumentBuilder().AppendInt32("_id", 1).Build()
	e.Raw = bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32("code", e.Code).AppendDocument("keyPattern", key).AppendString("errmsg", e.Message).Build())
	return e
}

// misfit reports server errors that say an update does not fit the document
// it met, or cannot be written as a classic update; reading the document and
// computing the result here decides which.
func misfit(e wire.WriteError) bool {
	switch e.Code {
	case 2, // BadValue: $push to something that is no array
		9,          // FailedToParse
		14,         // TypeMismatch
		28,         // PathNotViable
		40,         // ConflictingUpdateOperators
		52, 55, 56, // DollarPrefixedFieldName, InvalidDBRef, EmptyFieldName
		57: // DottedFieldName
		return true
	}
	return false
}
