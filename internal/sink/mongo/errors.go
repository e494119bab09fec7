package mongosink

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
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
	return mongo.WithHint(&ConflictError{Op: opName, NS: ns, ID: bsonraw.IDText(o.id), At: o.at, Reason: reason, Doc: bsonraw.RawValue(o.id), Since: o.first()},
		hintForeign)
}

// first is the position of the first event in the operation.
func (o *op) first() mongo.OpTime { return mongo.OpTime{TS: o.since, Term: o.at.Term} }

func opError(what, ns string, id bsoncore.Value, at mongo.OpTime, err error) error {
	return fmt.Errorf("%s in %s, _id %s, at %s: %w", what, ns, bsonraw.IDText(id), at, err)
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
