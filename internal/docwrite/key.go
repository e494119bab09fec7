package docwrite

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/shardkey"
)

// Key is what statements have to contain of a collection's shard key besides the _id. The zero Key is
// for collections that are not sharded, or by _id alone.
//
// Each shard keeps only its own _ids unique, so a writer of a complete document ensures that no other
// shard has it.
type Key struct {
	paths  []string
	fields [][]string // the top-level field of each
	// simple: statements need the simple collation, as the collection has another one.
	simple bool
}

// KeyOf returns the Key of a collection with a shard key pattern, nil for none.
func KeyOf(pattern bson.Raw, collated bool) (k Key) {
	for _, f := range shardkey.Parse(pattern) {
		top, _, _ := strings.Cut(f.Path, ".")
		k.paths, k.fields = append(k.paths, f.Path), append(k.fields, []string{top})
	}
	if len(k.paths) == 1 && k.paths[0] == "_id" && !collated {
		return Key{}
	}
	k.simple = collated && len(k.paths) > 0
	return k
}

// IsZero reports that the _id suffices.
func (k Key) IsZero() bool { return len(k.paths) == 0 }

// Touched reports that an update may change a field of the key.
func (k Key) Touched(d delta.Delta) bool {
	return slices.ContainsFunc(k.fields, func(field []string) bool { return d.Touches(field...) })
}

func value(doc []byte, path string) bsoncore.Value {
	v, _ := shardkey.Lookup(doc, path)
	if v.Type == 0 {
		return bsoncore.Value{Type: bsoncore.TypeNull}
	}
	return bsonraw.FromRaw(v)
}

func known(documentKey []byte, path string) (bsoncore.Value, bool) {
	e, ok := bsonraw.Field(documentKey, path)
	return bsoncore.Value{Type: bsoncore.Type(e.Type), Data: e.Value}, ok
}

// appendEqual appends path: {$eq: v}, as a server takes an object with a dollar for an operator.
func appendEqual(dst []byte, path string, v bsoncore.Value) []byte {
	i, dst := bsoncore.AppendDocumentElementStart(dst, path)
	return bsonraw.Close(bsoncore.AppendValueElement(dst, "$eq", v), i)
}

// AppendEquals appends the key of a document to a query that has the _id.
func (k Key) AppendEquals(dst, doc []byte) []byte {
	for _, p := range k.paths {
		if p != "_id" {
			dst = appendEqual(dst, p, value(doc, p))
		}
	}
	return dst
}

// AppendCollation appends the collation of a statement, if necessary.
func (k Key) AppendCollation(dst []byte) []byte {
	if !k.simple {
		return dst
	}
	i, dst := bsoncore.AppendDocumentElementStart(dst, "collation")
	return bsonraw.Close(bsoncore.AppendStringElement(dst, "locale", "simple"), i)
}

// Of returns the document key of an oplog entry, with dotted names, if it has all fields of the key,
// else nil.
func (k Key) Of(documentKey []byte) []byte {
	if len(k.paths) == 0 || len(documentKey) == 0 {
		return nil
	}
	for _, p := range k.paths {
		if _, ok := bsonraw.Field(documentKey, p); !ok {
			return nil
		}
	}
	return documentKey
}

// AppendKnown is AppendEquals for a result of Of.
func (k Key) AppendKnown(dst, at []byte) []byte {
	for _, p := range k.paths {
		if v, ok := known(at, p); ok && p != "_id" {
			dst = appendEqual(dst, p, v)
		}
	}
	return dst
}

// Stays reports that a document belongs where the result of Of says.
func (k Key) Stays(at, doc []byte) bool {
	for _, p := range k.paths {
		if v, ok := known(at, p); !ok || !v.Equal(value(doc, p)) {
			return false
		}
	}
	return len(at) > 0
}

// Same reports two equal results of Of.
func (k Key) Same(at, other []byte) bool {
	for _, p := range k.paths {
		a, ok1 := known(at, p)
		b, ok2 := known(other, p)
		if !ok1 || !ok2 || !a.Equal(b) {
			return false
		}
	}
	return true
}

// At returns the key of a document, like Of.
func (k Key) At(doc []byte) []byte {
	i, dst := bsoncore.AppendDocumentStart(nil)
	for _, p := range k.paths {
		dst = bsoncore.AppendValueElement(dst, p, value(doc, p))
	}
	return bsonraw.Close(dst, i)
}

// Fields is the projection for At.
func (k Key) Fields() bson.D {
	d := bson.D{}
	for _, p := range k.paths {
		if p != "_id" {
			d = append(d, bson.E{Key: p, Value: 1})
		}
	}
	return append(d, bson.E{Key: "_id", Value: 1})
}

// AppendElsewhere appends a statement of delete for all documents with the _id of doc and another key.
func (k Key) AppendElsewhere(dst, doc []byte) []byte {
	i, dst := bsoncore.AppendDocumentStart(dst)
	q, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	dst = appendEqual(dst, "_id", bsonraw.IDOf(doc))
	nor, dst := bsoncore.AppendArrayElementStart(dst, "$nor")
	here, dst := bsoncore.AppendDocumentElementStart(dst, "0")
	for _, p := range k.paths {
		dst = appendEqual(dst, p, value(doc, p))
	}
	dst = bsonraw.Close(dst, here, nor, q)
	return bsonraw.Close(bsoncore.AppendInt32Element(dst, "limit", 0), i)
}

