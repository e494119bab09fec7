package router

import (
	"crypto/md5" //nolint:gosec // the servers' choice for hashed keys
	"encoding/binary"
	"hash"
	"math"
	"math/big"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// hashKey is a value's hash in a hashed index, as the aggregation expression
// $toHashedIndexKey gives it: the first eight bytes of an MD5 over the seed 0 and
// the value. Numbers of all types are hashed as the integer they are cut to.
func hashKey(v bson.RawValue) int64 {
	h := md5.New() //nolint:gosec // see above
	putInt32(h, 0)
	hashValue(h, v, nil)
	return int64(binary.LittleEndian.Uint64(h.Sum(nil)))
}

// hashValue adds a value: the place of its type in the order of types, its name
// when it is inside of a document, its bytes.
func hashValue(h hash.Hash, v bson.RawValue, name []byte) {
	putInt32(h, int32(class(v.Type)))
	if name != nil {
		_, _ = h.Write(name)
		_, _ = h.Write([]byte{0})
	}
	switch class(v.Type) {
	case 10:
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], uint64(cut(v)))
		_, _ = h.Write(b[:])
	case 20, 25:
		hashFields(h, v.Value)
	case 65: // length, code as a string, scope
		code := v.Value[8:]
		n := binary.LittleEndian.Uint32(v.Value[4:])
		_, _ = h.Write(code[:n])
		hashFields(h, code[n:])
	default:
		_, _ = h.Write(v.Value)
	}
}

// hashFields adds the fields of a document, and its end.
func hashFields(h hash.Hash, doc []byte) {
	for e, ok := range bsonraw.Fields(doc) {
		if ok {
			hashValue(h, valueOf(e), append([]byte{}, e.Name...))
		}
	}
	putInt32(h, 0)
}

func putInt32(h hash.Hash, n int32) {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], uint32(n))
	_, _ = h.Write(b[:])
}

// cut is a number as an integer, within the bounds of an int64; 0 for NaN. A double
// loses its fraction, a decimal is rounded to the nearest, or the even one of two.
func cut(v bson.RawValue) int64 {
	switch v.Type {
	case bson.TypeDouble:
		return cutDouble(v.Double())
	case bson.TypeDecimal128:
		r, inf := exactDecimal(v.Decimal128())
		switch {
		case inf == -2:
			return 0
		case inf != 0:
			return cutDouble(math.Inf(inf))
		}
		q := rounded(r)
		if !q.IsInt64() {
			return cutDouble(math.Inf(r.Sign()))
		}
		return q.Int64()
	}
	return v.AsInt64()
}

// rounded is the integer nearest to a fraction, the even one of two.
func rounded(r *big.Rat) *big.Int {
	q, rest := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int)) // rest is not negative
	half := rest.Lsh(rest, 1).Cmp(r.Denom())
	if half > 0 || half == 0 && q.Bit(0) == 1 {
		q.Add(q, big.NewInt(1))
	}
	return q
}

func cutDouble(f float64) int64 {
	switch {
	case math.IsNaN(f):
		return 0
	case f >= math.MaxInt64:
		return math.MaxInt64
	case f <= math.MinInt64:
		return math.MinInt64
	}
	return int64(f)
}
