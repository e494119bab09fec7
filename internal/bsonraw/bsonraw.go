// Package bsonraw reads BSON (bsonspec.org) without decoding it: no copies, and nothing past the
// given bytes. Only decimals allocate.
package bsonraw

import (
	"bytes"
	"encoding/binary"
	"iter"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Body returns the elements of a document or array; false when its length or terminator is wrong.
func Body(doc []byte) ([]byte, bool) {
	if len(doc) < 5 || int64(binary.LittleEndian.Uint32(doc)) != int64(len(doc)) || doc[len(doc)-1] != 0 {
		return nil, false
	}
	return doc[4 : len(doc)-1], true
}

// View is a value: its type, and a view of its bytes, of the size that the type requires. The zero
// View is a missing value.
type View struct {
	Type  bson.Type
	Value []byte
}

// IsDocument reports an embedded document.
func (v View) IsDocument() bool { return v.Type == bson.TypeEmbeddedDocument }

// IsArray reports an array.
func (v View) IsArray() bool { return v.Type == bson.TypeArray }

// IsNull reports null or undefined.
func (v View) IsNull() bool { return v.Type == bson.TypeNull || v.Type == bson.TypeUndefined }

// Text returns the bytes of a string, a symbol or code.
func (v View) Text() []byte { return v.Value[4 : len(v.Value)-1] }

// Str returns the bytes of a string, false for other values.
func (v View) Str() ([]byte, bool) {
	if v.Type != bson.TypeString {
		return nil, false
	}
	return v.Text(), true
}

// Document returns an embedded document, false for other values.
func (v View) Document() (bson.Raw, bool) {
	if !v.IsDocument() {
		return nil, false
	}
	_, ok := Body(v.Value)
	return v.Value, ok
}

// Element is one field of a document: views into the document's bytes.
type Element struct {
	View
	Name []byte // without its terminator
	Raw  []byte // all of it: type, name, terminator and value
}

// Next cuts the first element off a Body; false when it is missing or malformed.
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
	return Element{View{bson.Type(b[0]), b[start:end:end]}, b[1 : z+1], b[:end:end]}, b[end:], true
}

// Fields iterates over a document or array. In a malformed one, the last element comes with false.
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

// NameLen returns the length of the name at the start of b, or -1 if b does not terminate it.
func NameLen(b []byte) int {
	// Most names are a few bytes: to look at them is faster than a call.
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

// Field finds the first top-level field of a name.
func Field(doc []byte, name string) (Element, bool) {
	for e, ok := range Fields(doc) {
		if ok && string(e.Name) == name {
			return e, true
		}
	}
	return Element{}, false
}

// Without copies a valid document without the named fields.
func Without(doc bson.Raw, names ...string) bson.Raw {
	out, start := OpenDocument(nil)
	for f := range Fields(doc) {
		if !slices.Contains(names, string(f.Name)) {
			out = append(out, f.Raw...)
		}
	}
	return CloseDocument(out, start)
}

// MaxDepth is more than servers nest (about 200).
const MaxDepth = 250

// Valid reports that the elements of a document keep within it, down to depth levels. Level 1 is the
// top. With MaxDepth, deeper documents are not valid. The driver's lookups end the program on some
// invalid documents, such as one with a string of nearly 2 GB.
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

// ValueSize returns the size of the value of type t at the start of b; false if b has none. It does not
// look into documents and arrays.
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

// prefixed sizes a value with an int32 length of at least least, which excludes extra bytes.
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
