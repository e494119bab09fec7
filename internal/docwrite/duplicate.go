package docwrite

import (
	"context"
	"errors"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// Duplicate is a server's report of a duplicate key.
type Duplicate struct {
	Pattern bson.Raw // of the index
	Value   bson.Raw // the duplicate
	// collated: text in Value is a sort key of the index's collation.
	collated bool
	message  string
}

func ParseDuplicate(raw bson.Raw) Duplicate {
	var d Duplicate
	d.Pattern, _ = raw.Lookup("keyPattern").DocumentOK()
	d.Value, _ = raw.Lookup("keyValue").DocumentOK()
	d.message, _ = raw.Lookup("errmsg").StringValueOK()
	_, d.collated = raw.Lookup("collation").DocumentOK()
	d.collated = d.collated || strings.Contains(d.message, " collation: {")
	return d
}

// Index is the name of the index in the server's message, or "".
func (d Duplicate) Index() string {
	_, rest, ok := strings.Cut(d.message, " index: ")
	if !ok {
		return ""
	}
	for _, end := range []string{" collation: ", " dup key: "} {
		if i := strings.Index(rest, end); i >= 0 {
			rest = rest[:i]
		}
	}
	return rest
}

// Holding selects documents of a target namespace with a duplicate key.
type Holding struct {
	NS string
	// Doc is a document with the key, which servers do not return readable under a collation. With a
	// collation and without Doc, none are found.
	Doc []byte
	// Spec is the index's specification if the target does not have it yet.
	Spec   bson.Raw
	Except *bsonraw.ID // a document to ignore
	Most   int64
}

// Holders returns the documents with the key.
func (d Duplicate) Holders(ctx context.Context, c *mongo.Cluster, h Holding) ([]bson.Raw, error) {
	if len(d.Pattern) == 0 || len(d.Value) == 0 {
		return nil, nil
	}
	spec := h.Spec
	if spec == nil {
		var err error
		if spec, err = findIndex(ctx, c, h.NS, d); err != nil {
			return nil, err
		}
	}
	if _, ok := spec.Lookup("collation").DocumentOK(); ok {
		d.collated = true // 4.2 does not say so
	}
	filter, ok := keyFilter(d, h.Doc)
	if !ok {
		return nil, nil
	}
	and := bson.A{filter}
	if p, ok := spec.Lookup("partialFilterExpression").DocumentOK(); ok {
		and = append(and, p)
	}
	if sparse, ok := spec.Lookup("sparse").BooleanOK(); ok && sparse {
		and = append(and, anyExists(d.Pattern))
	}
	if h.Except != nil {
		and = append(and, bson.D{{Key: "_id", Value: bson.D{{Key: "$ne", Value: bsonraw.RawValue(*h.Except)}}}})
	}
	db, name := mongo.SplitNS(h.NS)
	var collation any = bson.D{{Key: "locale", Value: "simple"}}
	if c, ok := spec.Lookup("collation").DocumentOK(); ok {
		collation = c
	}
	return mongo.ReadAll[bson.Raw](ctx, "find what holds a key of %s", h.NS)(c.Client.Database(db).RunCommandCursor(ctx,
		bson.D{{Key: "find", Value: name}, {Key: "filter", Value: bson.D{{Key: "$and", Value: and}}},
			{Key: "limit", Value: h.Most}, {Key: "collation", Value: collation}}))
}

// findIndex returns the index's specification, empty if it is missing because its build failed.
func findIndex(ctx context.Context, c *mongo.Cluster, ns string, d Duplicate) (bson.Raw, error) {
	db, name := mongo.SplitNS(ns)
	all, err := mongo.ReadAll[bson.Raw](ctx, "list indexes of %s", ns)(
		c.Client.Database(db).Collection(name).Indexes().List(ctx))
	if err != nil {
		return nil, err
	}
	for _, spec := range all {
		if n, _ := spec.Lookup("name").StringValueOK(); n == d.Index() {
			return spec, nil
		}
	}
	return bson.Raw(bsoncore.NewDocumentBuilder().Build()), nil
}

// keyFilter matches documents with the key. As in the index, equality also matches array elements.
func keyFilter(d Duplicate, doc []byte) (bson.D, bool) {
	filter := bson.D{}
	elems, err := d.Value.Elements()
	if err != nil {
		return nil, false
	}
	for _, e := range elems {
		v := e.Value()
		if d.collated {
			var ok bool
			if v, ok = plainValue(doc, e.Key()); !ok {
				return nil, false
			}
		}
		filter = append(filter, bson.E{Key: e.Key(), Value: bson.D{{Key: "$eq", Value: v}}})
	}
	return filter, len(filter) > 0
}

// plainValue is the value at a path without arrays; absent is null, as in an index.
func plainValue(doc []byte, path string) (bson.RawValue, bool) {
	if len(doc) == 0 {
		return bson.RawValue{}, false
	}
	v, err := bson.Raw(doc).LookupErr(strings.Split(path, ".")...)
	if err != nil {
		return bson.RawValue{Type: bson.TypeNull}, true
	}
	return v, v.Type != bson.TypeArray
}

func anyExists(pattern bson.Raw) bson.D {
	or := bson.A{}
	elems, _ := pattern.Elements()
	for _, e := range elems {
		or = append(or, bson.D{{Key: e.Key(), Value: bson.D{{Key: "$exists", Value: true}}}})
	}
	return bson.D{{Key: "$or", Value: or}}
}

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
	if le, ok := errors.AsType[driver.LabeledError](err); ok && le.HasErrorLabel("TransientTransactionError") {
		return e, false
	}
	if we, ok := errors.AsType[driver.WriteException](err); ok && len(we.WriteErrors) > 0 {
		first := we.WriteErrors[0]
		return wire.WriteError{Code: int32(first.Code), Message: first.Message, Raw: first.Raw}, true
	}
	if ce, ok := errors.AsType[driver.CommandError](err); ok {
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
