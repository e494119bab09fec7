package delta

import (
	"bytes"
	"encoding/binary"
	"math"
	"strconv"
)

// BSON type bytes, as in bsonspec.org.
const (
	typeDouble     = 0x01
	typeString     = 0x02
	typeObject     = 0x03
	typeArray      = 0x04
	typeBinary     = 0x05
	typeUndefined  = 0x06
	typeObjectID   = 0x07
	typeBool       = 0x08
	typeDate       = 0x09
	typeNull       = 0x0A
	typeRegex      = 0x0B
	typeDBPointer  = 0x0C
	typeCode       = 0x0D
	typeSymbol     = 0x0E
	typeCodeScope  = 0x0F
	typeInt32      = 0x10
	typeTimestamp  = 0x11
	typeInt64      = 0x12
	typeDecimal128 = 0x13
	typeMaxKey     = 0x7F
	typeMinKey     = 0xFF
)

// field is one element of a document: views into the document's bytes.
type field struct {
	typ  byte
	name []byte // without the terminating zero
	val  []byte
	raw  []byte // type, name, zero and value
}

// body returns the elements of a document without length and terminator.
func body(doc []byte) ([]byte, bool) {
	if len(doc) < 5 || int64(binary.LittleEndian.Uint32(doc)) != int64(len(doc)) || doc[len(doc)-1] != 0 {
		return nil, false
	}
	return doc[4 : len(doc)-1], true
}

// next cuts the first element off a body; it must not be called with an empty one.
func next(b []byte) (f field, rest []byte, ok bool) {
	if len(b) < 2 {
		return field{}, nil, false
	}
	z := bytes.IndexByte(b[1:], 0)
	if z < 0 {
		return field{}, nil, false
	}
	start := z + 2
	n, ok := valueSize(b[0], b[start:])
	if !ok {
		return field{}, nil, false
	}
	end := start + n
	return field{typ: b[0], name: b[1 : z+1], val: b[start:end], raw: b[:end]}, b[end:], true
}

// valueSize returns how many bytes at the start of b are a value of type t.
func valueSize(t byte, b []byte) (int, bool) {
	switch t {
	case typeUndefined, typeNull, typeMaxKey, typeMinKey:
		return 0, true
	case typeBool:
		return fixed(1, b)
	case typeInt32:
		return fixed(4, b)
	case typeDouble, typeDate, typeTimestamp, typeInt64:
		return fixed(8, b)
	case typeObjectID:
		return fixed(12, b)
	case typeDecimal128:
		return fixed(16, b)
	case typeString, typeCode, typeSymbol:
		return prefixed(b, 1, 4)
	case typeBinary:
		return prefixed(b, 0, 5)
	case typeDBPointer:
		return prefixed(b, 1, 16)
	case typeObject, typeArray:
		return prefixed(b, 5, 0)
	case typeCodeScope:
		return prefixed(b, 14, 0)
	case typeRegex:
		return twoStrings(b)
	}
	return 0, false
}

func fixed(n int, b []byte) (int, bool) { return n, len(b) >= n }

// prefixed sizes a value that starts with an int32 length of at least least;
// extra bytes are not counted in that length.
func prefixed(b []byte, least, extra int64) (int, bool) {
	if len(b) < 4 {
		return 0, false
	}
	n := int64(int32(binary.LittleEndian.Uint32(b)))
	if n < least || n+extra > int64(len(b)) {
		return 0, false
	}
	return int(n + extra), true
}

// twoStrings sizes a regular expression: pattern and options.
func twoStrings(b []byte) (int, bool) {
	p := bytes.IndexByte(b, 0)
	if p < 0 {
		return 0, false
	}
	o := bytes.IndexByte(b[p+1:], 0)
	if o < 0 {
		return 0, false
	}
	return p + 1 + o + 1, true
}

// openDoc reserves the length of a document and returns where it is.
func openDoc(dst []byte) ([]byte, int) {
	return append(dst, 0, 0, 0, 0), len(dst)
}

// openField starts an element that holds an object.
func openField(dst []byte, name string) ([]byte, int) {
	dst = append(dst, typeObject)
	dst = append(dst, name...)
	return openDoc(append(dst, 0))
}

// closeDoc terminates the document that starts at start and sets its length.
func closeDoc(dst []byte, start int) []byte {
	dst = append(dst, 0)
	binary.LittleEndian.PutUint32(dst[start:], uint32(len(dst)-start))
	return dst
}

func appendHeader(dst []byte, typ byte, name []byte) []byte {
	dst = append(dst, typ)
	dst = append(dst, name...)
	return append(dst, 0)
}

// appendValue writes an element with another name or of another origin.
func appendValue(dst []byte, typ byte, name, val []byte) []byte {
	return append(appendHeader(dst, typ, name), val...)
}

// allDigits reports whether s is a number without a sign.
func allDigits(s []byte) bool {
	for _, c := range s {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(s) > 0
}

// arrayIndex reads an array index. Leading zeros count: the server takes "01"
// for 1 (observed on 6.0.5).
func arrayIndex(s []byte) (int, bool) {
	if !allDigits(s) {
		return 0, false
	}
	n := 0
	for _, c := range s {
		n = n*10 + int(c-'0')
		if n > maxSize {
			return 0, false
		}
	}
	return n, true
}

// decimalName writes the name of an array element.
func decimalName(dst []byte, idx int) []byte { return strconv.AppendInt(dst, int64(idx), 10) }

// doubleInt reads a double that holds a whole number in the range of int64.
func doubleInt(val []byte) (int64, bool) {
	d := math.Float64frombits(binary.LittleEndian.Uint64(val))
	// 2^63 itself does not fit; NaN fails every comparison.
	if !(d >= -1<<63 && d < 1<<63) || d != math.Trunc(d) {
		return 0, false
	}
	return int64(d), true
}

func putInt32(b []byte, n int) { binary.LittleEndian.PutUint32(b, uint32(n)) }
