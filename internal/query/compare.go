package query

import (
	"bytes"
	"cmp"
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// Compare orders two values of documents as servers do without a collation, all types among
// each other.
func Compare(a, b bson.RawValue) int { return compare(value{a.Type, a.Value}, value{b.Type, b.Value}) }

// CompareDocuments orders documents, or arrays, field by field: by the class of the value, the
// name, the value.
func CompareDocuments(a, b []byte) int { return compareFields(a, b) }

// compare orders two values as servers do without a collation, all types among
// each other. Its depth is that of the less nested one: an operand's is bounded.
func compare(a, b value) int {
	c := classOf(a.typ)
	if other := classOf(b.typ); c != other {
		return cmp.Compare(c, other)
	}
	switch c {
	case classText, classCode:
		return bytes.Compare(a.text(), b.text())
	case classNumber:
		return compareNumbers(a, b)
	case classDate:
		return cmp.Compare(int64Of(a.data), int64Of(b.data))
	case classTimestamp:
		return cmp.Compare(uint64(int64Of(a.data)), uint64(int64Of(b.data)))
	case classObject, classArray:
		return compareFields(a.data, b.data)
	case classBinary, classPointer:
		return comparePrefixed(a.data, b.data)
	case classRegex:
		return compareRegexes(a, b)
	case classScope:
		return compareScopes(a.data, b.data)
	}
	return bytes.Compare(a.data, b.data)
}

// compareFields orders documents, or arrays, field by field: by the class of the
// value, the name, the value. An array whose elements have other names than their
// indexes is another one.
func compareFields(a, b []byte) int {
	ra, _ := bsonraw.Body(a)
	rb, _ := bsonraw.Body(b)
	for len(ra) > 0 && len(rb) > 0 {
		ea, restA, okA := bsonraw.Next(ra)
		eb, restB, okB := bsonraw.Next(rb)
		if !okA || !okB {
			return cmp.Compare(len(ra), len(rb)) // damaged: any order will do
		}
		if c := cmp.Compare(classOf(ea.Type), classOf(eb.Type)); c != 0 {
			return c
		}
		if c := bytes.Compare(ea.Name, eb.Name); c != 0 {
			return c
		}
		if c := compare(valueOf(ea), valueOf(eb)); c != 0 {
			return c
		}
		ra, rb = restA, restB
	}
	return cmp.Compare(len(ra), len(rb))
}

// comparePrefixed orders what starts with its length by length, then bytes: binary
// values (of which the subtype comes next) and DBPointers.
func comparePrefixed(a, b []byte) int {
	if c := cmp.Compare(binary.LittleEndian.Uint32(a), binary.LittleEndian.Uint32(b)); c != 0 {
		return c
	}
	return bytes.Compare(a[4:], b[4:])
}

func compareRegexes(a, b value) int {
	pa, oa := a.regex()
	pb, ob := b.regex()
	if c := bytes.Compare(pa, pb); c != 0 {
		return c
	}
	return bytes.Compare(oa, ob)
}

// compareScopes orders code with scope: by code, then by scope.
func compareScopes(a, b []byte) int {
	codeA, scopeA, okA := cutScope(a)
	codeB, scopeB, okB := cutScope(b)
	if !okA || !okB {
		return bytes.Compare(a, b)
	}
	if c := bytes.Compare(codeA.text(), codeB.text()); c != 0 {
		return c
	}
	return compareFields(scopeA, scopeB)
}

// cutScope is the code and the scope; false when the bytes are damaged.
func cutScope(b []byte) (code value, scope []byte, ok bool) {
	n, ok := bsonraw.ValueSize(bson.TypeJavaScript, b[4:])
	if !ok {
		return value{}, nil, false
	}
	code, scope = value{bson.TypeJavaScript, b[4 : 4+n]}, b[4+n:]
	_, ok = bsonraw.Body(scope)
	return code, scope, ok
}
