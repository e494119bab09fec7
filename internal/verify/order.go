package verify

import (
	"bytes"
	"cmp"
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// likelyOrder guesses which of two ids comes first in an index: -1 for a, +1 for b,
// 0 for not known. It only saves work, so it may be wrong (strings under a
// collation) and knows only what ids mostly are.
func likelyOrder(a, b []byte) int {
	if len(a) == 0 || len(b) == 0 || a[0] != b[0] {
		return 0
	}
	x, y := a[1:], b[1:]
	switch bson.Type(a[0]) {
	case bson.TypeObjectID:
		return bytes.Compare(x, y)
	case bson.TypeString:
		return bytes.Compare(x[4:], y[4:])
	case bson.TypeInt64, bson.TypeDateTime:
		return cmp.Compare(int64(binary.LittleEndian.Uint64(x)), int64(binary.LittleEndian.Uint64(y)))
	case bson.TypeInt32:
		return cmp.Compare(int32(binary.LittleEndian.Uint32(x)), int32(binary.LittleEndian.Uint32(y)))
	case bson.TypeBinary:
		return cmp.Or(cmp.Compare(len(x), len(y)), bytes.Compare(x[4:], y[4:])) // the subtype, then the bytes
	}
	return 0
}
