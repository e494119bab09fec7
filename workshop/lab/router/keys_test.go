package router_test

import (
	"math"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab/router"
)

// samples are values of all types.
func samples() []any {
	decimal := func(s string) bson.Decimal128 {
		d, err := bson.ParseDecimal128(s)
		if err != nil {
			panic(err)
		}
		return d
	}
	return []any{
		bson.MinKey{}, bson.Null{}, math.NaN(), decimal("NaN"), math.Inf(-1), decimal("-Infinity"), -1e300,
		int64(math.MinInt64), -1.5, -1, decimal("-0.1"),
		0, math.Copysign(0, -1), 0.1, decimal("0.1"), 1, int64(1), 1.0, decimal("1"), 1.9, decimal("1.9"), decimal("2.5"),
		decimal("3.5"), decimal("-2.5"), decimal("-1.9"), int64(1)<<53 + 1, float64(int64(1) << 53), int64(math.MaxInt64),
		1e300,
		decimal("1E+6000"), math.Inf(1), decimal("Infinity"),
		"", "a", bson.Symbol("a"), "ab", "é", bson.D{}, bson.D{{Key: "a", Value: 1}},
		bson.D{{Key: "a", Value: 1.0}, {Key: "b", Value: "x"}},
		bson.D{{Key: "a", Value: "1"}}, bson.D{{Key: "a", Value: bson.A{1, bson.D{{Key: "c", Value: nil}}}}},
		bson.Binary{Data: []byte{}}, bson.Binary{Data: []byte{1, 2}},
		bson.Binary{Subtype: 4, Data: []byte("0123456789abcdef")},
		bson.ObjectID{1}, false, true, bson.DateTime(-1), bson.DateTime(5), bson.Timestamp{T: 1, I: 2},
		bson.Timestamp{T: 3_000_000_000},
		bson.Regex{Pattern: "a", Options: "i"}, bson.JavaScript("x"),
		bson.CodeWithScope{Code: "x", Scope: bson.D{{Key: "y", Value: 1}}}, bson.MaxKey{},
	}
}

// hash compares hashes with the server's own.
func (w *world) hash(t *testing.T) {
	for _, v := range samples() {
		want, err := w.cluster.Hash(t.Context(), v)
		if err != nil {
			t.Fatal(err)
		}
		if got := router.HashKey(kit.Value(v)); got != want {
			t.Errorf("hash of %#v (%v): %d, the server has %d", v, kit.Value(v), got, want)
		}
	}
}

// order compares the order of values with the server's own.
func (w *world) order(t *testing.T) {
	client, err := w.cluster.Direct(w.cluster.ShardNames()[0])
	if err != nil {
		t.Fatal(err)
	}
	all := samples()
	for _, a := range all {
		exprs := bson.A{}
		for _, b := range all {
			exprs = append(exprs, bson.D{{Key: "$cmp", Value: bson.A{
				bson.D{{Key: "$literal", Value: a}}, bson.D{{Key: "$literal", Value: b}}}}})
		}
		cur, err := client.Database("admin").Aggregate(t.Context(), bson.A{
			bson.D{{Key: "$currentOp", Value: bson.D{}}}, bson.D{{Key: "$limit", Value: 1}},
			bson.D{{Key: "$project", Value: bson.D{{Key: "c", Value: exprs}}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		var docs []struct{ C []int }
		if err := cur.All(t.Context(), &docs); err != nil || len(docs) != 1 {
			t.Fatal(len(docs), err)
		}
		for i, b := range all {
			if got := router.CompareValues(kit.Value(a), kit.Value(b)); got != docs[0].C[i] {
				t.Errorf("compare %v and %v: %d, the server has %d", kit.Value(a), kit.Value(b), got, docs[0].C[i])
			}
		}
	}
}
