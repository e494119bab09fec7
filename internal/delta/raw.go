package delta

import (
	"encoding/binary"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// BSON type bytes of bsonspec.org, untyped: a byte to append as well as a bson.Type.
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

type field = bsonraw.Element

func openField(dst []byte, name string) ([]byte, int) {
	return bsonraw.OpenDocument(bsonraw.AppendHeader(dst, typeObject, name))
}

func closeOrDrop(dst []byte, start int, name string) []byte {
	if len(dst) == start+4 {
		return dst[:start-len(name)-2]
	}
	return bsonraw.CloseDocument(dst, start)
}

func appendValue(dst []byte, typ bson.Type, name, val []byte) []byte {
	return append(bsonraw.AppendHeader(dst, typ, name), val...)
}

// arrayIndex reads an array index. The server takes "01" for 1 (observed on 6.0.5).
func arrayIndex(s []byte) (int, bool) {
	n, err := strconv.ParseUint(string(s), 10, 64)
	return int(n), err == nil && n <= maxSize
}

func decimalName(dst []byte, idx int) []byte { return strconv.AppendInt(dst, int64(idx), 10) }

func putInt32(b []byte, n int) { binary.LittleEndian.PutUint32(b, uint32(n)) }
