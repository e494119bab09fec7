package delta

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/bits"
	"strconv"

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

// AppendKey appends a key of an _id. Two ids that the server's _id index considers equal
// (simple collation) have equal keys.
//
// Observed on 6.0.5 by inserting pairs: int32, int64, double and decimal of one value are
// equal. They are compared exactly (0.1 as double and as decimal differ), also within objects,
// arrays and the scope of code. Equal are also -0 and 0, all NaN of both types and any payload,
// and a string and a symbol. The types null and undefined, missing fields, binary subtypes,
// field orders and names differ. The names of array elements do not count.
//
// It allocates only for decimals beyond 64 bits or with a fraction. Invalid BSON gets a key of
// its bytes.
func AppendKey(dst []byte, id bsonraw.ID) []byte {
	return appendKey(dst, bson.Type(id.Type), id.Data, 0)
}

// KeyOf is AppendKey as a string, for maps.
func KeyOf(id bsonraw.ID) string { return string(AppendKey(nil, id)) }

// Hash is the hash of a key for partitions and maps.
func Hash(key []byte) uint64 { return xxhash.Sum64(key) }

func appendKey(dst []byte, typ bson.Type, val []byte, depth int) []byte {
	if n, ok := bsonraw.ValueSize(typ, val); !ok || n != len(val) || depth > maxDepth {
		return appendOther(dst, typ, val)
	}
	switch typ {
	case typeString, typeSymbol:
		return append(append(dst, keyString), val...)
	case typeInt32:
		return appendWhole(dst, int64(int32(binary.LittleEndian.Uint32(val))))
	case typeInt64:
		return appendWhole(dst, int64(binary.LittleEndian.Uint64(val)))
	case typeDouble:
		return appendReal(dst, math.Float64frombits(binary.LittleEndian.Uint64(val)))
	case typeDecimal128:
		return appendDecimal(dst, binary.LittleEndian.Uint64(val[8:]), binary.LittleEndian.Uint64(val))
	case typeObject:
		return appendElements(append(dst, keyObject), val, true, depth)
	case typeArray:
		return appendElements(append(dst, keyArray), val, false, depth)
	case typeCodeScope:
		return appendScope(dst, val, depth)
	}
	return appendOther(dst, typ, val)
}

// appendOther keeps a value as it is. Values within objects need a length,
// or one could run into the next.
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
	if f >= -1<<63 && f < 1<<63 && f == math.Trunc(f) {
		return appendWhole(dst, int64(f)) // -0 becomes 0
	}
	return binary.LittleEndian.AppendUint64(append(dst, keyReal), math.Float64bits(f))
}

// appendElements writes the elements of an object with, of an array without
// their names.
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

// appendScope writes code with scope: length, code, scope document.
func appendScope(dst, val []byte, depth int) []byte {
	n, ok := bsonraw.ValueSize(typeCode, val[4:])
	if !ok || len(val) < 4+n {
		return appendOther(dst, typeCodeScope, val)
	}
	dst = append(append(dst, keyScope), val[4:4+n]...)
	return appendKey(dst, typeObject, val[4+n:], depth+1)
}

// The layout of a decimal128: sign, 14 bits of exponent, 113 of coefficient.
const (
	decimalBias = 6176
	// The coefficient is at most 10^34 - 1, in a high and a low word.
	decimalMaxCoefH = 0x0001ED09BEAD87C0
	decimalMaxCoefL = 0x378D8E63FFFFFFFF
)

// appendDecimal writes a decimal as a whole number if it is one of 64 bits, as
// a double if it is one, else by its digits.
func appendDecimal(dst []byte, high, low uint64) []byte {
	negative := high>>63 == 1
	switch high >> 58 & 0x1F {
	case 0x1F:
		return append(dst, keyNaN)
	case 0x1E:
		return appendReal(dst, signed(math.Inf(1), negative))
	}
	exp := int(high>>49&0x3FFF) - decimalBias
	coefH := high & (1<<49 - 1)
	// The other layout holds only coefficients that are out of range, and these
	// count as zero.
	if high>>61&3 == 3 || coefH > decimalMaxCoefH || coefH == decimalMaxCoefH && low > decimalMaxCoefL {
		return appendWhole(dst, 0)
	}
	if n, ok := wholeDecimal(coefH, low, exp, negative); ok {
		return appendWhole(dst, n)
	}
	c := new(big.Int).SetUint64(coefH)
	c.Or(c.Lsh(c, 64), new(big.Int).SetUint64(low))
	if f := nearestDouble(c, exp); isDecimal(f, c, exp) {
		return appendReal(dst, signed(f, negative))
	}
	return appendFine(dst, c, exp, negative)
}

func signed(f float64, negative bool) float64 {
	if negative {
		return -f
	}
	return f
}

// wholeDecimal returns coefficient*10^exp if that is a whole int64.
func wholeDecimal(high, low uint64, exp int, negative bool) (int64, bool) {
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
	case !negative && low <= math.MaxInt64:
		return int64(low), true
	case negative && low <= 1<<63:
		return int64(-low), true
	}
	return 0, false
}

// nearestDouble is the double next to c*10^exp, infinity beyond its range.
func nearestDouble(c *big.Int, exp int) float64 {
	text := c.Append(make([]byte, 0, 48), 10)
	text = strconv.AppendInt(append(text, 'e'), int64(exp), 10)
	f, _ := strconv.ParseFloat(string(text), 64)
	return f
}

// isDecimal reports whether f is exactly c*10^exp, which is positive.
func isDecimal(f float64, c *big.Int, exp int) bool {
	if f == 0 || math.IsInf(f, 0) {
		return false
	}
	fraction, e := math.Frexp(f) // f is m*2^e
	m, e := new(big.Int).SetUint64(uint64(fraction*(1<<53))), e-53
	ten := func(n int) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }
	left := new(big.Int).Mul(c, ten(max(exp, 0)))
	left.Lsh(left, uint(max(-e, 0)))
	right := m.Mul(m, ten(max(-exp, 0)))
	right.Lsh(right, uint(max(e, 0)))
	return left.Cmp(right) == 0
}

// appendFine writes c*10^exp by its digits without zeros at their end.
func appendFine(dst []byte, c *big.Int, exp int, negative bool) []byte {
	ten, rest := big.NewInt(10), new(big.Int)
	for q := new(big.Int); ; exp++ {
		if q.QuoRem(c, ten, rest); rest.Sign() != 0 {
			break
		}
		c, q = q, c
	}
	sign := byte('+')
	if negative {
		sign = '-'
	}
	dst = binary.LittleEndian.AppendUint16(append(dst, keyFine, sign), uint16(int16(exp)))
	var digits [16]byte // 34 digits are 113 bits
	return append(dst, c.FillBytes(digits[:])...)
}
