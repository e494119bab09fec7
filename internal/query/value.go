package query

import (
	"bytes"
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// value is one value of a document: a view of its bytes, which have the size that
// the type asks for (bsonraw.Next sees to it). The zero value is a missing one.
type value struct {
	typ  bson.Type
	data []byte
}

func valueOf(e bsonraw.Element) value { return value{e.Type, e.Value} }

func (v value) missing() bool { return v.typ == 0 }

func (v value) isObject() bool { return v.typ == bson.TypeEmbeddedDocument }

func (v value) isArray() bool { return v.typ == bson.TypeArray }

func (v value) isNumber() bool { return classOf(v.typ) == classNumber }

func (v value) isText() bool { return v.typ == bson.TypeString || v.typ == bson.TypeSymbol }

// text is a string's bytes without length and terminator.
func (v value) text() []byte { return v.data[4 : len(v.data)-1] }

// regex is a regular expression's pattern and options.
func (v value) regex() (pattern, options []byte) {
	n := bytes.IndexByte(v.data, 0)
	return v.data[:n], v.data[n+1 : len(v.data)-1]
}

// field is the first field of a name in a document or array, a missing value when
// there is none. It is written out because filters spend their time here.
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
			return value{typ, b[start : start+size]}
		}
		b = b[start+size:]
	}
	return value{}
}

// class is a place in the servers' order of types; values of different classes
// are never equal.
type class int8

const (
	classMin class = iota
	classUndefined
	classNull
	classNumber
	classText
	classObject
	classArray
	classBinary
	classObjectID
	classBool
	classDate
	classTimestamp
	classRegex
	classPointer
	classCode
	classScope
	classMax
	classNone // a missing value
)

func classOf(t bson.Type) class {
	switch t {
	case bson.TypeString, bson.TypeSymbol:
		return classText
	case bson.TypeDouble, bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128:
		return classNumber
	case bson.TypeEmbeddedDocument:
		return classObject
	case bson.TypeArray:
		return classArray
	case bson.TypeObjectID:
		return classObjectID
	case bson.TypeDateTime:
		return classDate
	case bson.TypeBoolean:
		return classBool
	case bson.TypeNull:
		return classNull
	case bson.TypeBinary:
		return classBinary
	}
	return rareClass(t)
}

func rareClass(t bson.Type) class {
	switch t {
	case bson.TypeMinKey:
		return classMin
	case bson.TypeUndefined:
		return classUndefined
	case bson.TypeTimestamp:
		return classTimestamp
	case bson.TypeRegex:
		return classRegex
	case bson.TypeDBPointer:
		return classPointer
	case bson.TypeJavaScript:
		return classCode
	case bson.TypeCodeWithScope:
		return classScope
	case bson.TypeMaxKey:
		return classMax
	}
	return classNone
}

func int64Of(b []byte) int64 { return int64(binary.LittleEndian.Uint64(b)) }
