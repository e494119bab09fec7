package query

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/big"
	"math/bits"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

func isNaN(v value) bool {
	return v.Type == bson.TypeDouble && math.IsNaN(v.Double()) ||
		v.Type == bson.TypeDecimal128 && v.Decimal().Kind == bsonraw.DecimalNaN
}

// compareNumbers orders numbers of all types by their exact value; NaN is lowest, -0 equals 0.
func compareNumbers(a, b value) int {
	i, isInt := a.Int()
	j, alsoInt := b.Int()
	switch {
	case isInt && alsoInt:
		return cmp.Compare(i, j)
	case a.Type == bson.TypeDecimal128 || b.Type == bson.TypeDecimal128:
		return compareDecimals(decimalOf(a), decimalOf(b))
	case isInt:
		return compareIntDouble(i, b.Double())
	case alsoInt:
		return -compareIntDouble(j, a.Double())
	}
	return cmp.Compare(a.Double(), b.Double()) // NaN first
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

type decimal struct {
	bsonraw.Decimal
	binary bool
	real   float64
}

func decimalOf(v value) decimal {
	if v.Type == bson.TypeDecimal128 {
		return decimal{Decimal: v.Decimal()}
	}
	if n, ok := v.Int(); ok {
		return wholeDecimal(n)
	}
	f := v.Double()
	kind := bsonraw.DecimalFinite
	switch {
	case math.IsNaN(f):
		kind = bsonraw.DecimalNaN
	case math.IsInf(f, 1):
		kind = bsonraw.DecimalInf
	case math.IsInf(f, -1):
		kind = bsonraw.DecimalMinusInf
	}
	if n, ok := bsonraw.ExactInt(f); ok {
		return wholeDecimal(n)
	}
	return decimal{bsonraw.Decimal{Kind: kind, Negative: f < 0}, true, math.Abs(f)}
}

func wholeDecimal(n int64) decimal {
	d := bsonraw.Decimal{Kind: bsonraw.DecimalFinite, Low: uint64(n)}
	if n < 0 {
		d.Negative, d.Low = true, -uint64(n)
	}
	return decimal{Decimal: d}
}

func (d decimal) zero() bool { return !d.binary && d.High|d.Low == 0 }

func (d decimal) sign() int {
	switch {
	case d.zero():
		return 0
	case d.Negative:
		return -1
	}
	return 1
}

func compareDecimals(a, b decimal) int {
	if a.Kind != b.Kind || a.Kind != bsonraw.DecimalFinite {
		return cmp.Compare(a.Kind, b.Kind)
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

// compareShort compares the magnitudes of decimals of 64 bits with similar exponents, such as prices,
// without the heap.
func compareShort(a, b decimal) (int, bool) {
	if a.binary || b.binary || a.High|b.High != 0 {
		return 0, false
	}
	if a.Exp < b.Exp {
		c, ok := compareShort(b, a)
		return -c, ok
	}
	by := a.Exp - b.Exp
	if by > 19 {
		return 0, false
	}
	power := uint64(1)
	for range by {
		power *= 10
	}
	if high, low := bits.Mul64(a.Low, power); high == 0 {
		return cmp.Compare(low, b.Low), true
	}
	return 1, true
}

// compareNear compares a decimal with a double without the heap, if rounding makes no difference.
func compareNear(a, b decimal) (int, bool) {
	if !b.binary {
		if !a.binary {
			return 0, false
		}
		c, ok := compareNear(b, a)
		return -c, ok
	}
	// Up to 10^22 powers of ten are exact, and two roundings are less than 2^-51.
	if a.binary || a.High != 0 || a.Exp < -22 || a.Exp > 22 {
		return 0, false
	}
	f := float64(a.Low)
	if a.Exp < 0 {
		f /= math.Pow10(-a.Exp)
	} else {
		f *= math.Pow10(a.Exp)
	}
	return cmp.Compare(f, b.real), math.Abs(f-b.real) > f*1e-14
}

func (d decimal) magnitude() *big.Rat {
	if d.binary {
		return new(big.Rat).SetFloat64(d.real)
	}
	return d.Magnitude()
}

// modLeaf is $mod. It cuts fractions off first, and does not find a result beyond int64, as 5.0
// and 6.0 do. Servers of 4.2.6 and 4.4.2 round a decimal to the nearest integer. They treat NaN
// and all that is too large as the lowest int64 (Query.HasMod).
type modLeaf struct{ divisor, remainder int64 }

func (l modLeaf) test(v value) bool {
	n, ok := v.Truncated()
	return ok && n%l.divisor == l.remainder
}

// bitsLeaf is a $bits operator: all, or any, of the mask's bits are set, or clear. The first byte
// has the lowest bits.
type bitsLeaf struct {
	mask     []byte
	all, set bool
}

func (l *bitsLeaf) test(v value) bool {
	if v.Type == bson.TypeBinary {
		return l.holds(binaryBits(v), 0)
	}
	n, ok := wholeBits(v)
	if !ok {
		return false
	}
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	return l.holds(b[:], byte(n>>63)) // beyond its bits a number goes on with its sign
}

func (l *bitsLeaf) holds(b []byte, beyond byte) bool {
	for i, m := range l.mask {
		have := beyond
		if i < len(b) {
			have = b[i]
		}
		if !l.set {
			have = ^have
		}
		if have &= m; l.all && have != m {
			return false
		} else if !l.all && have != 0 {
			return true
		}
	}
	return l.all
}

func binaryBits(v value) []byte { return v.Value[5:] }

// wholeBits is a number that has bits: every decimal, and a double that is an int64. A decimal is
// rounded, half to even. What no int64 holds, and NaN, is the lowest one (observed on 4.2 to 6.0).
func wholeBits(v value) (int64, bool) {
	switch v.Type {
	case bson.TypeDouble:
		return bsonraw.ExactInt(v.Double())
	case bson.TypeDecimal128:
		if d := v.Decimal(); d.Kind == bsonraw.DecimalFinite {
			if n := d.Rounded(); n.IsInt64() {
				return n.Int64(), true
			}
		}
		return math.MinInt64, true
	}
	return v.Int()
}
