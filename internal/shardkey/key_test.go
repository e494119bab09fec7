package shardkey_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/shardkey"
	"github.com/millrace/millrace/test/kit"
)

// TestOf: nested and missing fields, hashed ones, and arrays, which no key has.
func TestOf(t *testing.T) {
	pattern := shardkey.Parse(kit.Raw(bson.D{{Key: "a.b", Value: 1}, {Key: "c", Value: "hashed"}, {Key: "d", Value: 1}}))
	doc := kit.Raw(bson.D{{Key: "_id", Value: 1}, {Key: "c", Value: 3.0},
		{Key: "a", Value: bson.D{{Key: "b", Value: "x"}}}})
	dotted := kit.Raw(bson.D{{Key: "a.b", Value: "x"}, {Key: "c", Value: 3.0}, {Key: "_id", Value: 1}})
	want := []bson.RawValue{kit.Value("x"), kit.Value(shardkey.Hash(kit.Value(int64(3)))), {Type: bson.TypeNull}}
	var k shardkey.Key
	for _, of := range []bool{pattern.Of(&k, doc), pattern.OfDocumentKey(&k, dotted), pattern.OfDocumentKey(&k, doc)} {
		if !of || shardkey.CompareKeys(k.Values, want) != 0 {
			t.Errorf("%t %v, want %v", of, k.Values, want)
		}
	}
	for _, a := range []bson.D{{{Key: "a", Value: bson.A{bson.D{{Key: "b", Value: 1}}}}}, {{Key: "d", Value: bson.A{}}}} {
		if pattern.Of(&k, kit.Raw(a)) {
			t.Errorf("%v has the key %v", a, k.Values)
		}
	}
}

// TestCompareKeys: what a key lacks counts as the lowest.
func TestCompareKeys(t *testing.T) {
	one, two := kit.Value(1), kit.Value(2.5)
	key := func(v ...bson.RawValue) []bson.RawValue { return v }
	for _, c := range []struct {
		a, b []bson.RawValue
		want int
	}{
		{nil, key(shardkey.MinKey()), 0}, {nil, key(one), -1}, {key(one), key(one, shardkey.MinKey()), 0},
		{key(one), key(one, two), -1}, {key(two), key(one, two), 1}, {key(shardkey.MaxKey()), key(two, two), 1},
	} {
		if got := shardkey.CompareKeys(c.a, c.b); got != c.want {
			t.Errorf("%v and %v: %d", c.a, c.b, got)
		}
	}
}
