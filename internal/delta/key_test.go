package delta

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/big"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/test/testseed"
)

func value(t testing.TB, v any) bsoncore.Value {
	t.Helper()
	b, err := bson.Marshal(d("v", v))
	if err != nil {
		t.Fatal(err)
	}
	f, _, _ := bsonraw.Next(b[4 : len(b)-1])
	return bsoncore.Value{Type: bsoncore.Type(f.Type), Data: f.Value}
}

func decimal(t testing.TB, s string) bson.Decimal128 {
	t.Helper()
	v, err := bson.ParseDecimal128(s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// idGroups: what a 6.0.5 server takes for one _id is one group; testKeysOnServer
// asks it again.
func idGroups(t testing.TB) [][]any {
	dec := func(s string) bson.Decimal128 { return decimal(t, s) }
	nan := math.Float64frombits
	scope := func(v any) bson.CodeWithScope { return bson.CodeWithScope{Code: "a", Scope: d("x", v)} }
	bin := func(sub byte, b string) bson.Binary { return bson.Binary{Subtype: sub, Data: []byte(b)} }
	return [][]any{
		{int32(1), int64(1), 1.0, dec("1"), dec("1.0"), dec("10E-1"), dec("0.01E+2")},
		{int32(0), math.Copysign(0, -1), 0.0, dec("0"), dec("-0"), dec("0E+5"), dec("-0E-9")},
		{math.NaN(), nan(0x7ff8000000000001), nan(0xfff8000000000000), nan(0x7ff0000000000001), dec("NaN"),
			bson.NewDecimal128(0xfc00000000000000, 5)},
		{math.Inf(1), dec("Infinity")},
		{math.Inf(-1), dec("-Infinity")},
		{0.5, dec("0.5"), dec("0.50")},
		{-2.25, dec("-2.25")},
		{float64(1 << 53), int64(1 << 53)},
		{int64(1<<53 + 1), dec("9007199254740993")},
		{float64(1 << 63), dec("9223372036854775808")},
		{int64(math.MaxInt64), dec("9223372036854775807")},
		{int64(math.MinInt64), float64(math.MinInt64), dec("-9223372036854775808")},
		{"a", bson.Symbol("a")},
		{"1"}, {""}, {nil}, {bson.MinKey{}}, {bson.MaxKey{}}, {true}, {false},
		{bson.JavaScript("a")}, {bson.CodeWithScope{Code: "a", Scope: d()}},
		{scope(int32(1)), scope(int64(1))},
		{scope("a"), scope(bson.Symbol("a"))},
		{bson.DateTime(1)}, {bson.Timestamp{I: 1}},
		{bin(0, "ab")}, {bin(2, "ab")}, {bin(5, "ab")}, {bin(0, "")},
		{bson.ObjectID{}}, {bson.DBPointer{DB: "a"}},
		{d()},
		{d("a", int32(1)), d("a", 1.0), d("a", dec("1.0"))},
		{d("a", "s"), d("a", bson.Symbol("s"))},
		{d("a", nil)}, {d("a", bson.Undefined{})},
		{d("r", arr{int32(1)}), d("r", arr{1.0})},
		{d("r", d("0", int32(1)))}, {d("r", arr{})}, {d("r", arr{arr{}})}, {d("r", arr{nil})},
		{d("o", d("a", int32(1))), d("o", d("a", 1.0))},
		{d("a", math.NaN()), d("a", dec("-NaN"))},
		{d("a", math.Copysign(0, -1)), d("a", int32(0))},
		{d("a", 1, "b", 2)}, {d("b", 2, "a", 1)}, {d("a", "b", "c", "")}, {d("a", "b\x00c", "c", "")},
		{d("a", bson.Regex{Pattern: "a"})}, {d("a", bin(2, "ab"))}, {d("a", bin(0, "ab"))},
		// Decimals are compared exactly.
		{0.1}, {dec("0.1"), dec("0.10")}, {dec("0.1000000000000000055511151231257827")},
		{dec("0.1000000000000000055511151231257828")},
		{dec("-0.1")}, {dec("1E+400"), dec("10E+399")}, {dec("1E-400")}, {dec("-1E-400")}, {1e300}, {dec("1E+300")}, {5e-324},
		{dec("5E-324")},
		{dec("9223372036854775809")}, {1e22, dec("1E+22"), dec("10000000000000000000000")}, {dec("1E+23")}, {1e23},
		{0.000030517578125, dec("0.000030517578125")}, {dec("9.999999999999999999999999999999999E+6144")},
		{d("a", dec("0.1"))}, {d("a", 0.1)}, {d("a", dec("0.1"), "b", 1)},
	}
}

func TestKeyGroups(t *testing.T) {
	groups := idGroups(t)
	keys := map[string]int{}
	for i, group := range groups {
		first := AppendKey(nil, value(t, group[0]))
		if j, ok := keys[string(first)]; ok {
			t.Errorf("%v has the key of %v", group[0], groups[j][0])
		}
		keys[string(first)] = i
		for _, id := range group[1:] {
			if key := AppendKey(nil, value(t, id)); !bytes.Equal(key, first) {
				t.Errorf("%v: key %x, but %x for %v", id, key, first, group[0])
			} else if Hash(key) != Hash(first) {
				t.Errorf("%v: hash differs", id)
			}
		}
	}
}

// testKeysOnServer: within a group a second insert is a duplicate, across
// groups it is not.
func testKeysOnServer(t *testing.T, s *server) {
	insert := func(coll *mongo.Collection, id any) bool {
		v := value(t, id)
		_, err := coll.InsertOne(s.ctx(), bson.Raw(bsoncore.NewDocumentBuilder().AppendValue("_id", v).Build()))
		if err != nil && !mongo.IsDuplicateKeyError(err) {
			t.Fatalf("%v: %v", id, err)
		}
		return err == nil
	}
	coll := s.fresh("ids")
	for _, group := range idGroups(t) {
		if !insert(coll, group[0]) {
			t.Errorf("%v: duplicate of another group", group[0])
		}
		for _, id := range group[1:] {
			if insert(coll, id) {
				t.Errorf("%v: no duplicate of %v", id, group[0])
			}
		}
	}
}

// TestKeyOfNumbers compares numbers of all types by exact value.
func TestKeyOfNumbers(t *testing.T) {
	g := newGen(testseed.Of(t))
	for range 2000 {
		n := int64(g.Uint64()) >> g.IntN(64)
		want := AppendKey(nil, value(t, n))
		exp := g.IntN(6)
		c := new(big.Int).Mul(big.NewInt(n), new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(exp)), nil))
		ids := []any{decimal(t, c.String()+"E-"+string(rune('0'+exp)))}
		if n == int64(int32(n)) {
			ids = append(ids, int32(n))
		}
		if f := float64(n); math.Abs(f) < 1<<63 && int64(f) == n {
			ids = append(ids, f)
		}
		for _, id := range ids {
			if got := AppendKey(nil, value(t, id)); !bytes.Equal(got, want) {
				t.Errorf("%T %v: key %x, want %x", id, id, got, want)
			}
		}
	}
	for range 2000 { // a double and the decimal of its exact value
		f := float64(int64(g.Uint64())>>20) / float64(int64(1)<<g.IntN(20))
		dec, ok := bson.ParseDecimal128FromBigInt(exactDecimal(f))
		if !ok {
			continue
		}
		if a, b := AppendKey(nil, value(t, f)), AppendKey(nil, value(t, dec)); !bytes.Equal(a, b) {
			t.Errorf("%v and %v: keys %x and %x", f, dec, a, b)
		}
	}
}

