package oplog

import (
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// text is a string value's bytes without its terminator.
func text(e bsonraw.Element) ([]byte, bool) {
	if e.Type != bson.TypeString {
		return nil, false
	}
	return e.Value[4 : len(e.Value)-1], true
}

// truth reads a flag as the server writes it: a boolean or a number.
func truth(e bsonraw.Element) bool {
	switch e.Type {
	case bson.TypeBoolean:
		return e.Value[0] != 0
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble:
		for _, c := range e.Value {
			if c != 0 {
				return true
			}
		}
	}
	return false
}

// integer reads an int32 or int64.
func integer(e bsonraw.Element) (int64, bool) {
	switch e.Type {
	case bson.TypeInt64:
		return int64(binary.LittleEndian.Uint64(e.Value)), true
	case bson.TypeInt32:
		return int64(int32(binary.LittleEndian.Uint32(e.Value))), true
	}
	return 0, false
}

// timestamp reads a timestamp.
func timestamp(e bsonraw.Element) (bson.Timestamp, bool) {
	if e.Type != bson.TypeTimestamp {
		return bson.Timestamp{}, false
	}
	return bson.Timestamp{I: binary.LittleEndian.Uint32(e.Value), T: binary.LittleEndian.Uint32(e.Value[4:])}, true
}
