package trial

import (
	"math"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func nan() float64 { return math.NaN() }

func negativeZero() float64 { return math.Copysign(0, -1) }

// text is n bytes that begin with what tells it from others.
func text(n int, of string) string { return strings.Repeat(of, n/len(of)) }

func decimal(s string) bson.Decimal128 {
	d, err := bson.ParseDecimal128(s)
	if err != nil {
		panic(err) // of a constant
	}
	return d
}
