// Package shardkey compares the values of shard keys as servers do, hashes them as
// hashed keys are, and takes them out of documents.
package shardkey

import (
	"encoding/binary"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/query"
)

// Field is one of a shard key.
type Field struct {
	Path   string // may be dotted
	Hashed bool
	Value  bson.RawValue // 1 or "hashed", as in the pattern
}

// Pattern is a shard key: what a collection is sharded by.
type Pattern []Field

// Parse reads a shard key's pattern.
func Parse(pattern bson.Raw) Pattern {
	var all Pattern
	for e, ok := range bsonraw.Fields(pattern) {
		if ok {
			v := valueOf(e)
			text, _ := v.StringValueOK()
			all = append(all, Field{Path: string(e.Name), Hashed: text == "hashed", Value: v})
		}
	}
	return all
}

// Key is the place of a document in the order of a shard key. The zero value is ready
// for use, and one may be used for many documents.
type Key struct {
	Values []bson.RawValue
	hash   [8]byte // servers hash one field at most
}

// Of is the key of a document; false when one of its values is an array or lies behind
// one, which servers refuse. What is missing counts as null.
func (p Pattern) Of(k *Key, doc bson.Raw) bool {
	k.Values = k.Values[:0]
	for i := range p {
		v, ok := Lookup(doc, p[i].Path)
		if !ok || v.Type == bson.TypeArray {
			return false
		}
		k.add(&p[i], v)
	}
	return true
}

// OfDocumentKey is the key of which an oplog entry tells: its fields have dotted names.
func (p Pattern) OfDocumentKey(k *Key, key bson.Raw) bool {
	k.Values = k.Values[:0]
	for i := range p {
		e, found := bsonraw.Field(key, p[i].Path)
		v, ok := valueOf(e), true
		if !found {
			v, ok = Lookup(key, p[i].Path)
		}
		if !ok || v.Type == bson.TypeArray {
			return false
		}
		k.add(&p[i], v)
	}
	return true
}

func (k *Key) add(f *Field, v bson.RawValue) {
	if v.Type == 0 {
		v.Type = bson.TypeNull
	}
	if f.Hashed {
		binary.LittleEndian.PutUint64(k.hash[:], uint64(Hash(v)))
		v = bson.RawValue{Type: bson.TypeInt64, Value: k.hash[:]}
	}
	k.Values = append(k.Values, v)
}

// Indexed is a value as chunk bounds have it.
func (f Field) Indexed(v bson.RawValue) bson.RawValue {
	var k Key
	k.add(&f, v)
	return k.Values[0]
}

// Lookup is the value at a dotted path, the zero value when there is none; false
// when an array is on the way.
func Lookup(doc bson.Raw, path string) (bson.RawValue, bool) {
	name, rest, more := strings.Cut(path, ".")
	e, ok := bsonraw.Field(doc, name)
	switch {
	case !ok:
		return bson.RawValue{}, true
	case !more:
		return valueOf(e), true
	case e.Type == bson.TypeArray:
		return bson.RawValue{}, false
	case e.Type != bson.TypeEmbeddedDocument:
		return bson.RawValue{}, true
	}
	return Lookup(bson.Raw(e.Value), rest)
}

// Bound is a chunk's bound, or any key, as its values.
func Bound(doc bson.Raw) []bson.RawValue {
	var all []bson.RawValue
	for e, ok := range bsonraw.Fields(doc) {
		if ok {
			all = append(all, valueOf(e))
		}
	}
	return all
}

// CompareKeys orders keys. Where one has fewer values, the lowest stand for those that
// are missing: a key that was refined begins so.
func CompareKeys(a, b []bson.RawValue) int {
	for i := range max(len(a), len(b)) {
		if c := Compare(at(a, i), at(b, i)); c != 0 {
			return c
		}
	}
	return 0
}

func at(key []bson.RawValue, i int) bson.RawValue {
	if i < len(key) {
		return key[i]
	}
	return MinKey()
}

// Compare orders two values as servers do. A missing one counts as undefined.
func Compare(a, b bson.RawValue) int { return query.Compare(known(a), known(b)) }

func known(v bson.RawValue) bson.RawValue {
	if v.Type == 0 {
		v.Type = bson.TypeUndefined
	}
	return v
}

// CompareDocuments orders documents and arrays: field by field by type, then
// name, then value.
func CompareDocuments(a, b []byte) int { return query.CompareDocuments(a, b) }

func valueOf(e bsonraw.Element) bson.RawValue { return bson.RawValue{Type: e.Type, Value: e.Value} }

// MinKey and MaxKey are the lowest and the highest value.
func MinKey() bson.RawValue { return bson.RawValue{Type: bson.TypeMinKey} }
func MaxKey() bson.RawValue { return bson.RawValue{Type: bson.TypeMaxKey} }
