package docwrite

import (
	"errors"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// Meaning classifies a server's error about one write.
type Meaning uint8

// The meanings.
const (
	// Fatal concerns the command, the user or the server, and ends the job.
	Fatal Meaning = iota
	// Interrupted is temporary: an election, a full disk (mongo.Interrupted).
	Interrupted
	// NoDelete: servers up to 5.0 delete nothing from capped collections.
	NoDelete
	// DuplicateID: the target has a document with the _id.
	DuplicateID
	// DuplicateKey: another document has a key of a unique index (see ParseDuplicate).
	DuplicateKey
	// OtherID: the document has an _id in other bytes that the server takes as equal; no update changes
	// them.
	OtherID
	// Misfit: an update does not fit the document, or is no classic update. Read the document and apply
	// the update here. A complete document is refused.
	Misfit
	// Refused: the server, or an index, does not store the document: names, depth, size, values.
	Refused
)

// Server error codes of writes (MongoDB manual, "Error Codes").
const (
	codeIllegalOperation = 20
	codeDollarField      = 52
	codeImmutableField   = 66
)

// Of classifies a write error. Codes of the server's or the user's state never concern the document.
func Of(e wire.WriteError) Meaning {
	if mongo.Classify(e) == mongo.ClassRetry {
		return Interrupted
	}
	switch e.Code {
	case mongo.CodeDuplicateKey:
		if e.OnIDIndex() {
			return DuplicateID
		}
		return DuplicateKey
	case codeIllegalOperation:
		return NoDelete
	case codeImmutableField:
		return OtherID
	case 2, // BadValue: $push to something that is no array
		9,                           // FailedToParse
		14,                          // TypeMismatch
		28,                          // PathNotViable
		40,                          // ConflictingUpdateOperators
		codeDollarField, 55, 56, 57: // InvalidDBRef, EmptyFieldName, DottedFieldName
		return Misfit
	case 15, 53, 54, mongo.CodeDocumentValidation, 10334, 17419, 17420:
		return Refused
	}
	if mongo.Unindexable(e) {
		return Refused
	}
	return Fatal
}

// OfDocument reports an error about the document, or what the target holds.
func (m Meaning) OfDocument() bool { return m >= DuplicateID }

// Unclear reports an error that may be a duplicate _id: look up the _id. A 6.0 server fails to name an
// _id of a clustered collection that is NaN, infinite, very large or very small.
func Unclear(e wire.WriteError) bool {
	if strings.HasPrefix(e.Message, "KeyString format error") {
		return true
	}
	_, err := e.Raw.LookupErr("keyPattern")
	return e.Code == mongo.CodeDuplicateKey && err != nil
}

// AsDuplicateID turns an Unclear error into that of a duplicate _id, with the server's message.
func AsDuplicateID(e wire.WriteError) wire.WriteError {
	e.Code = mongo.CodeDuplicateKey
	key := bsoncore.NewDocumentBuilder().AppendInt32("_id", 1).Build()
	e.Raw = bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32("code", e.Code).AppendDocument("keyPattern", key).
		AppendString("errmsg", e.Message).Build())
	return e
}

// Answer returns the server's answer to a write from an error of the driver. ok is false for a
// transient error, and for one that no server sent.
func Answer(err error) (e wire.WriteError, ok bool) {
	if err == nil || mongo.Classify(err) == mongo.ClassRetry {
		return e, false
	}
	var le driver.LabeledError
	if errors.As(err, &le) && le.HasErrorLabel("TransientTransactionError") {
		return e, false
	}
	var we driver.WriteException
	if errors.As(err, &we) && len(we.WriteErrors) > 0 {
		first := we.WriteErrors[0]
		return wire.WriteError{Code: int32(first.Code), Message: first.Message, Raw: first.Raw}, true
	}
	var ce driver.CommandError
	if errors.As(err, &ce) {
		return wire.WriteError{Code: ce.Code, Message: ce.Message, Raw: ce.Raw}, true
	}
	return e, false
}

// Hint is what an operator can do about a refused document, or "".
func Hint(e wire.WriteError) string {
	switch m := Of(e); {
	case m == DuplicateKey || m == DuplicateID:
		return "the target has a unique index that the document conflicts with; " +
			"remove the conflicting document or the index from the target"
	case e.Code == codeDollarField:
		return "the target's version does not store this field name; use a target of the source's version or newer"
	case m.OfDocument():
		return HintRefused
	}
	return ""
}

// HintRefused is for a document that the target does not store.
const HintRefused = "the target's indexes or version do not take the document: change the index, " +
	"or go on without it with --on-conflict skip"
