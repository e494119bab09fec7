package copy

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// FuzzSliceState: no stored progress makes a start panic; a plan that is not
// whole is void.
func FuzzSliceState(f *testing.F) {
	id := bsoncore.Value{Type: bsoncore.TypeInt32, Data: []byte{1, 0, 0, 0}}
	for _, s := range []any{
		SliceState{Collection: "c", Of: 1, Plan: 1, Strategy: ByRecord, Lower: mark(ByRecord, 5, id), Upper: mark(ByRecord, 9, id), Back: []int64{3, 2}},
		SliceState{Collection: "c", N: 1, Of: 2, Plan: 2, Strategy: ByID, Position: mark(ByID, 0, id)},
		bson.D{{Key: "n", Value: -1}, {Key: "lower", Value: bson.D{{Key: "r", Value: "x"}}}}, bson.D{{Key: "strategy", Value: "none"}},
	} {
		b, err := bson.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)-3])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var s SliceState
		if bson.Unmarshal(b, &s) != nil {
			return
		}
		for _, m := range []bson.Raw{s.Lower, s.Upper, s.Position} {
			markRecord(m)
			idKey(markID(m))
		}
		plans, _ := newestPlans([]SliceState{s, s})
		if len(plans) > 0 {
			t.Errorf("a slice that was saved twice is a plan: %+v", plans)
		}
		if plans, _ = newestPlans([]SliceState{s}); len(plans) > 0 && (s.N != 0 || s.Of != 1) {
			t.Errorf("a part is a plan: %+v", plans)
		}
		anchors([]SliceState{s})
	})
}

// FuzzDocument: the bytes of a document as a server sends it.
func FuzzDocument(f *testing.F) {
	id := bsoncore.Value{Type: bsoncore.TypeString, Data: bsoncore.AppendString(nil, "x")}
	for _, b := range [][]byte{mark(ByID, 0, id), mark(ByRecord, 1, id), nil, {5, 0, 0, 0, 0},
		[]byte("\x10\x00\x00\x00\x02_id\x00\xff\xff\xff\x7f\x00\x00\x00")} { // a string of 2 GB
		f.Add(b)
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		_ = idText(b)
		_, _ = recordID(b)
		tokenRecord(b)
	})
}
