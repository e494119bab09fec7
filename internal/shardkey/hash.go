package shardkey

import (
	"crypto/md5" //nolint:gosec // the servers' choice for hashed keys
	"encoding/binary"
	"math"
	"math/big"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// Hash is a value's hash in a hashed index, as the aggregation expression
// $toHashedIndexKey gives it: the first eight bytes of an MD5 over the seed 0 and
// the value. Numbers of all types are hashed as the integer they are cut to.
func Hash(v bson.RawValue) int64 {
	var scratch [128]byte // most values leave the heap alone
	var whole []byte
	switch class(v.Type) {
	case 20, 25, 65:
		whole = appendNested(appendHead(nil, v.Type), v)
	default:
		whole = appendPlain(appendHead(scratch[:0], v.Type), v)
	}
	sum := md5.Sum(whole) //nolint:gosec // see above
	return int64(binary.LittleEndian.Uint64(sum[:]))
}

// appendHead begins with the seed and the place of the type in the order of types.
func appendHead(dst []byte, t bson.Type) []byte {
	return appendInt32(appendInt32(dst, 0), int32(class(t)))
}

// appendPlain adds a value that has none inside.
func appendPlain(dst []byte, v bson.RawValue) []byte {
	if class(v.Type) == 10 {
		return binary.LittleEndian.AppendUint64(dst, uint64(cut(v)))
	}
	return append(dst, v.Value...)
}

// appendNested adds a value that has others inside.
func appendNested(dst []byte, v bson.RawValue) []byte {
	switch class(v.Type) {
	case 20, 25:
		return appendFields(dst, v.Value)
	case 65: // length, code as a string, scope
		code := v.Value[8:]
		n := binary.LittleEndian.Uint32(v.Value[4:])
		return appendFields(append(dst, code[:n]...), code[n:])
	}
	return appendPlain(dst, v)
}

// appendFields adds the fields of a document, each with its type and its name, and its
// end.
func appendFields(dst, doc []byte) []byte {
	rest, _ := bsonraw.Body(doc)
	for len(rest) > 0 {
		e, next, ok := bsonraw.Next(rest)
		if !ok {
			break
		}
		dst = append(append(appendInt32(dst, int32(class(e.Type))), e.Name...), 0)
		dst, rest = appendNested(dst, valueOf(e)), next
	}
	return appendInt32(dst, 0)
}

func appendInt32(dst []byte, n int32) []byte { return binary.LittleEndian.AppendUint32(dst, uint32(n)) }

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

// exactDecimal is a decimal as a fraction, or its place among those that are none: NaN -2,
// infinite ±1.
func exactDecimal(d bson.Decimal128) (*big.Rat, int) {
	if d.IsNaN() {
		return nil, -2
	}
	if sign := d.IsInf(); sign != 0 {
		return nil, sign
	}
	digits, exp, err := d.BigInt()
	if err != nil {
		return nil, -2
	}
	r := new(big.Rat).SetInt(digits)
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(exp, -exp))), nil)
	if exp < 0 {
		return r.Quo(r, new(big.Rat).SetInt(power)), 0
	}
	return r.Mul(r, new(big.Rat).SetInt(power)), 0
}

// class is a type's place in the order of types.
func class(t bson.Type) int {
	switch t {
	case bson.TypeMinKey:
		return -1
	case bson.TypeUndefined, 0:
		return 0
	case bson.TypeNull:
		return 5
	case bson.TypeDouble, bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128:
		return 10
	case bson.TypeString, bson.TypeSymbol:
		return 15
	case bson.TypeEmbeddedDocument:
		return 20
	case bson.TypeArray:
		return 25
	case bson.TypeBinary:
		return 30
	case bson.TypeObjectID:
		return 35
	case bson.TypeBoolean:
		return 40
	case bson.TypeDateTime:
		return 45
	case bson.TypeTimestamp:
		return 47
	case bson.TypeRegex:
		return 50
	case bson.TypeDBPointer:
		return 55
	case bson.TypeJavaScript:
		return 60
	case bson.TypeCodeWithScope:
		return 65
	}
	return 127 // MaxKey
}