// exactDecimal returns a double with at most 20 binary places as coefficient
// and exponent: each binary place takes one decimal place.
func exactDecimal(f float64) (*big.Int, int) {
	r := new(big.Rat).SetFloat64(f)
	r.Mul(r, new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(20), nil)))
	return r.Num(), -20
}

func TestKeyOfInvalid(t *testing.T) {
	for _, v := range []bsoncore.Value{
		{},
		{Type: bsoncore.TypeString, Data: []byte{9, 0, 0, 0, 'a'}},
		{Type: bsoncore.TypeInt64, Data: []byte{1}},
		{Type: bsoncore.TypeDecimal128, Data: make([]byte, 15)},
		{Type: bsoncore.TypeEmbeddedDocument, Data: []byte{6, 0, 0, 0, 1, 0}},
		{Type: bsoncore.TypeCodeWithScope, Data: append(binary.LittleEndian.AppendUint32(nil, 14), make([]byte, 10)...)},
		{Type: 99, Data: []byte("abc")},
	} {
		if len(AppendKey(nil, v)) == 0 {
			t.Errorf("%v has no key", v)
		}
	}
	// Decimals beyond the range of the format count as zero.
	zero := AppendKey(nil, value(t, int32(0)))
	for _, high := range []uint64{0x6c10000000000000, 0x3041ffffffffffff} {
		if got := AppendKey(nil, value(t, bson.NewDecimal128(high, 1))); !bytes.Equal(got, zero) {
			t.Errorf("decimal %x: key %x", high, got)
		}
	}
}
