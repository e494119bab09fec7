package bench

import (
	"encoding/binary"
	"math"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// shape makes documents from their numbers, out of random bytes in memory, so that a load is never slowed by it.
// Fields that updates set have versions; version 0 is that of the insert.
type shape struct {
	name   string
	noise  []byte
	fields int // that updates may set
	size   int // bytes of one document, roughly
	id     func(s *shape, dst []byte, key uint32) []byte
	body   func(s *shape, dst []byte, key uint32, version []uint32) []byte
	field  func(s *shape, dst []byte, key uint32, field int, version uint32) []byte
}

// bytes are n random bytes that belong to a field of a document.
func (s *shape) bytes(key uint32, field int, version uint32, n int) []byte {
	at := mix(uint64(key)<<32|uint64(version)) + uint64(field)*0x9e3779b97f4a7c15
	off := int(mix(at) % uint64(len(s.noise)-n))
	return s.noise[off : off+n]
}

// appendDoc writes document number key with its fields at these versions; nil is as inserted.
func (s *shape) appendDoc(dst []byte, key uint32, version []uint32) []byte {
	i, dst := bsoncore.AppendDocumentStart(dst)
	dst = s.id(s, dst, key)
	dst = s.body(s, dst, key, version)
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}

func at(version []uint32, field int) uint32 {
	if version == nil {
		return 0
	}
	return version[field]
}

const (
	ycsbFields    = 10
	ycsbFieldSize = 100
)

// ycsb is the usual document of YCSB: ten fields of 100 random bytes and a string as _id that comes from a hash.
func ycsb() *shape {
	return &shape{
		name: "YCSB, 10 fields x 100 B binary, _id \"user\" and a hash", noise: newNoise(), fields: ycsbFields, size: 1176,
		id: userID, body: ycsbBody, field: ycsbField,
	}
}

func userID(_ *shape, dst []byte, key uint32) []byte {
	dst = bsoncore.AppendHeader(dst, bsoncore.TypeString, "_id")
	n := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = append(dst, "user"...)
	dst = strconv.AppendUint(dst, mix(uint64(key)), 10)
	dst = append(dst, 0)
	binary.LittleEndian.PutUint32(dst[n:], uint32(len(dst)-n-4))
	return dst
}

func ycsbBody(s *shape, dst []byte, key uint32, version []uint32) []byte {
	for f := range ycsbFields {
		dst = s.field(s, dst, key, f, at(version, f))
	}
	return dst
}

func ycsbField(s *shape, dst []byte, key uint32, field int, version uint32) []byte {
	dst = append(dst, byte(bsoncore.TypeBinary))
	dst = append(dst, "field"...)
	dst = append(dst, byte('0'+field), 0)
	return bsoncore.AppendBinary(dst, 0, s.bytes(key, field, version, ycsbFieldSize))
}

// texts is ycsb with letters in its fields, for rules that are about text.
func texts() *shape {
	s := ycsb()
	s.name = "YCSB, 10 fields x 100 letters, _id \"user\" and a hash"
	for i, b := range s.noise {
		s.noise[i] = 'a' + b%26
	}
	s.field = func(s *shape, dst []byte, key uint32, field int, version uint32) []byte {
		name := [...]byte{'f', 'i', 'e', 'l', 'd', byte('0' + field)}
		return bsoncore.AppendStringElement(dst, string(name[:]), string(s.bytes(key, field, version, ycsbFieldSize)))
	}
	return s
}

// unique is ycsb with two unique fields; updates may change the first of them.
func unique() *shape {
	s := ycsb()
	s.name += ", serial and email unique"
	s.fields, s.size = ycsbFields+1, s.size+70
	s.body = func(s *shape, dst []byte, key uint32, version []uint32) []byte {
		dst = ycsbBody(s, dst, key, version)
		dst = uniqueField(s, dst, key, ycsbFields, at(version, ycsbFields))
		return bsoncore.AppendStringElement(dst, "email", strconv.FormatUint(mix(uint64(key)), 36)+"@example.com")
	}
	s.field = uniqueField
	return s
}

func uniqueField(s *shape, dst []byte, key uint32, field int, version uint32) []byte {
	if field < ycsbFields {
		return ycsbField(s, dst, key, field, version)
	}
	return bsoncore.AppendInt64Element(dst, "serial", int64(key)<<32|int64(version))
}

// small are documents of exactly 140 bytes and seven fields.
func small() *shape {
	return &shape{
		name: "140 B, 7 fields, _id a hashed 64-bit integer", noise: newNoise(), fields: 2, size: 140,
		id: func(_ *shape, dst []byte, key uint32) []byte {
			return bsoncore.AppendInt64Element(dst, "_id", int64(mix(uint64(key))))
		},
		body: func(s *shape, dst []byte, key uint32, version []uint32) []byte {
			dst = bsoncore.AppendInt32Element(dst, "customer", int32(key%100_000))
			dst = smallField(s, dst, key, 0, at(version, 0))
			dst = smallField(s, dst, key, 1, at(version, 1))
			dst = bsoncore.AppendBooleanElement(dst, "paid", key%3 == 0)
			dst = bsoncore.AppendStringElement(dst, "state", "accepted")
			return appendLetters(dst, "note", s.bytes(key, 2, 0, 42))
		},
		field: smallField,
	}
}

func smallField(_ *shape, dst []byte, key uint32, field int, version uint32) []byte {
	if field == 0 {
		return bsoncore.AppendDoubleElement(dst, "amount", float64(key%1000)+float64(version)/4)
	}
	return bsoncore.AppendDateTimeElement(dst, "at", 1_700_000_000_000+int64(key)+int64(version))
}

func appendLetters(dst []byte, name string, random []byte) []byte {
	dst = bsoncore.AppendHeader(dst, bsoncore.TypeString, name)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(random)+1))
	for _, b := range random {
		dst = append(dst, 'a'+b%26)
	}
	return append(dst, 0)
}

// mixedIDs is ycsb with _ids of eight BSON types.
func mixedIDs() *shape {
	s := ycsb()
	s.name = "YCSB, 10 fields x 100 B binary, _ids of 8 BSON types"
	s.id = func(s *shape, dst []byte, key uint32) []byte {
		h := mix(uint64(key))
		switch key % 8 {
		case 0:
			return userID(s, dst, key)
		case 1:
			return bsoncore.AppendInt64Element(dst, "_id", int64(h))
		case 2: // never the value of an integer
			return bsoncore.AppendDoubleElement(dst, "_id", float64(key)+0.5)
		case 3:
			var oid bson.ObjectID
			binary.BigEndian.PutUint64(oid[:], h)
			binary.BigEndian.PutUint32(oid[8:], key)
			return bsoncore.AppendObjectIDElement(dst, "_id", oid)
		case 4:
			return bsoncore.AppendBinaryElement(dst, "_id", 0, binary.BigEndian.AppendUint64(nil, h))
		case 5:
			return bsoncore.AppendDateTimeElement(dst, "_id", int64(h%math.MaxUint16)<<32|int64(key))
		case 6:
			return bsoncore.AppendTimestampElement(dst, "_id", uint32(h>>32)|1, key)
		}
		i, dst := bsoncore.AppendDocumentElementStart(dst, "_id")
		dst = bsoncore.AppendInt32Element(dst, "a", int32(h))
		dst = bsoncore.AppendInt32Element(dst, "b", int32(key))
		dst, _ = bsoncore.AppendDocumentEnd(dst, i)
		return dst
	}
	return s
}
