package bsonraw

import (
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// EmptyDocument is {}.
const EmptyDocument = "\x05\x00\x00\x00\x00"

// OpenDocument reserves the length of a document, and returns where it starts.
func OpenDocument(dst []byte) ([]byte, int) { return append(dst, 0, 0, 0, 0), len(dst) }

// CloseDocument terminates the document that starts at start, and sets its length.
func CloseDocument(dst []byte, start int) []byte {
	dst = append(dst, 0)
	binary.LittleEndian.PutUint32(dst[start:], uint32(len(dst)-start))
	return dst
}

// Close ends documents and arrays that bsoncore has started at these indexes, the innermost first.
func Close(dst []byte, starts ...int32) []byte {
	for _, at := range starts {
		dst = CloseDocument(dst, int(at))
	}
	return dst
}

// AppendHeader appends the type and the name of an element.
func AppendHeader[T string | []byte](dst []byte, typ bson.Type, name T) []byte {
	dst = append(dst, byte(typ))
	dst = append(dst, name...)
	return append(dst, 0)
}

// IsIndex reports a name in digits, also with leading zeros.
func IsIndex[T string | []byte](name T) bool {
	for i := range len(name) {
		if name[i] < '0' || name[i] > '9' {
			return false
		}
	}
	return len(name) > 0
}
