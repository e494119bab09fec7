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
		for e, ok := range bsonraw.Fields(v.Value) {
			if ok {
				hashValue(h, valueOf(e), append([]byte{}, e.Name...))
			}
		}
		putInt32(h, 0) // the end
	default:
		_, _ = h.Write(v.Value)
	}
}

func putInt32(h hash.Hash, n int32) {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], uint32(n))
	_, _ = h.Write(b[:])
}

// cut is a number without its fraction, within the bounds of an int64; 0 for NaN.
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
		q := new(big.Int).Quo(r.Num(), r.Denom())
		if !q.IsInt64() {
			return cutDouble(math.Inf(r.Sign()))
		}
		return q.Int64()
	}
	return v.AsInt64()
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
