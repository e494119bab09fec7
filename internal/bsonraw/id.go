package bsonraw

import (
	"bytes"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// ID is an _id, or another value, as a document has it: its type and a view of its
// bytes. It is what millrace hands around; the zero ID is a missing one. Which
// ids are the same document is delta's to say (AppendKey).
type ID = bsoncore.Value

// IDOf is a document's _id, the zero ID when it has none.
func IDOf(doc []byte) ID {
	if len(doc) > 9 && string(doc[5:9]) == "_id\x00" { // servers store _id first
		if n, ok := ValueSize(bson.Type(doc[4]), doc[9:]); ok {
			return ID{Type: bsoncore.Type(doc[4]), Data: doc[9 : 9+n : 9+n]}
		}
	}
	return Value(doc, "_id")
}

// Value is the first field of a name at the top level; the zero ID when there is
// none.
func Value(doc []byte, name string) ID {
	e, _ := Field(doc, name)
	return e.ID()
}

// ID is the element's value.
func (e Element) ID() ID { return ID{Type: bsoncore.Type(e.Type), Data: e.Value} }

// FromRaw is the driver's value as an ID.
func FromRaw(v bson.RawValue) ID { return ID{Type: bsoncore.Type(v.Type), Data: v.Value} }

// RawValue is an ID as the driver encodes it.
func RawValue(id ID) bson.RawValue { return bson.RawValue{Type: bson.Type(id.Type), Value: id.Data} }

// Clone is an ID with bytes of its own.
func Clone(id ID) ID { return ID{Type: id.Type, Data: bytes.Clone(id.Data)} }

// IDText shows an ID as extended JSON in logs, errors and letters, cut to a
// readable length.
func IDText(id ID) string { return Text(id, 200) }

// Text shows a value as extended JSON, cut to so many bytes.
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

// AppendID appends an ID's type and bytes: a key of exactly this value, where
// delta's is one of all values that a server takes for equal.
func AppendID(dst []byte, id ID) []byte { return append(append(dst, byte(id.Type)), id.Data...) }

// KeyID is the ID behind a key made by AppendID.
func KeyID(key string) ID { return ID{Type: bsoncore.Type(key[0]), Data: []byte(key[1:])} }
