package query

import (
	"bytes"
	"cmp"
	"encoding/binary"

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

// Compare orders two values as servers do without a collation, across all types.
func Compare(a, b bson.RawValue) int {
	return compare(value{Type: a.Type, Value: a.Value}, value{Type: b.Type, Value: b.Value})
}

// compare is Compare. Its depth is that of the less nested value: an operand's is bounded.
func compare(a, b value) int {
	c := ClassOf(a.Type)
	if other := ClassOf(b.Type); c != other {
		return cmp.Compare(c, other)
	}
	switch c {
	case classText, classCode:
		return bytes.Compare(a.Text(), b.Text())
	case ClassNumber:
		return compareNumbers(a, b)
	case classDate:
		return cmp.Compare(a.Int64(), b.Int64())
	case classTimestamp:
		return cmp.Compare(uint64(a.Int64()), uint64(b.Int64()))
	case ClassObject, ClassArray:
		return CompareDocuments(a.Value, b.Value)
	case classBinary, classPointer:
		return comparePrefixed(a.Value, b.Value)
	case classRegex:
		return compareRegexes(a, b)
	case ClassScope:
		return compareScopes(a.Value, b.Value)
	}
	return bytes.Compare(a.Value, b.Value)
}

// CompareDocuments orders documents, or arrays, field by field: by the class of the value, then its
// name, then the value. Arrays whose elements are not named by their indexes differ from others.
func CompareDocuments(a, b []byte) int {
	ra, _ := bsonraw.Body(a)
	rb, _ := bsonraw.Body(b)
	for len(ra) > 0 && len(rb) > 0 {
		ea, restA, okA := bsonraw.Next(ra)
		eb, restB, okB := bsonraw.Next(rb)
		if !okA || !okB {
			return cmp.Compare(len(ra), len(rb)) // damaged: any order will do
		}
		if c := cmp.Compare(ClassOf(ea.Type), ClassOf(eb.Type)); c != 0 {
			return c
		}
		if c := bytes.Compare(ea.Name, eb.Name); c != 0 {
			return c
		}
		if c := compare(ea.View, eb.View); c != 0 {
			return c
		}
		ra, rb = restA, restB
	}
	return cmp.Compare(len(ra), len(rb))
}

// comparePrefixed orders binary values (subtype second) and DBPointers by length, then bytes.
func comparePrefixed(a, b []byte) int {
	if c := cmp.Compare(binary.LittleEndian.Uint32(a), binary.LittleEndian.Uint32(b)); c != 0 {
		return c
	}
	return bytes.Compare(a[4:], b[4:])
}

func compareRegexes(a, b value) int {
	pa, oa := regexOf(a)
	pb, ob := regexOf(b)
	return cmp.Or(bytes.Compare(pa, pb), bytes.Compare(oa, ob))
}

func compareScopes(a, b []byte) int {
	codeA, scopeA, okA := cutScope(a)
	codeB, scopeB, okB := cutScope(b)
	if !okA || !okB {
		return bytes.Compare(a, b)
	}
	if c := bytes.Compare(codeA.Text(), codeB.Text()); c != 0 {
		return c
	}
	return CompareDocuments(scopeA, scopeB)
}

// cutScope splits code with scope; false when the bytes are damaged.
func cutScope(b []byte) (code value, scope []byte, ok bool) {
	n, ok := bsonraw.ValueSize(bson.TypeJavaScript, b[4:])
	if !ok {
		return value{}, nil, false
	}
	code, scope = value{Type: bson.TypeJavaScript, Value: b[4 : 4+n]}, b[4+n:]
	_, ok = bsonraw.Body(scope)
	return code, scope, ok
}
