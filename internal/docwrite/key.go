package docwrite

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
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
	dst = bsoncore.AppendValueElement(dst, "$eq", v)
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
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
	dst, _ = bsoncore.AppendDocumentEnd(bsoncore.AppendStringElement(dst, "locale", "simple"), i)
	return dst
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
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
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
	dst, _ = bsoncore.AppendDocumentEnd(dst, here)
	dst, _ = bsoncore.AppendArrayEnd(dst, nor)
	dst, _ = bsoncore.AppendDocumentEnd(dst, q)
	dst = bsoncore.AppendInt32Element(dst, "limit", 0)
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}
