package ycsb

import (
	"bytes"
	"math/rand/v2"

	"github.com/cespare/xxhash/v2"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
)

// noiseSize is larger than the second-level cache of a core, so that contents
// do not repeat within what a server compresses together.
const noiseSize = 16 << 20

// NewNoise is a block of random bytes, always the same, that contents of
// documents are cut out of: a value costs little more than its copy.
func NewNoise() []byte {
	b := make([]byte, noiseSize)
	_, _ = rand.NewChaCha8([32]byte{20, 26}).Read(b) // never fails
	return b
}

// Scatter is a bijection of 64-bit numbers that looks random (splitmix64).
func Scatter(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// records makes the fields of documents.
type records struct {
	noise  []byte
	fields []string
	length numbers
	fixed  bool // contents follow from key and field, so that they can be checked
}

// appendField writes one field of the record with this key.
func (s *records) appendField(dst []byte, r *rand.Rand, key []byte, field int) []byte {
	dst = append(dst, byte(bsoncore.TypeBinary))
	dst = append(dst, s.fields[field]...)
	dst = append(dst, 0)
	return bsoncore.AppendBinary(dst, 0, s.value(r, key, field, int(s.length.next(r))))
}

// appendFields writes all fields.
func (s *records) appendFields(dst []byte, r *rand.Rand, key []byte) []byte {
	for f := range s.fields {
		dst = s.appendField(dst, r, key, f)
	}
	return dst
}

// value is n bytes of a field.
func (s *records) value(r *rand.Rand, key []byte, field, n int) []byte {
	var at uint64
	if s.fixed {
		at = Scatter(xxhash.Sum64(key) + uint64(field)*0x9e3779b97f4a7c15)
	} else {
		at = r.Uint64()
	}
	off := int(at % uint64(len(s.noise)-n+1))
	return s.noise[off : off+n]
}

// verify says that a document has the contents that its fields were given.
// Fields that a read left out are not missed.
func (s *records) verify(doc, key []byte) bool {
	rest, ok := bsonraw.Body(doc)
	seen := 0
	for ok && len(rest) > 0 {
		var e bsonraw.Element
		if e, rest, ok = bsonraw.Next(rest); !ok {
			return false
		}
		if string(e.Name) == "_id" {
			continue
		}
		f := s.index(string(e.Name))
		if f < 0 || len(e.Value) < 5 {
			return false
		}
		// length, subtype and the bytes
		if got := e.Value[5:]; !bytes.Equal(got, s.value(nil, key, f, int(s.length.next(nil)))) {
			return false
		}
		seen++
	}
	return ok && seen > 0
}

func (s *records) index(name string) int {
	for i, f := range s.fields {
		if f == name {
			return i
		}
	}
	return -1
}
