package history

import (
	"encoding/binary"
	"fmt"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Values are one or more values of every type, deprecated ones included, by name.
func Values() map[string]bson.RawValue {
	out := map[string]bson.RawValue{}
	add := func(name string, t bson.Type, v []byte) { out[name] = bson.RawValue{Type: t, Value: v} }
	double := func(name string, bits uint64) {
		add(name, bson.TypeDouble, binary.LittleEndian.AppendUint64(nil, bits))
	}
	double("double", math.Float64bits(1.5))
	double("double_whole", math.Float64bits(2))
	double("minus_zero", 1<<63)
	double("nan", math.Float64bits(math.NaN()))
	double("nan_negative", 0xfff8000000000000)
	double("nan_payload", 0x7ff8dead0000beef)
	double("nan_signalling", 0x7ff0000000000001)
	double("infinity", math.Float64bits(math.Inf(1)))
	double("minus_infinity", math.Float64bits(math.Inf(-1)))
	double("denormal", 1)
	for name, s := range map[string]string{"string": "häß 🙂", "string_empty": "", "string_nul": "a\x00b"} {
		add(name, bson.TypeString, bsoncore.AppendString(nil, s))
		add("symbol_"+name, bson.TypeSymbol, bsoncore.AppendString(nil, s))
	}
	add("code", bson.TypeJavaScript, bsoncore.AppendString(nil, "return 1"))
	scope := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "x", 1))
	add("code_scope", bson.TypeCodeWithScope, bsoncore.AppendCodeWithScope(nil, "return x", scope))
	add("document", bson.TypeEmbeddedDocument, scope)
	add("document_empty", bson.TypeEmbeddedDocument, bsoncore.BuildDocument(nil, nil))
	add("array", bson.TypeArray,
		bsoncore.BuildArray(nil, bsoncore.Value{Type: bsoncore.TypeInt32, Data: []byte{1, 0, 0, 0}}))
	add("array_empty", bson.TypeArray, bsoncore.BuildArray(nil))
	for _, sub := range []byte{0, 1, 2, 3, 4, 5, 0x80, 0xff} {
		add(fmt.Sprintf("binary_%d", sub), bson.TypeBinary, bsoncore.AppendBinary(nil, sub, []byte("0123456789abcdef")))
	}
	// 7.0 takes no bytes here but a compressed column; this is one
	add("binary_7", bson.TypeBinary, bsoncore.AppendBinary(nil, 7, []byte{0}))
	add("binary_empty", bson.TypeBinary, bsoncore.AppendBinary(nil, 0, nil))
	add("undefined", bson.TypeUndefined, nil)
	add("objectid", bson.TypeObjectID, []byte("0123456789ab"))
	add("true", bson.TypeBoolean, []byte{1})
	add("false", bson.TypeBoolean, []byte{0})
	for name, ms := range map[string]int64{"date": 1700000000123, "date_before_1970": -1, "date_min": math.MinInt64,
		"date_max": math.MaxInt64} {
		add(name, bson.TypeDateTime, binary.LittleEndian.AppendUint64(nil, uint64(ms)))
	}
	add("null", bson.TypeNull, nil)
	add("regex", bson.TypeRegex, bsoncore.AppendRegex(nil, "^a.*ü$", "imsx"))
	add("regex_plain", bson.TypeRegex, bsoncore.AppendRegex(nil, "", ""))
	add("dbpointer", bson.TypeDBPointer, bsoncore.AppendDBPointer(nil, "db.coll", bson.ObjectID([]byte("0123456789ab"))))
	for name, v := range map[string]int32{"int": 7, "int_min": math.MinInt32, "int_zero": 0} {
		add(name, bson.TypeInt32, binary.LittleEndian.AppendUint32(nil, uint32(v)))
	}
	for name, v := range map[string]int64{"long": 7, "long_max": math.MaxInt64, "long_2to53": 1<<53 + 1} {
		add(name, bson.TypeInt64, binary.LittleEndian.AppendUint64(nil, uint64(v)))
	}
	add("timestamp", bson.TypeTimestamp, bsoncore.AppendTimestamp(nil, 1700000000, 5))
	add("timestamp_high", bson.TypeTimestamp, bsoncore.AppendTimestamp(nil, math.MaxUint32, math.MaxUint32))
	for name, s := range map[string]string{
		"decimal": "1.50", "decimal_zeros": "1.500", "decimal_minus_zero": "-0", "decimal_nan": "NaN",
		"decimal_infinity": "-Infinity", "decimal_long": "1234567890123456789012345678901234", "decimal_exponent": "1E+6000",
	} {
		dec, err := bson.ParseDecimal128(s)
		if err != nil {
			panic(err) // of a constant
		}
		hi, lo := dec.GetBytes()
		add(name, bson.TypeDecimal128, bsoncore.AppendDecimal128(nil, hi, lo))
	}
	hi, lo := uint64(0x7c00dead00000000), uint64(0xbeef)
	add("decimal_nan_payload", bson.TypeDecimal128, bsoncore.AppendDecimal128(nil, hi, lo))
	add("minkey", bson.TypeMinKey, nil)
	add("maxkey", bson.TypeMaxKey, nil)
	return out
}
