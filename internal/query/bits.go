package query

import (
	"encoding/binary"
	"math"
	"math/big"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// modLeaf is $mod. It cuts fractions off first, and does not find a result beyond int64, as 5.0
// and 6.0 do. Servers of 4.2.6 and 4.4.2 round a decimal to the nearest integer. They treat NaN
// and all that is too large as the lowest int64 (Query.HasMod).
type modLeaf struct{ divisor, remainder int64 }

func (l modLeaf) test(v value) bool {
	n, ok := truncated(v)
	return ok && n%l.divisor == l.remainder
}

// truncated is a number without its fraction; false when v is none, or none that an
// int64 holds.
func truncated(v value) (int64, bool) {
	if n, ok := v.whole(); ok {
		return n, true
	}
	switch v.typ {
	case bson.TypeDouble:
		return exactInt(math.Trunc(v.double()))
	case bson.TypeDecimal128:
		q, _, ok := parts(v)
		return q.Int64(), ok && q.IsInt64()
	}
	return 0, false
}

// parts cuts a finite decimal, without its sign, at the point.
func parts(v value) (whole *big.Int, fraction *big.Rat, ok bool) {
	d := decimalOf(v)
	if d.kind != kindFinite {
		return new(big.Int), new(big.Rat), false
	}
	r := d.magnitude()
	q := new(big.Int).Quo(r.Num(), r.Denom())
	fraction = r.Sub(r, new(big.Rat).SetInt(q))
	if d.negative {
		q.Neg(q)
	}
	return q, fraction, true
}

// bitsLeaf is one of $bitsAllSet and so on: of the bits of the mask all, or any, are
// set, or clear. The first byte has the lowest bits.
type bitsLeaf struct {
	mask     []byte
	all, set bool
}

func (l *bitsLeaf) test(v value) bool {
	if v.typ == bson.TypeBinary {
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

// holds looks at the bits of b, beyond which beyond follows.
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

// binaryBits are the bytes of a binary value.
func binaryBits(v value) []byte { return v.data[5:] }

// wholeBits is a number that has bits: a double only when an int64 holds it exactly,
// every decimal, though.
func wholeBits(v value) (int64, bool) {
	switch v.typ {
	case bson.TypeDouble:
		return exactInt(v.double())
	case bson.TypeDecimal128:
		return roundedDecimal(v), true
	}
	return v.whole()
}

// roundedDecimal is the whole number next to a decimal, the even one of two. What no
// int64 holds, and NaN, is the lowest one (observed on 4.2 to 6.0).
func roundedDecimal(v value) int64 {
	q, fraction, ok := parts(v)
	half := fraction.Cmp(big.NewRat(1, 2))
	if half > 0 || half == 0 && q.Bit(0) == 1 {
		away := int64(1)
		if decimalOf(v).negative {
			away = -1
		}
		q.Add(q, big.NewInt(away))
	}
	if !ok || !q.IsInt64() {
		return math.MinInt64
	}
	return q.Int64()
}
