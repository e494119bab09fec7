package docwrite

import (
	"context"
	"encoding/binary"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
)

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
	dst, _ = bsoncore.AppendArrayEnd(dst, nor)
	dst, _ = bsoncore.AppendDocumentEnd(dst, q)
	u, dst := bsoncore.AppendArrayElementStart(dst, "u")
	stage, dst := bsoncore.AppendDocumentElementStart(dst, "0")
	repl, dst := bsoncore.AppendDocumentElementStart(dst, "$replaceWith")
	dst = bsoncore.AppendDocumentElement(dst, "$literal", doc)
	dst, _ = bsoncore.AppendDocumentEnd(dst, repl)
	dst, _ = bsoncore.AppendDocumentEnd(dst, stage)
	dst, _ = bsoncore.AppendArrayEnd(dst, u)
	return k.endUpsert(dst, i)
}

// AppendReplacement appends {q: {_id: {$eq: id}}, u: doc, upsert: true}, with the shard key besides,
// for a document without special fields.
func (k Key) AppendReplacement(dst, doc []byte) []byte {
	i, dst := bsoncore.AppendDocumentStart(dst)
	q, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	dst = k.AppendEquals(appendEqual(dst, "_id", bsonraw.IDOf(doc)), doc)
	dst, _ = bsoncore.AppendDocumentEnd(dst, q)
	dst = bsoncore.AppendDocumentElement(dst, "u", doc)
	return k.endUpsert(dst, i)
}

func (k Key) endUpsert(dst []byte, i int32) []byte {
	dst = k.AppendCollation(bsoncore.AppendBooleanElement(dst, "upsert", true))
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}

// AppendDelete appends a statement that deletes the document with the _id of doc, or with an equal one
// under the collection's collation.
func AppendDelete(dst, doc []byte) []byte { return appendDelete(dst, bsonraw.IDOf(doc)) }

func appendDelete(dst []byte, id bsonraw.ID) []byte {
	i, dst := bsoncore.AppendDocumentStart(dst)
	q, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	dst, _ = bsoncore.AppendDocumentEnd(appendEqual(dst, "_id", id), q)
	dst, _ = bsoncore.AppendDocumentEnd(bsoncore.AppendInt32Element(dst, "limit", 1), i)
	return dst
}

// Delete returns the command of AppendDelete.
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
