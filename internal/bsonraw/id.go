package bsonraw

import (
	"bytes"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// ID is an _id, or another value, as a document has it; the zero ID is a missing one. Two IDs are the
// same document if their delta.AppendKey is equal.
type ID = bsoncore.Value

// IDOf returns a document's _id, or the zero ID.
func IDOf(doc []byte) ID {
	if len(doc) > 9 && string(doc[5:9]) == "_id\x00" { // servers store _id first
		if n, ok := ValueSize(bson.Type(doc[4]), doc[9:]); ok {
			return ID{Type: bsoncore.Type(doc[4]), Data: doc[9 : 9+n : 9+n]}
		}
	}
	return Value(doc, "_id")
}

// Value returns the first top-level field of a name, or the zero ID.
func Value(doc []byte, name string) ID {
	e, _ := Field(doc, name)
	return e.ID()
}

// ID returns the value as an ID.
func (v View) ID() ID { return ID{Type: bsoncore.Type(v.Type), Data: v.Value} }

// FromRaw returns the driver's value as an ID.
func FromRaw(v bson.RawValue) ID { return ID{Type: bsoncore.Type(v.Type), Data: v.Value} }

// RawValue returns an ID as the driver encodes it.
func RawValue(id ID) bson.RawValue { return bson.RawValue{Type: bson.Type(id.Type), Value: id.Data} }

// Clone copies an ID and its bytes.
func Clone(id ID) ID { return ID{Type: id.Type, Data: bytes.Clone(id.Data)} }

// IDText formats an ID as extended JSON of at most 200 bytes.
func IDText(id ID) string { return Text(id, 200) }

// Text formats a value as extended JSON, cut to so many bytes.
func Text(v ID, most int) string {
	s := v.String()
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most] + "…"
}

// AppendID appends a key of exactly this value; delta.AppendKey is equal for equal values.
func AppendID(dst []byte, id ID) []byte { return append(append(dst, byte(id.Type)), id.Data...) }

// KeyID returns the ID of a key made by AppendID.
func KeyID(key string) ID { return ID{Type: bsoncore.Type(key[0]), Data: []byte(key[1:])} }
