package oplog

import (
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// element is one field of a document, aliasing its bytes.
type element struct {
	typ bson.Type
	key []byte
	val []byte
}

// next cuts the first element off; ok is false when it is malformed. b must
// not be empty.
func next(b []byte) (e element, rest []byte, ok bool) {
	k := bsonraw.NameLen(b[1:])
	if k < 0 {
		return e, nil, false
	}
	e.typ, e.key = bson.Type(b[0]), b[1:1+k]
	b = b[k+2:]
	n, ok := bsonraw.ValueSize(e.typ, b)
	if !ok {
		return e, nil, false
	}
	e.val = b[:n:n]
	return e, b[n:], true
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
