package docwrite

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/shardkey"
)

// Key is what of a collection's shard key the statements of its documents have to
// say besides the _id. The zero Key says nothing: the collection is not sharded, or
// by _id alone.
//
// Each shard keeps _ids unique by itself alone. So whoever writes a whole document
// makes sure that no other shard has it.
type Key struct {
	paths []string
	// simple: the collection has a collation, under which text has no place of its
	// own: statements ask for the simple one.
	simple bool
}

// KeyOf is the Key of a collection that is sharded by a pattern, nil if it is not.
func KeyOf(pattern bson.Raw, collated bool) (k Key) {
	for _, f := range shardkey.Parse(pattern) {
		k.paths = append(k.paths, f.Path)
	}
	if len(k.paths) == 1 && k.paths[0] == "_id" && !collated {
		return Key{}
	}
	k.simple = collated && len(k.paths) > 0
	return k
}

// IsZero reports that _id is enough.
func (k Key) IsZero() bool { return len(k.paths) == 0 }

// Touched reports that one of the key's fields may change with a top-level field of
// which touches says that it changes.
func (k Key) Touched(touches func(field string) bool) bool {
	for _, p := range k.paths {
		name, _, _ := strings.Cut(p, ".")
		if touches(name) {
			return true
		}
	}
	return false
}

// value is a document's at a path; what is missing counts as null.
func value(doc []byte, path string) bsoncore.Value {
	v, _ := shardkey.Lookup(doc, path)
	if v.Type == 0 {
		return bsoncore.Value{Type: bsoncore.TypeNull}
	}
	return bsonraw.FromRaw(v)
}

// known is a value of what Of gave.
func known(documentKey []byte, path string) (bsoncore.Value, bool) {
	e, ok := bsonraw.Field(documentKey, path)
	return bsoncore.Value{Type: bsoncore.Type(e.Type), Data: e.Value}, ok
}

// appendEqual appends path: {$eq: v}, for a server takes an _id that is an object
// with a dollar for an operator.
func appendEqual(dst []byte, path string, v bsoncore.Value) []byte {
	i, dst := bsoncore.AppendDocumentElementStart(dst, path)
	dst = bsoncore.AppendValueElement(dst, "$eq", v)
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}

// AppendEquals appends to a query that has the _id where a document belongs.
func (k Key) AppendEquals(dst, doc []byte) []byte {
	for _, p := range k.paths {
		if p != "_id" {
			dst = appendEqual(dst, p, value(doc, p))
		}
	}
	return dst
}

// AppendCollation appends the collation of a statement, if it needs one.
func (k Key) AppendCollation(dst []byte) []byte {
	if !k.simple {
		return dst
	}
	i, dst := bsoncore.AppendDocumentElementStart(dst, "collation")
	dst, _ = bsoncore.AppendDocumentEnd(bsoncore.AppendStringElement(dst, "locale", "simple"), i)
	return dst
}

// Of is the document with the fields of the key that a document key of an oplog entry
// tells, whose names are dotted; nil when it does not tell all.
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

// AppendKnown is AppendEquals for what Of gave.
func (k Key) AppendKnown(dst, at []byte) []byte {
	for _, p := range k.paths {
		if v, ok := known(at, p); ok && p != "_id" {
			dst = appendEqual(dst, p, v)
		}
	}
	return dst
}

// Stays reports that a document belongs where what Of gave says that it is.
func (k Key) Stays(at, doc []byte) bool {
	for _, p := range k.paths {
		if v, ok := known(at, p); !ok || !v.Equal(value(doc, p)) {
			return false
		}
	}
	return len(at) > 0
}

// Same reports that what Of gave twice is one place.
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

// At is where a document is, or belongs, in the form in which Of gives it.
func (k Key) At(doc []byte) []byte {
	i, dst := bsoncore.AppendDocumentStart(nil)
	for _, p := range k.paths {
		dst = bsoncore.AppendValueElement(dst, p, value(doc, p))
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}

// Fields is a projection to what At needs.
func (k Key) Fields() bson.D {
	d := bson.D{}
	for _, p := range k.paths {
		if p != "_id" {
			d = append(d, bson.E{Key: p, Value: 1})
		}
	}
	return append(d, bson.E{Key: "_id", Value: 1})
}

// AppendElsewhere appends a statement of the delete command that deletes all documents
// with the _id of doc, but for the one that has its key.
func (k Key) AppendElsewhere(dst, doc []byte) []byte {
	i, dst := bsoncore.AppendDocumentStart(dst)
	q, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	dst = appendEqual(dst, "_id", bsonraw.IDOf(doc))
	nor, dst := bsoncore.AppendArrayElementStart(dst, "$nor")
	here, dst := bsoncore.AppendDocumentElementStart(dst, "0")
	for _, p := range k.paths {
		dst = appendEqual(dst, p, value(doc, p))
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, here)
	dst, _ = bsoncore.AppendArrayEnd(dst, nor)
	dst, _ = bsoncore.AppendDocumentEnd(dst, q)
	dst = bsoncore.AppendInt32Element(dst, "limit", 0)
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}
