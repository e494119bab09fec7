package query

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/big"
	"math/bits"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func (v value) double() float64 { return math.Float64frombits(binary.LittleEndian.Uint64(v.data)) }

// whole is an int32 or int64.
func (v value) whole() (int64, bool) {
	switch v.typ {
	case bson.TypeInt32:
		return int64(int32(binary.LittleEndian.Uint32(v.data))), true
	case bson.TypeInt64:
		return int64Of(v.data), true
	}
	return 0, false
}

// isNaN is for numbers of any type.
func (v value) isNaN() bool {
	switch v.typ {
	case bson.TypeDouble:
		return math.IsNaN(v.double())
	case bson.TypeDecimal128:
		return decimalOf(v).kind == kindNaN
	}
	return false
}

// compareNumbers orders numbers of all types by their exact value; NaN is the
// lowest, -0 equals 0.
func compareNumbers(a, b value) int {
	i, isInt := a.whole()
	j, alsoInt := b.whole()
	switch {
	case isInt && alsoInt:
		return cmp.Compare(i, j)
	case a.typ == bson.TypeDecimal128 || b.typ == bson.TypeDecimal128:
		return compareDecimals(decimalOf(a), decimalOf(b))
	case isInt:
		return compareIntDouble(i, b.double())
	case alsoInt:
		return -compareIntDouble(j, a.double())
	}
	return cmp.Compare(a.double(), b.double()) // NaN first
}

// two63 is 2^63, the first double beyond an int64.
const two63 = float64(1 << 63)

func compareIntDouble(i int64, f float64) int {
	switch {
	case math.IsNaN(f), f < -two63:
		return 1
	case f >= two63:
		return -1
	}
	if c := cmp.Compare(i, int64(f)); c != 0 {
		return c
	}
	return cmp.Compare(0, f-math.Trunc(f))
}

// exactInt is a double as an int64, false when it is none.
func exactInt(f float64) (int64, bool) {
	if !(f >= -two63 && f < two63) || f != math.Trunc(f) {
		return 0, false
	}
	return int64(f), true
}

// kind is the place of a decimal among those that are no plain number.
type kind int8

const (
	kindNaN kind = iota
	kindMinusInf
	kindFinite
	kindInf
)

// decimal is a number as sign, coefficient and power of ten. A double that is no
// whole number keeps its own form in real.
type decimal struct {
	kind     kind
	negative bool
	binary   bool
	high     uint64
	low      uint64
	exp      int
	real     float64
}

// The layout of a decimal128: sign, 14 bits of exponent, 113 of coefficient.
const (
	decimalBias     = 6176
	decimalMaxCoefH = 0x0001ED09BEAD87C0 // high word of 10^34 - 1
	decimalMaxCoefL = 0x378D8E63FFFFFFFF
)

// decimalOf is any number as a decimal.
func decimalOf(v value) decimal {
	if v.typ == bson.TypeDecimal128 {
		return unpackDecimal(binary.LittleEndian.Uint64(v.data[8:]), binary.LittleEndian.Uint64(v.data))
	}
	if n, ok := v.whole(); ok {
		return wholeDecimal(n)
	}
	f := v.double()
	switch {
	case math.IsNaN(f):
		return decimal{kind: kindNaN}
	case math.IsInf(f, 1):
		return decimal{kind: kindInf}
	case math.IsInf(f, -1):
		return decimal{kind: kindMinusInf}
	}
	if n, ok := exactInt(f); ok {
		return wholeDecimal(n)
	}
	return decimal{kind: kindFinite, negative: f < 0, binary: true, real: math.Abs(f)}
}

func wholeDecimal(n int64) decimal {
	d := decimal{kind: kindFinite, low: uint64(n)}
	if n < 0 {
		d.negative, d.low = true, -uint64(n)
	}
	return d
}

func unpackDecimal(high, low uint64) decimal {
	d := decimal{kind: kindFinite, negative: high>>63 == 1}
	switch high >> 58 & 0x1F {
	case 0x1F:
		return decimal{kind: kindNaN}
	case 0x1E:
		if d.negative {
			return decimal{kind: kindMinusInf}
		}
		return decimal{kind: kindInf}
	}
	d.exp = int(high>>49&0x3FFF) - decimalBias
	d.high, d.low = high&(1<<49-1), low
	// The other layout holds only coefficients that are out of range, and these
	// count as zero.
	if high>>61&3 == 3 || d.high > decimalMaxCoefH || d.high == decimalMaxCoefH && low > decimalMaxCoefL {
		d.high, d.low, d.exp = 0, 0, 0
	}
	return d
}

func (d decimal) zero() bool { return !d.binary && d.high|d.low == 0 }

// sign is -1, 0 or 1, of finite ones.
func (d decimal) sign() int {
	switch {
	case d.zero():
		return 0
	case d.negative:
		return -1
	}
	return 1
}

func compareDecimals(a, b decimal) int {
	if a.kind != b.kind || a.kind != kindFinite {
		return cmp.Compare(a.kind, b.kind)
	}
	s := a.sign()
	if s != b.sign() || s == 0 {
		return cmp.Compare(s, b.sign())
	}
	c, ok := compareShort(a, b)
	if !ok {
		c, ok = compareNear(a, b)
	}
	if !ok {
		c = a.magnitude().Cmp(b.magnitude())
	}
	return s * c
}

// compareShort compares the magnitudes of decimals of 64 bits without the heap, when
// their exponents are near to each other: prices and counts are.
func compareShort(a, b decimal) (int, bool) {
	if a.binary || b.binary || a.high|b.high != 0 {
		return 0, false
	}
	if a.exp < b.exp {
		c, ok := compareShort(b, a)
		return -c, ok
	}
	by := a.exp - b.exp
	if by > 19 {
		return 0, false
	}
	power := uint64(1)
	for range by {
		power *= 10
	}
	if high, low := bits.Mul64(a.low, power); high == 0 {
		return cmp.Compare(low, b.low), true
	}
	return 1, true
}

// compareNear compares a decimal with a double without the heap, when they are so far
// apart that rounding makes no difference.
func compareNear(a, b decimal) (int, bool) {
	if !b.binary {
		if !a.binary {
			return 0, false
		}
		c, ok := compareNear(b, a)
		return -c, ok
	}
	// Up to 10^22 powers of ten are exact, and two roundings are less than 2^-51.
	if a.binary || a.high != 0 || a.exp < -22 || a.exp > 22 {
		return 0, false
	}
	f := float64(a.low)
	if a.exp < 0 {
		f /= math.Pow10(-a.exp)
	} else {
		f *= math.Pow10(a.exp)
	}
	return cmp.Compare(f, b.real), math.Abs(f-b.real) > f*1e-14
}

// magnitude is the exact number without its sign.
func (d decimal) magnitude() *big.Rat {
	if d.binary {
		return new(big.Rat).SetFloat64(d.real)
	}
	n := new(big.Int).SetUint64(d.high)
	n.Or(n.Lsh(n, 64), new(big.Int).SetUint64(d.low))
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(d.exp, -d.exp))), nil)
	if d.exp < 0 {
		return new(big.Rat).SetFrac(n, power)
	}
	return new(big.Rat).SetInt(n.Mul(n, power))
}
