package test

import (
	"fmt"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/test/history"
)

// idScenarios hold what an _id can be.
func idScenarios() []scenario {
	return []scenario{
		{name: "ids_of_every_type", setup: idsSetup, change: idsChange},
		{name: "ids_mixed_many", setup: manyIDsSetup, change: manyIDsChange},
		{name: "ids_equal_in_other_bytes", setup: equalIDsSetup, change: equalIDsChange},
		{name: "ids_compound", setup: compoundIDsSetup, change: compoundIDsChange},
		{name: "ids_not_first", setup: notFirstSetup},
	}
}

// ids are values that differ as _id.
func ids() []any {
	var out []any
	equal := map[string]bool{ // to another one, as an _id
		"double_whole": true, "minus_zero": true, "nan_negative": true, "nan_payload": true, "nan_signalling": true,
		"long":          true,
		"decimal_zeros": true, "decimal": true, "decimal_minus_zero": true, "decimal_nan": true, "decimal_infinity": true,
		"decimal_nan_payload": true,
		"symbol_string":       true, "symbol_string_empty": true, "symbol_string_nul": true,
		// not allowed
		"array": true, "array_empty": true, "regex": true, "regex_plain": true, "undefined": true,
	}
	for name, v := range ordered(history.Values()) {
		if !equal[name] {
			out = append(out, v)
		}
	}
	return append(out, bson.RawValue{Type: bson.TypeSymbol, Value: bsoncore.AppendString(nil, "only a symbol")},
		d("a", 1), d("a", a(1, 2)), d("a", d()), d("b", math.NaN()), d("a", nil), "\xf4\x8f\xbf\xbf", "~", "0", int64(-5),
		-5.5, 1e300)
}

func idsSetup(s *site) {
	for i, id := range ids() {
		s.insert("c", d("_id", id, "i", i))
		s.insert("changed", d("_id", id, "i", i, "x", a(1, 2, 3)))
		s.insert("emptied", d("_id", id, "i", i))
	}
}

func idsChange(s *site) {
	for i, id := range ids() {
		// $eq, because a query by a code, regular expression or document of
		// operators means something else.
		at := d("_id", d("$eq", id))
		s.update("changed", at, d("$set", d("i", i+1, "y", 1)))
		s.update("changed", at, a(d("$set", d("x", d("$slice", a("$x", 1)), "z", 1))))
		s.insert("inserted", d("_id", id, "i", i))
		s.remove("emptied", at)
		switch i % 3 {
		case 0:
			s.update("c", at, d("replaced", i))
		case 1:
			s.remove("c", at)
			s.insert("c", d("_id", id, "again", i))
		}
	}
	s.update("changed", d(), d("$inc", d("i", 100)), "multi", true)
}

// manyID gives different ids of many types, none of which prevails.
func manyID(i int) any {
	switch i % 9 {
	case 0:
		return i
	case 1:
		return float64(i) + 0.5
	case 2:
		return fmt.Sprintf("%c%d", rune(' '+i%90), i)
	case 3:
		return bson.ObjectID{byte(i), byte(i >> 8), 1}
	case 4:
		return d("i", i)
	case 5:
		return bson.Binary{Subtype: byte(i % 5), Data: []byte(fmt.Sprint(i))}
	case 6:
		return bson.DateTime(i * 1000)
	case 7:
		return bson.Timestamp{T: uint32(i), I: 1}
	}
	dec, err := bson.ParseDecimal128(fmt.Sprintf("%d.25", i))
	check(err)
	return dec
}

func manyIDsSetup(s *site) {
	s.insert("c", d("_id", bson.MinKey{}), d("_id", bson.MaxKey{}), d("_id", nil), d("_id", math.NaN()), d("_id", true))
	s.fill("c", 6000, func(i int) bson.D { return d("_id", manyID(i), "i", i) })
}

func manyIDsChange(s *site) {
	s.fillFrom("c", 6000, 7000, func(i int) bson.D { return d("_id", manyID(i), "i", i) })
	s.update("c", d("i", d("$mod", a(3, 0))), d("$set", d("changed", true)), "multi", true)
	s.remove("c", d("i", d("$mod", a(7, 1))))
	s.update("c", d("_id", math.NaN()), d("$set", d("x", 1)))
	s.update("c", d("_id", nil), d("$set", d("x", 1)))
	s.update("c", d("_id", bson.MinKey{}), d("$set", d("x", 1)))
}

// equalIDs are equal as _id within each line, but not in bytes.
func equalIDs() [][]any {
	dec := func(s string) any {
		v, err := bson.ParseDecimal128(s)
		check(err)
		return v
	}
	v := history.Values()
	return [][]any{
		{int32(1), 1.0, int64(1), dec("1"), dec("1.000")},
		{int32(0), v["minus_zero"], dec("-0"), dec("0E+3"), int64(0)},
		{v["nan"], v["nan_payload"], dec("NaN"), v["nan_negative"]},
		{d("a", int32(2)), d("a", 2.0), d("a", dec("2.0"))},
		{d("a", a(int32(2), "x")), d("a", a(int64(2), "x"))},
		{"same", bson.Symbol("same")},
		{v["infinity"], dec("Infinity")},
	}
}

func equalIDsSetup(s *site) {
	for i, line := range equalIDs() {
		for _, coll := range []string{"recreated", "cycled", "kept"} {
			s.insert(coll, d("_id", line[0], "i", i))
		}
	}
}

func equalIDsChange(s *site) {
	for i, line := range equalIDs() {
		for n, id := range line[1:] {
			at := d("_id", d("$eq", id)) // meets the one in other bytes
			s.remove("recreated", at)
			s.insert("recreated", d("_id", id, "i", i, "n", n))
			s.update("recreated", at, d("$inc", d("n", 10)))
			s.update("kept", at, d("$set", d("n", n)))
			s.update("kept", at, d("replaced", n))
			s.update("upserted", at, d("$set", d("n", n)), "upsert", true)
		}
		for range 5 {
			for _, id := range line {
				s.remove("cycled", d("_id", d("$eq", id)))
				s.insert("cycled", d("_id", id, "i", i))
			}
		}
		s.remove("cycled", d("_id", d("$eq", line[0])))
		s.insert("cycled", d("_id", line[len(line)-1]))
	}
}

func compoundIDsSetup(s *site) {
	s.fill("c", 500, func(i int) bson.D { return d("_id", d("a", i%20, "b", fmt.Sprint(i)), "i", i) })
	// The order of fields makes different ids.
	s.insert("c", d("_id", d("b", "1", "a", 1), "i", -1), d("_id", d("a", 1), "i", -2), d("_id", d(), "i", -3),
		d("_id", d("a", 1, "b", "1", "c", d("d", a())), "i", -4))
}

func compoundIDsChange(s *site) {
	s.update("c", d("_id.a", 3), d("$set", d("x", 1)), "multi", true)
	s.remove("c", d("_id.a", 4))
	s.update("c", d("_id", d("b", "1", "a", 1)), d("$set", d("x", 1)))
	s.update("c", d("_id", d("a", 1)), d("y", 1))
	s.insert("c", d("_id", d("b", "4", "a", 4)))
}

// The server puts _id first when it is not, and makes one when there is none.
func notFirstSetup(s *site) {
	s.insert("c", d("x", 1, "_id", 1), d("x", 2), d("x", 3, "_id", d("z", 1, "y", 2)))
}