// Special are top-level fields that a plain write does not store unchanged (observed on 4.4 to 6.0).
type Special struct {
	// ZeroTimestamp: insert and replacement set the present time.
	ZeroTimestamp bool
	// Dollar: a replacement takes a name with a leading dollar for an operator.
	Dollar bool
}

// Plain reports a document that any write stores.
func (s Special) Plain() bool { return !s.ZeroTimestamp && !s.Dollar }

var errMalformed = errors.New("malformed document: a field overruns it")

// Inspect finds special fields, and rejects malformed documents.
func Inspect(doc []byte) (s Special, err error) {
	for e, ok := range bsonraw.Fields(doc) {
		if !ok {
			return s, errMalformed
		}
		if e.Type == bson.TypeTimestamp && binary.LittleEndian.Uint64(e.Value) == 0 && string(e.Name) != "_id" {
			s.ZeroTimestamp = true
		}
		if len(e.Name) > 0 && e.Name[0] == '$' {
			s.Dollar = true
		}
	}
	return s, nil
}

// AppendInsert appends a statement of update that inserts a document unchanged, with the shard key
// besides: {q: {_id: {$eq: id}, $nor: [{}]}, u: [{$replaceWith: {$literal: doc}}], upsert: true}. A
// pipeline keeps zero timestamps and dollars. $nor matches nothing, so it inserts or meets a
// duplicate: on an existing document, $replaceWith with a duplicate field name crashes a 6.0 server.
func (k Key) AppendInsert(dst, doc []byte) []byte {
	i, dst := bsoncore.AppendDocumentStart(dst)
	q, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	dst = k.AppendEquals(appendEqual(dst, "_id", bsonraw.IDOf(doc)), doc)
	nor, dst := bsoncore.AppendArrayElementStart(dst, "$nor")
	dst = bsoncore.AppendDocumentElement(dst, "0", bsoncore.NewDocumentBuilder().Build())
	dst = bsonraw.Close(dst, nor, q)
	u, dst := bsoncore.AppendArrayElementStart(dst, "u")
	stage, dst := bsoncore.AppendDocumentElementStart(dst, "0")
	repl, dst := bsoncore.AppendDocumentElementStart(dst, "$replaceWith")
	dst = bsoncore.AppendDocumentElement(dst, "$literal", doc)
	dst = bsonraw.Close(dst, repl, stage, u)
	return k.endUpsert(dst, i)
}

// AppendReplacement appends {q: {_id: {$eq: id}}, u: doc, upsert: true}, with the shard key besides,
// for a document without special fields.
func (k Key) AppendReplacement(dst, doc []byte) []byte {
	i, dst := bsoncore.AppendDocumentStart(dst)
	q, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	dst = k.AppendEquals(appendEqual(dst, "_id", bsonraw.IDOf(doc)), doc)
	dst = bsonraw.Close(dst, q)
	dst = bsoncore.AppendDocumentElement(dst, "u", doc)
	return k.endUpsert(dst, i)
}

func (k Key) endUpsert(dst []byte, i int32) []byte {
	return bsonraw.Close(k.AppendCollation(bsoncore.AppendBooleanElement(dst, "upsert", true)), i)
}

// AppendDelete appends a statement that deletes the document with the _id of doc, or with an equal one
// under the collection's collation.
func AppendDelete(dst, doc []byte) []byte { return appendDelete(dst, bsonraw.IDOf(doc)) }

func appendDelete(dst []byte, id bsonraw.ID) []byte {
	i, dst := bsoncore.AppendDocumentStart(dst)
	q, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	dst = bsonraw.Close(appendEqual(dst, "_id", id), q)
	return bsonraw.Close(bsoncore.AppendInt32Element(dst, "limit", 1), i)
}

func Delete(coll string, id bsonraw.ID) bson.D {
	return bson.D{{Key: "delete", Value: coll}, {Key: "deletes", Value: bson.A{bson.Raw(appendDelete(nil, id))}}}
}

// Insert returns a command that inserts a document unchanged, whatever the target's validator. After
// Delete, in one transaction if a crash in between matters, it replaces documents that no replacement
// can write.
func (k Key) Insert(coll string, doc []byte) bson.D {
	cmd := bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: bson.A{bson.Raw(doc)}}}
	if s, _ := Inspect(doc); s.ZeroTimestamp {
		cmd = bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{bson.Raw(k.AppendInsert(nil, doc))}}}
	}
	return append(cmd, bson.E{Key: "bypassDocumentValidation", Value: true})
}

// Run runs a write command, in the transaction of ctx, if any. The server's error about a document is
// a wire.WriteError.
func Run(ctx context.Context, db *driver.Database, cmd bson.D) error {
	err := db.RunCommand(ctx, cmd).Err()
	if e, ok := Answer(err); ok && Of(e).OfDocument() {
		return e
	}
	return err
}
