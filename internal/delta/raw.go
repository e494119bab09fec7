package delta

import (
	"encoding/binary"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// BSON type bytes, as in bsonspec.org, which are untyped here: a byte to append
// as well as a bson.Type.
const (
	typeDouble     = 0x01
	typeString     = 0x02
	typeObject     = 0x03
	typeArray      = 0x04
	typeBool       = 0x08
	typeNull       = 0x0A
	typeCode       = 0x0D
	typeSymbol     = 0x0E
	typeCodeScope  = 0x0F
	typeInt32      = 0x10
	typeTimestamp  = 0x11
	typeInt64      = 0x12
	typeDecimal128 = 0x13
)

// field is one element of a document.
type field = bsonraw.Element

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

// closeOrDrop is closeDoc of what openField began with the name; it takes the
// whole element back if nothing is in it.
func closeOrDrop(dst []byte, start int, name string) []byte {
	if len(dst) == start+4 {
		return dst[:start-len(name)-2]
	}
	return closeDoc(dst, start)
}

func appendHeader(dst []byte, typ bson.Type, name []byte) []byte {
	dst = append(dst, byte(typ))
	dst = append(dst, name...)
	return append(dst, 0)
}

// appendValue writes an element with another name or of another origin.
func appendValue(dst []byte, typ bson.Type, name, val []byte) []byte {
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
	n, err := strconv.ParseUint(string(s), 10, 64)
	return int(n), err == nil && n <= maxSize
}

// decimalName writes the name of an array element.
func decimalName(dst []byte, idx int) []byte { return strconv.AppendInt(dst, int64(idx), 10) }

func putInt32(b []byte, n int) { binary.LittleEndian.PutUint32(b, uint32(n)) }
