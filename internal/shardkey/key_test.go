package shardkey_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/shardkey"
)

func raw(t *testing.T, d bson.D) bson.Raw {
	t.Helper()
	b, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func value(t *testing.T, v any) bson.RawValue {
	t.Helper()
	typ, data, err := bson.MarshalValue(v)
	if err != nil {
		t.Fatal(err)
	}
	return bson.RawValue{Type: typ, Value: data}
}

// TestOf: nested and missing fields, hashed ones, and arrays, which no key has.
func TestOf(t *testing.T) {
	pattern := shardkey.Parse(raw(t, bson.D{{Key: "a.b", Value: 1}, {Key: "c", Value: "hashed"}, {Key: "d", Value: 1}}))
	doc := raw(t, bson.D{{Key: "_id", Value: 1}, {Key: "c", Value: 3.0}, {Key: "a", Value: bson.D{{Key: "b", Value: "x"}}}})
	dotted := raw(t, bson.D{{Key: "a.b", Value: "x"}, {Key: "c", Value: 3.0}, {Key: "_id", Value: 1}})
	want := []bson.RawValue{value(t, "x"), value(t, shardkey.Hash(value(t, int64(3)))), {Type: bson.TypeNull}}
	var k shardkey.Key
	for _, of := range []bool{pattern.Of(&k, doc), pattern.OfDocumentKey(&k, dotted), pattern.OfDocumentKey(&k, doc)} {
		if !of || shardkey.CompareKeys(k.Values, want) != 0 {
			t.Errorf("%t %v, want %v", of, k.Values, want)
		}
	}
	for _, a := range []bson.D{{{Key: "a", Value: bson.A{bson.D{{Key: "b", Value: 1}}}}}, {{Key: "d", Value: bson.A{}}}} {
		if pattern.Of(&k, raw(t, a)) {
			t.Errorf("%v has the key %v", a, k.Values)
		}
	}
}

// TestCompareKeys: what a key lacks counts as the lowest.
func TestCompareKeys(t *testing.T) {
	one, two := value(t, 1), value(t, 2.5)
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
