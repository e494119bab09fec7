package fields

import (
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// value is a type and the bytes of a value.
type value struct {
	typ  bson.Type
	data []byte
}

func valueOf(e bsonraw.Element) value { return value{e.Type, e.Value} }

func (v value) isDocument() bool { return v.typ == bson.TypeEmbeddedDocument }

func (v value) isArray() bool { return v.typ == bson.TypeArray }

// isNull is for null and undefined.
func (v value) isNull() bool { return v.typ == bson.TypeNull || v.typ == bson.TypeUndefined }

// text is the text of a string.
func (v value) text() string { return string(v.data[4 : len(v.data)-1]) }

func (v value) int64() int64 { return int64(binary.LittleEndian.Uint64(v.data)) }

const emptyDocument = "\x05\x00\x00\x00\x00"

// openDocument reserves the length of a document and returns where it is.
func openDocument(dst []byte) ([]byte, int) { return append(dst, 0, 0, 0, 0), len(dst) }

// closeDocument ends the document that starts at start.
func closeDocument(dst []byte, start int) []byte {
	dst = append(dst, 0)
	binary.LittleEndian.PutUint32(dst[start:], uint32(len(dst)-start))
	return dst
}

func appendHeader[T string | []byte](dst []byte, typ bson.Type, name T) []byte {
	dst = append(dst, byte(typ))
	dst = append(dst, name...)
	return append(dst, 0)
}

func appendText[T string | []byte](dst []byte, text T) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(text)+1))
	dst = append(dst, text...)
	return append(dst, 0)
}

func putLength(b []byte, n int) { binary.LittleEndian.PutUint32(b, uint32(n)) }

func appendBool(dst []byte, yes bool) []byte {
	if yes {
		return append(dst, 1)
	}
	return append(dst, 0)
}

func appendInt64(dst []byte, n int64) []byte {
	return binary.LittleEndian.AppendUint64(dst, uint64(n))
}

// isIndex says of a name that it is written in digits.
func isIndex[T string | []byte](name T) bool {
	for i := range len(name) {
		if name[i] < '0' || name[i] > '9' {
			return false
		}
	}
	return len(name) > 0
}
