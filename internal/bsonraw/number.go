package bsonraw

import (
	"encoding/binary"
	"math"
	"math/big"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Int64 returns the eight bytes of a long, a date or a timestamp.
func (v View) Int64() int64 { return int64(binary.LittleEndian.Uint64(v.Value)) }

// Double returns a double.
func (v View) Double() float64 { return math.Float64frombits(binary.LittleEndian.Uint64(v.Value)) }

// Int returns an int or a long; false for other types.
func (v View) Int() (int64, bool) {
	switch v.Type {
	case bson.TypeInt32:
		return int64(int32(binary.LittleEndian.Uint32(v.Value))), true
	case bson.TypeInt64:
		return v.Int64(), true
	}
	return 0, false
}

// Truncated returns a number without its fraction; false if it is none, or beyond an int64.
func (v View) Truncated() (int64, bool) {
	switch v.Type {
	case bson.TypeDouble:
		return ExactInt(math.Trunc(v.Double()))
	case bson.TypeDecimal128:
		d := v.Decimal()
		if d.Kind != DecimalFinite {
			return 0, false
		}
		n, _ := d.split()
		return n.Int64(), n.IsInt64()
	}
	return v.Int()
}

// ExactInt returns a double as an int64, false if that is not exact.
func ExactInt(f float64) (int64, bool) {
	if !(f >= -1<<63 && f < 1<<63) || f != math.Trunc(f) {
		return 0, false
	}
	return int64(f), true
}

// DecimalKind tells finite decimals from others, in their order.
type DecimalKind int8

// The kinds of decimals.
const (
	DecimalNaN DecimalKind = iota
	DecimalMinusInf
	DecimalFinite
	DecimalInf
)

// Decimal is a decimal128: a sign, a coefficient in two words, and a power of ten.
type Decimal struct {
	Kind      DecimalKind
	Negative  bool
	High, Low uint64
	Exp       int
}

// Decimal returns a decimal128. The layout is a sign, 14 bits of exponent, 113 of coefficient. The
// other layout, and a coefficient beyond 10^34 - 1, count as zero.
func (v View) Decimal() Decimal {
	const (
		bias = 6176
		maxH = 0x0001ED09BEAD87C0
		maxL = 0x378D8E63FFFFFFFF
	)
	high, low := binary.LittleEndian.Uint64(v.Value[8:]), binary.LittleEndian.Uint64(v.Value)
	d := Decimal{Kind: DecimalFinite, Negative: high>>63 == 1}
	switch high >> 58 & 0x1F {
	case 0x1F:
		return Decimal{Kind: DecimalNaN}
	case 0x1E:
		if d.Negative {
			return Decimal{Kind: DecimalMinusInf}
		}
		return Decimal{Kind: DecimalInf}
	}
	h := high & (1<<49 - 1)
	if high>>61&3 != 3 && (h < maxH || h == maxH && low <= maxL) {
		d.High, d.Low, d.Exp = h, low, int(high>>49&0x3FFF)-bias
	}
	return d
}

// Coefficient returns the coefficient without its sign.
func (d Decimal) Coefficient() *big.Int {
	n := new(big.Int).SetUint64(d.High)
	return n.Or(n.Lsh(n, 64), new(big.Int).SetUint64(d.Low))
}

// Magnitude returns a finite decimal exactly, without its sign.
func (d Decimal) Magnitude() *big.Rat {
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(d.Exp, -d.Exp))), nil)
	if d.Exp < 0 {
		return new(big.Rat).SetFrac(d.Coefficient(), power)
	}
	return new(big.Rat).SetInt(power.Mul(d.Coefficient(), power))
}

func (d Decimal) split() (*big.Int, *big.Rat) {
	r := d.Magnitude()
	q := new(big.Int).Quo(r.Num(), r.Denom())
	r.Sub(r, new(big.Rat).SetInt(q))
	if d.Negative {
		q.Neg(q)
	}
	return q, r
}

// Rounded returns the integer nearest to a finite decimal, the even one of two.
func (d Decimal) Rounded() *big.Int {
	q, fraction := d.split()
	half := fraction.Cmp(big.NewRat(1, 2))
	switch {
	case half < 0 || half == 0 && q.Bit(0) == 0:
	case d.Negative:
		q.Sub(q, big.NewInt(1))
	default:
		q.Add(q, big.NewInt(1))
	}
	return q
}
