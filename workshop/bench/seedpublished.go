package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
)

// PublishedSeed is a cell of the published comparison of an initial sync that
// copies files with the logical one: Percona Server for MongoDB 8.0.12-4, three
// members of 4 processors and 16 GB, disks of 1.2 TB and 3600 operations a second.
type PublishedSeed struct {
	Test int `json:"test"` // 1 to 5
	// Collections of the set, and secondary indexes of each.
	Collections int `json:"collections"`
	Indexes     int `json:"indexes"`
	// DocumentBytes is the size of a document.
	DocumentBytes int `json:"documentBytes"`
	// DataGB are the documents, DiskGB what they took on disk.
	DataGB float64 `json:"dataGB"`
	DiskGB float64 `json:"diskGB"`
	// LogicalMinutes and CopyMinutes are what the two ways took.
	LogicalMinutes float64 `json:"logicalMinutes"`
	CopyMinutes    float64 `json:"copyMinutes"`
}

// PublishedSeeds are all cells, in the order of the publication. Those of test 1
// to 4 differ in indexes, those of test 5 in collections, with which the data grow.
func PublishedSeeds() []PublishedSeed {
	return []PublishedSeed{
		{1, 1, 1, 500, 30, 10, 4, 2}, {1, 1, 2, 500, 30, 10, 5, 2}, {1, 1, 5, 500, 30, 10, 8, 3}, {1, 1, 10, 500, 30, 10, 12, 3},
		{2, 2, 2, 10_000, 300, 100, 25, 9}, {2, 2, 3, 10_000, 300, 100, 26, 11}, {2, 2, 4, 10_000, 300, 100, 28, 12}, {2, 2, 5, 10_000, 300, 100, 29, 12},
		{3, 5, 1, 10_000, 1500, 500, 111, 44}, {3, 5, 4, 10_000, 1500, 500, 125, 46}, {3, 5, 7, 10_000, 1500, 500, 129, 46}, {3, 5, 10, 10_000, 1500, 500, 131, 48},
		{4, 60, 0, 8_000, 3000, 1000, 212, 87}, {4, 60, 5, 8_000, 3000, 1000, 235, 93}, {4, 60, 10, 8_000, 3000, 1000, 275, 102},
		{5, 1, 5, 3_000, 4, 2, 1, 2}, {5, 5, 5, 3_000, 30, 10, 4, 2}, {5, 10, 5, 3_000, 66, 22, 9, 3}, {5, 20, 5, 3_000, 123, 41, 17, 5},
		{5, 40, 5, 3_000, 230, 76, 35, 9}, {5, 60, 5, 3_000, 330, 110, 54, 13}, {5, 80, 5, 3_000, 426, 142, 82, 17}, {5, 100, 5, 3_000, 530, 177, 96, 21},
	}
}

// publishedTests is how many tests the publication has, publishedShare the part of
// its data that medium scale measures.
const (
	publishedTests = 5
	publishedShare = 0.01
)

// cell is its place in the matrix.
func (p PublishedSeed) cell() seedCase { return seedCase{p.Collections, p.Indexes, &p} }

// publishedCells are the cells of some tests; names leaves those of these names.
func publishedCells(tests []int, names []string) ([]seedCase, error) {
	for _, t := range tests {
		if t < 1 || t > publishedTests {
			return nil, mongo.WithHint(fmt.Errorf("there is no published test %d of seeding", t), "name tests 1 to "+itoa(publishedTests))
		}
	}
	var cells []seedCase
	left := slices.Clone(names)
	for _, p := range PublishedSeeds() {
		name := p.cell().place()
		if !slices.Contains(tests, p.Test) || len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		cells = append(cells, p.cell())
		left = slices.DeleteFunc(left, func(s string) bool { return s == name })
	}
	if len(left) > 0 {
		return nil, mongo.WithHint(fmt.Errorf("the published tests that were chosen have no cell %s", strings.Join(left, ", ")),
			"name cells of these tests as collections x indexes, or leave --cells out")
	}
	return cells, nil
}

// dataset is the cell's data at a scale, in decimal gigabytes as disks are sold.
func (p PublishedSeed) dataset(s Scale) dataset {
	docs := p.DataGB * 1e9 * publishedShare * s.Factor / float64(p.DocumentBytes)
	return dataset{thirdRandom(p.DocumentBytes), max(int(docs), 10*p.Collections), p.Collections}
}

// The values that updates set, of a document that is a third random.
const thirdFields = ycsbFields

// thirdRandom are documents of a size that take some third of it on disk, as the
// published ones did: ten random integers, for indexes, and a body of which as much
// is random bytes as makes up a third, and the rest one letter. What the published
// documents and indexed fields were is not known.
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
	return bsoncore.AppendInt32Element(dst, "field"+itoa(field), int32(mix(mix(uint64(key)<<32|uint64(version))+uint64(field))))
}

// appendBody fills the document up to its size.
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

// stored is the size of the documents and what they take on disk, in bytes, on the
// member whose files are copied.
func (w *seedWork) stored(ctx context.Context) (data, disk int64, err error) {
	for c := range w.data.collections {
		raw, err := w.source.nodes[w.from].Command(ctx, dataDB, bson.D{{Key: "collStats", Value: collection(c)}})
		if err != nil {
			return 0, 0, fmt.Errorf("ask for the size of %s: %w", collection(c), err)
		}
		size, ok := raw.Lookup("size").AsInt64OK()
		storage, ok2 := raw.Lookup("storageSize").AsInt64OK()
		if !ok || !ok2 {
			return 0, 0, errors.New("the server does not tell the size of a collection")
		}
		data, disk = data+size, disk+storage
	}
	return data, disk, nil
}
