package bench

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// The values that updates set, of a document that is a third random.
const thirdFields = ycsbFields

// thirdRandom makes documents of a size that take about a third of it on disk, as the published ones did. They have
// ten random integers, and a body of random bytes and a run. The published documents are not known.
func thirdRandom(size int) *shape {
	return &shape{
		name: "ten 32-bit integers, a body; a third of it random", noise: newNoise(), fields: thirdFields, size: size,
		id: func(_ *shape, dst []byte, key uint32) []byte {
			return bsoncore.AppendInt64Element(dst, "_id", int64(mix(uint64(key))))
		},
		body: func(s *shape, dst []byte, key uint32, version []uint32) []byte {
			for f := range thirdFields {
				dst = thirdField(s, dst, key, f, at(version, f))
			}
			return appendBody(s, dst, key)
		},
		field: thirdField,
	}
}

func thirdField(_ *shape, dst []byte, key uint32, field int, version uint32) []byte {
	return bsoncore.AppendInt32Element(dst, "field"+itoa(field),
		int32(mix(mix(uint64(key)<<32|uint64(version))+uint64(field))))
}

func appendBody(s *shape, dst []byte, key uint32) []byte {
	const (
		around    = 4 + 13 + thirdFields*12 + 11 + 1 // length, _id, fields, the body's own header, end
		numbers   = 8 + thirdFields*4                // random bytes outside the body
		unpressed = 70                               // names and headers, as snappy leaves them, and the page's own bytes
		runs      = 21                               // how many times smaller snappy makes a run
	)
	n := max(s.size-around, 0)
	// Somewhat less than a third: a table's file has room that is free.
	random := min(max(s.size*3/10-numbers-unpressed-n/runs, 0), n)
	dst = bsoncore.AppendHeader(dst, bsoncore.TypeBinary, "body")
	dst = append(dst, byte(n), byte(n>>8), byte(n>>16), byte(n>>24), 0)
	dst = append(dst, s.bytes(key, thirdFields, 0, random)...)
	for range n - random {
		dst = append(dst, 'x')
	}
	return dst
}

// stored is the size of the documents and what they take on disk, in bytes, on the member whose files are copied.
func (w *seedWork) stored(ctx context.Context) (data, disk int64, err error) {
	for c := range w.data.collections {
		raw, err := w.source.nodes[w.from].Command(ctx, dataDB, bson.D{{Key: "collStats", Value: collection(c)}})
		if err != nil {
			return 0, 0, fmt.Errorf("ask for the size of %s: %w", collection(c), err)
		}
		size, ok := raw.Lookup("size").AsInt64OK()
		storage, ok2 := raw.Lookup("storageSize").AsInt64OK()
		if !ok || !ok2 {
			return 0, 0, fmt.Errorf("the server returned no size of %s", collection(c))
		}
		data, disk = data+size, disk+storage
	}
	return data, disk, nil
}
