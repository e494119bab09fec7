// Package bsonraw finds its way through BSON without decoding it: no
// allocations, no copies, and nothing read past the bytes it is given.
//
// Format: bsonspec.org.
package bsonraw

import (
	"bytes"
	"encoding/binary"
	"iter"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Body returns the elements of a document or array, without its length and
// terminator; false when doc is not as long as it says or not terminated.
func Body(doc []byte) ([]byte, bool) {
	if len(doc) < 5 || int64(binary.LittleEndian.Uint32(doc)) != int64(len(doc)) || doc[len(doc)-1] != 0 {
		return nil, false
	}
	return doc[4 : len(doc)-1], true
}

// Element is one field of a document: views into the document's bytes.
type Element struct {
	Type  bson.Type
	Name  []byte // without its terminator
	Value []byte
	Raw   []byte // all of it: type, name, terminator and value
}

// Next cuts the first element off a Body; false when it is malformed or there is
// none.
func Next(b []byte) (e Element, rest []byte, ok bool) {
	if len(b) < 2 {
		return Element{}, nil, false
	}
	z := NameLen(b[1:])
	if z < 0 {
		return Element{}, nil, false
	}
	start := z + 2
	n, ok := ValueSize(bson.Type(b[0]), b[start:])
	if !ok {
		return Element{}, nil, false
	}
	end := start + n
	return Element{bson.Type(b[0]), b[1 : z+1], b[start:end:end], b[:end:end]}, b[end:], true
}

// Fields are the fields of a document or array, one after the other. Of one that
// is malformed the last comes with false.
func Fields(doc []byte) iter.Seq2[Element, bool] {
	return func(yield func(Element, bool) bool) {
		rest, ok := Body(doc)
		if !ok {
			yield(Element{}, false)
			return
		}
		for len(rest) > 0 {
			e, next, ok := Next(rest)
			if !yield(e, ok) {
				return
			}
			rest = next
		}
	}
}

// NameLen is the length of the name, without its terminator, that b starts with;
// -1 when it does not end in b.
func NameLen(b []byte) int {
	// Most names are a few bytes: looking at them takes less than a call does.
	short := b[:min(len(b), 8)]
	for i, c := range short {
		if c == 0 {
			return i
		}
	}
	n := bytes.IndexByte(b[len(short):], 0)
	if n < 0 {
		return -1
	}
	return len(short) + n
}

// Field finds the first field of a name at the top level of a document.
func Field(doc []byte, name string) (Element, bool) {
	for e, ok := range Fields(doc) {
		if ok && string(e.Name) == name {
			return e, true
		}
	}
	return Element{}, false
}

// MaxDepth is deeper than documents of a server are nested (about 200).
const MaxDepth = 250

// Valid reports that the elements of a document, and of the documents and arrays
// in it down to depth levels (1 is its own alone), keep within it. The driver's
// lookups end the program on some documents that are not valid (a string whose
// length is near 2 GB). With a depth of MaxDepth a document nested more deeply
// is not valid.
func Valid(doc []byte, depth int) bool { return valid(doc, depth, depth == MaxDepth) }

func valid(doc []byte, depth int, all bool) bool {
	if depth == 0 {
		return !all
	}
	for e, ok := range Fields(doc) {
		nested := (all || depth > 1) && (e.Type == bson.TypeEmbeddedDocument || e.Type == bson.TypeArray)
		if !ok || nested && !valid(e.Value, depth-1, all) {
			return false
		}
	}
	return true
}

// ValueSize returns how many bytes at the start of b are a value of type t;
// false when they are none, or more than b has. The inside of documents and
// arrays is not looked at.
func ValueSize(t bson.Type, b []byte) (int, bool) {
	switch t {
	case bson.TypeUndefined, bson.TypeNull, bson.TypeMaxKey, bson.TypeMinKey:
		return 0, true
	case bson.TypeBoolean:
		return fixed(1, b)
	case bson.TypeInt32:
		return fixed(4, b)
	case bson.TypeDouble, bson.TypeDateTime, bson.TypeTimestamp, bson.TypeInt64:
		return fixed(8, b)
	case bson.TypeObjectID:
		return fixed(12, b)
	case bson.TypeDecimal128:
		return fixed(16, b)
	case bson.TypeString, bson.TypeJavaScript, bson.TypeSymbol:
		return prefixed(b, 1, 4)
	case bson.TypeBinary:
		return prefixed(b, 0, 5)
	case bson.TypeDBPointer:
		return prefixed(b, 1, 16)
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		return prefixed(b, 5, 0)
	case bson.TypeCodeWithScope:
		return prefixed(b, 14, 0)
	case bson.TypeRegex:
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
