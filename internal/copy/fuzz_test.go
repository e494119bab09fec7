package copy

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/scan"
)

// FuzzSliceState: a stored plan that is not whole is void.
func FuzzSliceState(f *testing.F) {
	for _, s := range []any{
		scan.Slice{Collection: "c", Of: 1, Plan: 1, Strategy: scan.ByRecord, Back: []int64{3, 2}},
		scan.Slice{Collection: "c", N: 1, Of: 2, Plan: 2, Strategy: scan.ByID},
		bson.D{{Key: "n", Value: -1}, {Key: "lower", Value: bson.D{{Key: "r", Value: "x"}}}}, bson.D{{Key: "strategy",
			Value: "none"}},
	} {
		b, err := bson.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)-3])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var s scan.Slice
		if bson.Unmarshal(b, &s) != nil {
			return
		}
		plans, _ := newestPlans([]scan.Slice{s, s})
		if len(plans) > 0 {
			t.Errorf("a slice that was saved twice is a plan: %+v", plans)
		}
		if plans, _ = newestPlans([]scan.Slice{s}); len(plans) > 0 && (s.N != 0 || s.Of != 1) {
			t.Errorf("a part is a plan: %+v", plans)
		}
	})
}

// FuzzDocument: the _id of any bytes can be shown.
func FuzzDocument(f *testing.F) {
	for _, b := range [][]byte{nil, {5, 0, 0, 0, 0},
		[]byte("\x10\x00\x00\x00\x02_id\x00\xff\xff\xff\x7f\x00\x00\x00")} { // a string of 2 GB
		f.Add(b)
	}
	f.Fuzz(func(_ *testing.T, b []byte) { _ = idText(b) })
}
