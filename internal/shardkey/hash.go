package shardkey

import (
	"crypto/md5" //nolint:gosec // the servers' choice for hashed keys
	"encoding/binary"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/query"
)

// Hash returns a value's hash in a hashed index, as $toHashedIndexKey does: the first eight bytes of
// an MD5 over the seed 0 and the value. Numbers of all types are hashed as integers.
func Hash(v bson.RawValue) int64 {
	v = known(v)
	var scratch [128]byte // enough for most values
	var whole []byte
	switch query.ClassOf(v.Type) {
	case query.ClassObject, query.ClassArray, query.ClassScope:
		whole = appendNested(appendHead(nil, v.Type), v)
	default:
		whole = appendPlain(appendHead(scratch[:0], v.Type), v)
	}
	sum := md5.Sum(whole) //nolint:gosec // see above
	return int64(binary.LittleEndian.Uint64(sum[:]))
}

func appendHead(dst []byte, t bson.Type) []byte {
	return appendInt32(appendInt32(dst, 0), int32(query.ClassOf(t)))
}

func appendPlain(dst []byte, v bson.RawValue) []byte {
	if query.ClassOf(v.Type) == query.ClassNumber {
		return binary.LittleEndian.AppendUint64(dst, uint64(cut(v)))
	}
	return append(dst, v.Value...)
}

func appendNested(dst []byte, v bson.RawValue) []byte {
	switch query.ClassOf(v.Type) {
	case query.ClassObject, query.ClassArray:
		return appendFields(dst, v.Value)
	case query.ClassScope: // length, code as a string, scope
		code := v.Value[8:]
		n := binary.LittleEndian.Uint32(v.Value[4:])
		return appendFields(append(dst, code[:n]...), code[n:])
	}
	return appendPlain(dst, v)
}

func appendFields(dst, doc []byte) []byte {
	rest, _ := bsonraw.Body(doc)
	for len(rest) > 0 {
		e, next, ok := bsonraw.Next(rest)
		if !ok {
			break
		}
		dst = append(append(appendInt32(dst, int32(query.ClassOf(e.Type))), e.Name...), 0)
		dst, rest = appendNested(dst, valueOf(e)), next
	}
	return appendInt32(dst, 0)
}

func appendInt32(dst []byte, n int32) []byte { return binary.LittleEndian.AppendUint32(dst, uint32(n)) }

// cut is a number as an integer, within the bounds of an int64; 0 for NaN. A double loses its
// fraction, a decimal is rounded, half to even.
func cut(v bson.RawValue) int64 {
	switch v.Type {
	case bson.TypeDouble:
		return cutDouble(v.Double())
	case bson.TypeDecimal128:
		d := bsonraw.View{Type: v.Type, Value: v.Value}.Decimal()
		if d.Kind == bsonraw.DecimalNaN {
			return 0
		}
		if d.Kind == bsonraw.DecimalFinite {
			if n := d.Rounded(); n.IsInt64() {
				return n.Int64()
			}
		}
		if d.Negative || d.Kind == bsonraw.DecimalMinusInf {
			return math.MinInt64
		}
		return math.MaxInt64
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
