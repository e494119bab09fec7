package shardkey

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"math/big"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// Order and classes of types are those of the server manual, "Comparison/Sort
// Order", without collation.

// class is a type's place in the order of types.
func class(t bson.Type) int {
	switch t {
	case bson.TypeMinKey:
		return -1
	case bson.TypeUndefined, 0:
		return 0
	case bson.TypeNull:
		return 5
	case bson.TypeDouble, bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128:
		return 10
	case bson.TypeString, bson.TypeSymbol:
		return 15
	case bson.TypeEmbeddedDocument:
		return 20
	case bson.TypeArray:
		return 25
	case bson.TypeBinary:
		return 30
	case bson.TypeObjectID:
		return 35
	case bson.TypeBoolean:
		return 40
	case bson.TypeDateTime:
		return 45
	case bson.TypeTimestamp:
		return 47
	case bson.TypeRegex:
		return 50
	case bson.TypeDBPointer:
		return 55
	case bson.TypeJavaScript:
		return 60
	case bson.TypeCodeWithScope:
		return 65
	}
	return 127 // MaxKey
}

// Compare orders two values as servers do.
func Compare(a, b bson.RawValue) int {
	if c := cmp.Compare(class(a.Type), class(b.Type)); c != 0 {
		return c
	}
	switch class(a.Type) {
	case 10:
		return compareNumbers(a, b)
	case 15, 60:
		return bytes.Compare(stringBytes(a), stringBytes(b))
	case 20, 25:
		return CompareDocuments(a.Value, b.Value)
	case 30:
		return compareBinary(a.Value, b.Value)
	case 45:
		return cmp.Compare(int64(binary.LittleEndian.Uint64(a.Value)), int64(binary.LittleEndian.Uint64(b.Value)))
	case 47:
		return cmp.Compare(binary.LittleEndian.Uint64(a.Value), binary.LittleEndian.Uint64(b.Value))
	case -1, 0, 5, 127:
		return 0
	}
	return bytes.Compare(a.Value, b.Value)
}

// CompareDocuments orders documents and arrays: field by field by type, then
// name, then value.
func CompareDocuments(a, b []byte) int {
	ra, _ := bsonraw.Body(a)
	rb, _ := bsonraw.Body(b)
	for len(ra) > 0 && len(rb) > 0 {
		var ea, eb bsonraw.Element
		var okA, okB bool
		ea, ra, okA = bsonraw.Next(ra)
		eb, rb, okB = bsonraw.Next(rb)
		if !okA || !okB {
			return 0
		}
		if c := cmp.Compare(class(ea.Type), class(eb.Type)); c != 0 {
			return c
		}
		if c := bytes.Compare(ea.Name, eb.Name); c != 0 {
			return c
		}
		if c := Compare(valueOf(ea), valueOf(eb)); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(ra), len(rb))
}

func valueOf(e bsonraw.Element) bson.RawValue { return bson.RawValue{Type: e.Type, Value: e.Value} }

// stringBytes is a string's text.
func stringBytes(v bson.RawValue) []byte { return v.Value[4 : len(v.Value)-1] }

// compareBinary orders by length, subtype and bytes.
func compareBinary(a, b []byte) int {
	if c := cmp.Compare(binary.LittleEndian.Uint32(a), binary.LittleEndian.Uint32(b)); c != 0 {
		return c
	}
	return bytes.Compare(a[4:], b[4:])
}

// compareNumbers orders numbers of all types exactly; NaN is the lowest.
func compareNumbers(a, b bson.RawValue) int {
	if a.Type != bson.TypeDouble && b.Type != bson.TypeDouble && a.Type != bson.TypeDecimal128 &&
		b.Type != bson.TypeDecimal128 {
		return cmp.Compare(a.AsInt64(), b.AsInt64())
	}
	if a.Type == bson.TypeDouble && b.Type == bson.TypeDouble {
		return cmp.Compare(a.Double(), b.Double()) // NaN first, as servers have it
	}
	ra, ia := exact(a)
	rb, ib := exact(b)
	if ia != 0 || ib != 0 {
		return cmp.Compare(ia, ib)
	}
	return ra.Cmp(rb)
}

// exact is a number as a fraction, or its place among those that are none: NaN -2,
// infinite ±1.
func exact(v bson.RawValue) (*big.Rat, int) {
	switch v.Type {
	case bson.TypeDouble:
		f := v.Double()
		switch {
		case math.IsNaN(f):
			return nil, -2
		case math.IsInf(f, 0):
			return nil, int(math.Copysign(1, f))
		}
		return new(big.Rat).SetFloat64(f), 0
	case bson.TypeDecimal128:
		return exactDecimal(v.Decimal128())
	}
	return new(big.Rat).SetInt64(v.AsInt64()), 0
}

func exactDecimal(d bson.Decimal128) (*big.Rat, int) {
	if d.IsNaN() {
		return nil, -2
	}
	if sign := d.IsInf(); sign != 0 {
		return nil, sign
	}
	digits, exp, err := d.BigInt()
	if err != nil {
		return nil, -2
	}
	r := new(big.Rat).SetInt(digits)
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(exp, -exp))), nil)
	if exp < 0 {
		return r.Quo(r, new(big.Rat).SetInt(power)), 0
	}
	return r.Mul(r, new(big.Rat).SetInt(power)), 0
}

// MinKey and MaxKey are the lowest and the highest value.
func MinKey() bson.RawValue { return bson.RawValue{Type: bson.TypeMinKey} }
func MaxKey() bson.RawValue { return bson.RawValue{Type: bson.TypeMaxKey} }
