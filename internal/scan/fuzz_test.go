package scan

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
)

// FuzzSlice: no stored progress makes a start panic.
func FuzzSlice(f *testing.F) {
	id := bsoncore.Value{Type: bsoncore.TypeInt32, Data: []byte{1, 0, 0, 0}}
	for _, s := range []any{
		Slice{Collection: "c", Of: 1, Plan: 1, Strategy: ByRecord, Lower: mark(ByRecord, 5, id), Upper: mark(ByRecord, 9, id),
			Back: []int64{3, 2}},
		Slice{Collection: "c", N: 1, Of: 2, Plan: 2, Strategy: ByID, Position: mark(ByID, 0, id)},
		bson.D{{Key: "n", Value: -1}, {Key: "lower", Value: bson.D{{Key: "r", Value: "x"}}}},
		bson.D{{Key: "strategy", Value: "none"}},
	} {
		b, err := bson.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)-3])
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		var s Slice
		if bson.Unmarshal(b, &s) != nil {
			return
		}
		for _, m := range []bson.Raw{s.Lower, s.Upper, s.Position} {
			Record(m)
			idKey(markID(m))
		}
		anchors([]Slice{s})
	})
}

// FuzzReply: the bytes of a document or a resume token as a server sends it.
func FuzzReply(f *testing.F) {
	id := bsoncore.Value{Type: bsoncore.TypeString, Data: bsoncore.AppendString(nil, "x")}
	for _, b := range [][]byte{mark(ByID, 0, id), mark(ByRecord, 1, id), nil, {5, 0, 0, 0, 0},
		[]byte("\x10\x00\x00\x00\x02_id\x00\xff\xff\xff\x7f\x00\x00\x00")} { // a string of 2 GB
		f.Add(b)
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		bsonraw.IDOf(b)
		if _, ok := recordOf(b); ok {
			withoutRecord(b)
		}
		tokenRecord(b)
	})
}
