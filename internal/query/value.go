package query

import (
	"bytes"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

type value = bsonraw.View

func isText(v value) bool { return v.Type == bson.TypeString || v.Type == bson.TypeSymbol }

func regexOf(v value) (pattern, options []byte) {
	n := bytes.IndexByte(v.Value, 0)
	return v.Value[:n], v.Value[n+1 : len(v.Value)-1]
}

// field is the first field of a name in a document or array, or a missing value. It is written out
// because filters spend their time here.
func field(doc []byte, name string) value {
	b, ok := bsonraw.Body(doc)
	for ok && len(b) > 1 {
		n := bsonraw.NameLen(b[1:])
		if n < 0 {
			break
		}
		typ, start := bson.Type(b[0]), n+2
		size, fits := bsonraw.ValueSize(typ, b[start:])
		if !fits {
			break
		}
		if n == len(name) && string(b[1:n+1]) == name {
			return value{Type: typ, Value: b[start : start+size]}
		}
		b = b[start+size:]
	}
	return value{}
}

// Class is a place in the servers' order of types, by their numbers. Values of different classes are
// never equal.
type Class int8

// The classes that are compared in a way of their own.
const (
	ClassMin     Class = -1
	ClassNumber  Class = 10
	ClassObject  Class = 20
	ClassArray   Class = 25
	ClassScope   Class = 65
	ClassMissing Class = 126
	ClassMax     Class = 127

	classText      Class = 15
	classBinary    Class = 30
	classDate      Class = 45
	classTimestamp Class = 47
	classRegex     Class = 50
	classPointer   Class = 55
	classCode      Class = 60
)

// ClassOf returns the class of a type.
func ClassOf(t bson.Type) Class {
	switch t {
	case bson.TypeString, bson.TypeSymbol:
		return classText
	case bson.TypeDouble, bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128:
		return ClassNumber
	case bson.TypeEmbeddedDocument:
		return ClassObject
	case bson.TypeArray:
		return ClassArray
	case bson.TypeObjectID:
		return 35
	case bson.TypeDateTime:
		return classDate
	case bson.TypeBoolean:
		return 40
	case bson.TypeNull:
		return 5
	case bson.TypeBinary:
		return classBinary
	case bson.TypeMinKey:
		return ClassMin
	case bson.TypeUndefined:
		return 0
	case bson.TypeTimestamp:
		return classTimestamp
	case bson.TypeRegex:
		return classRegex
	case bson.TypeDBPointer:
		return classPointer
	case bson.TypeJavaScript:
		return classCode
	case bson.TypeCodeWithScope:
		return ClassScope
	case bson.TypeMaxKey:
		return ClassMax
	}
	return ClassMissing
}
