package query

import (
	"encoding/binary"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

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
