package delta

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/bits"

	"github.com/cespare/xxhash/v2"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// Classes of keys. Types that never compare equal have classes of their own.
const (
	keyWhole  = 'i' // a number that fits into an int64
	keyReal   = 'r' // any other number that is a double
	keyFine   = 'd' // any other decimal
	keyNaN    = 'n'
	keyString = 's' // string and symbol
	keyObject = 'o'
	keyArray  = 'a'
	keyScope  = 'c' // code with scope
	keyOther  = 'x' // the type byte and the bytes as they are
	keyMore   = 1   // before each element of an object or array
	keyEnd    = 0
)

// AppendKey appends a key of an _id, equal for _ids that the server's _id index takes as equal
// (simple collation).
//
// Observed on 6.0.5 by inserting pairs: numbers of one exact value are equal, also within objects,
// arrays and the scope of code. (0.1 as double and as decimal differ.) Equal are also -0 and 0, all
// NaN, and a string and a symbol. null, undefined and missing fields, binary
// subtypes, field orders and names differ. The names of array elements do not count.
//
// It allocates only for decimals beyond 64 bits or with a fraction. Invalid BSON is kept as bytes.
func AppendKey(dst []byte, id bsonraw.ID) []byte {
	return appendKey(dst, bson.Type(id.Type), id.Data, 0)
}

// KeyOf returns AppendKey as a string.
func KeyOf(id bsonraw.ID) string { return string(AppendKey(nil, id)) }

func Hash(key []byte) uint64 { return xxhash.Sum64(key) }

func appendKey(dst []byte, typ bson.Type, val []byte, depth int) []byte {
	if n, ok := bsonraw.ValueSize(typ, val); !ok || n != len(val) || depth > maxDepth {
		return appendOther(dst, typ, val)
	}
	switch typ {
	case typeString, typeSymbol:
		return append(append(dst, keyString), val...)
	case typeInt32, typeInt64:
		n, _ := bsonraw.View{Type: typ, Value: val}.Int()
		return appendWhole(dst, n)
	case typeDouble:
		return appendReal(dst, bsonraw.View{Value: val}.Double())
	case typeDecimal128:
		return appendDecimal(dst, bsonraw.View{Value: val}.Decimal())
	case typeObject:
		return appendElements(append(dst, keyObject), val, true, depth)
	case typeArray:
		return appendElements(append(dst, keyArray), val, false, depth)
	case typeCodeScope:
		return appendScope(dst, val, depth)
	}
	return appendOther(dst, typ, val)
}

// appendOther keeps a value as it is, with its length, so that it cannot run into the next.
func appendOther(dst []byte, typ bson.Type, val []byte) []byte {
	dst = append(dst, keyOther, byte(typ))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(val)))
	return append(dst, val...)
}

func appendWhole(dst []byte, n int64) []byte {
	return binary.LittleEndian.AppendUint64(append(dst, keyWhole), uint64(n))
}

func appendReal(dst []byte, f float64) []byte {
	if f != f {
		return append(dst, keyNaN)
	}
	if n, ok := bsonraw.ExactInt(f); ok { // -0 becomes 0
		return appendWhole(dst, n)
	}
	return binary.LittleEndian.AppendUint64(append(dst, keyReal), math.Float64bits(f))
}

func appendElements(dst, doc []byte, names bool, depth int) []byte {
	rest := doc[4 : len(doc)-1]
	for f, ok := range bsonraw.Fields(doc) {
		dst = append(dst, keyMore)
		if !ok { // what is left counts by its bytes
			dst = appendOther(dst, 0, rest)
			break
		}
		if names {
			dst = append(append(dst, f.Name...), 0)
		}
		dst = appendKey(dst, f.Type, f.Value, depth+1)
		rest = rest[len(f.Raw):]
	}
	return append(dst, keyEnd)
}

func appendScope(dst, val []byte, depth int) []byte {
	n, ok := bsonraw.ValueSize(typeCode, val[4:])
	if !ok || len(val) < 4+n {
		return appendOther(dst, typeCodeScope, val)
	}
	dst = append(append(dst, keyScope), val[4:4+n]...)
	return appendKey(dst, typeObject, val[4+n:], depth+1)
}

// appendDecimal writes a decimal as a whole number if it is one of 64 bits, as a double if it is
// one, else by its digits.
func appendDecimal(dst []byte, d bsonraw.Decimal) []byte {
	switch d.Kind {
	case bsonraw.DecimalNaN:
		return append(dst, keyNaN)
	case bsonraw.DecimalMinusInf:
		return appendReal(dst, math.Inf(-1))
	case bsonraw.DecimalInf:
		return appendReal(dst, math.Inf(1))
	}
	if n, ok := wholeDecimal(d); ok {
		return appendWhole(dst, n)
	}
	f, exact := d.Magnitude().Float64()
	switch {
	case !exact:
		return appendFine(dst, d)
	case d.Negative:
		return appendReal(dst, -f)
	}
	return appendReal(dst, f)
}

// wholeDecimal returns a decimal that is an int64, without the heap.
func wholeDecimal(d bsonraw.Decimal) (int64, bool) {
	high, low, exp := d.High, d.Low, d.Exp
	if high|low == 0 {
		return 0, true
	}
	for ; exp < 0; exp++ {
		var rest uint64
		low, rest = bits.Div64(high%10, low, 10)
		if high /= 10; rest != 0 {
			return 0, false
		}
	}
	for ; exp > 0; exp-- {
		over, l := bits.Mul64(low, 10)
		if high != 0 || over != 0 {
			return 0, false
		}
		low = l
	}
	switch {
	case high != 0:
		return 0, false
	case !d.Negative && low <= math.MaxInt64:
		return int64(low), true
	case d.Negative && low <= 1<<63:
		return int64(-low), true
	}
	return 0, false
}

func appendFine(dst []byte, d bsonraw.Decimal) []byte {
	c, exp := d.Coefficient(), d.Exp
	ten, rest := big.NewInt(10), new(big.Int)
	for q := new(big.Int); ; exp++ {
		if q.QuoRem(c, ten, rest); rest.Sign() != 0 {
			break
		}
		c, q = q, c
	}
	sign := byte('+')
	if d.Negative {
		sign = '-'
	}
	dst = binary.LittleEndian.AppendUint16(append(dst, keyFine, sign), uint16(int16(exp)))
	var digits [16]byte // 34 digits are 113 bits
	return append(dst, c.FillBytes(digits[:])...)
}
