package tail

import (
	"bytes"
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// body returns the elements of a document or array, without its length and
// terminator.
func body(doc []byte) ([]byte, bool) {
	if len(doc) < 5 {
		return nil, false
	}
	n := int(binary.LittleEndian.Uint32(doc))
	if n != len(doc) || doc[n-1] != 0 {
		return nil, false
	}
	return doc[4 : n-1], true
}

// element is one field of a document, aliasing its bytes.
type element struct {
	typ bson.Type
	key []byte
	val []byte
}

// next cuts the first element off; ok is false when it is malformed. b must
// not be empty.
func next(b []byte) (e element, rest []byte, ok bool) {
	k := bytes.IndexByte(b[1:], 0)
	if k < 0 {
		return e, nil, false
	}
	e.typ, e.key = bson.Type(b[0]), b[1:1+k]
	b = b[k+2:]
	n := valueSize(e.typ, b)
	if n < 0 || n > len(b) {
		return e, nil, false
	}
	e.val = b[:n:n]
	return e, b[n:], true
}

// valueSize is the length of the value that b starts with, or -1. The result
// may exceed len(b).
func valueSize(t bson.Type, b []byte) int {
	switch t {
	case bson.TypeDouble, bson.TypeDateTime, bson.TypeTimestamp, bson.TypeInt64:
		return 8
	case bson.TypeInt32:
		return 4
	case bson.TypeBoolean:
		return 1
	case bson.TypeObjectID:
		return 12
	case bson.TypeDecimal128:
		return 16
	case bson.TypeNull, bson.TypeUndefined, bson.TypeMinKey, bson.TypeMaxKey:
		return 0
	case bson.TypeEmbeddedDocument, bson.TypeArray, bson.TypeCodeWithScope:
		return prefixed(b, 0, 5)
	case bson.TypeString, bson.TypeJavaScript, bson.TypeSymbol:
		return prefixed(b, 4, 5)
	case bson.TypeDBPointer:
		return prefixed(b, 16, 17)
	case bson.TypeBinary:
		return prefixed(b, 5, 5)
	case bson.TypeRegex:
		p := bytes.IndexByte(b, 0)
		if p < 0 {
			return -1
		}
		o := bytes.IndexByte(b[p+1:], 0)
		if o < 0 {
			return -1
		}
		return p + o + 2
	}
	return -1
}

// prefixed is the length of a value that starts with its own length, which
// does not count extra bytes; least is the smallest valid result.
func prefixed(b []byte, extra, least int) int {
	if len(b) < 4 {
		return -1
	}
	n := int(int32(binary.LittleEndian.Uint32(b)))
	if n < 0 || n+extra < least {
		return -1
	}
	return n + extra
}

// text is a string value's bytes without its terminator.
func text(e element) ([]byte, bool) {
	if e.typ != bson.TypeString {
		return nil, false
	}
	return e.val[4 : len(e.val)-1], true
}

// truth reads a flag as the server writes it: a boolean or a number.
func truth(e element) bool {
	switch e.typ {
	case bson.TypeBoolean:
		return e.val[0] != 0
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble:
		for _, c := range e.val {
			if c != 0 {
				return true
			}
		}
	}
	return false
}

// integer reads an int32 or int64.
func integer(e element) (int64, bool) {
	switch e.typ {
	case bson.TypeInt64:
		return int64(binary.LittleEndian.Uint64(e.val)), true
	case bson.TypeInt32:
		return int64(int32(binary.LittleEndian.Uint32(e.val))), true
	}
	return 0, false
}

// timestamp reads a timestamp.
func timestamp(e element) (bson.Timestamp, bool) {
	if e.typ != bson.TypeTimestamp {
		return bson.Timestamp{}, false
	}
	return bson.Timestamp{I: binary.LittleEndian.Uint32(e.val), T: binary.LittleEndian.Uint32(e.val[4:])}, true
}
