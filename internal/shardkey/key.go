// Package shardkey extracts shard keys from documents, and compares and hashes them as servers do.
package shardkey

import (
	"crypto/md5" //nolint:gosec // the servers' choice for hashed keys
	"encoding/binary"
	"math"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/query"
)

// Field is a field of a shard key.
type Field struct {
	Path   string // may be dotted
	Hashed bool
	Value  bson.RawValue // 1 or "hashed", as in the pattern
}

// Pattern is the shard key of a collection.
type Pattern []Field

func Parse(pattern bson.Raw) Pattern {
	var all Pattern
	for e, ok := range bsonraw.Fields(pattern) {
		if ok {
			v := valueOf(e)
			text, _ := v.StringValueOK()
			all = append(all, Field{Path: string(e.Name), Hashed: text == "hashed", Value: v})
		}
	}
	return all
}

// Text formats a pattern as in millrace sync --shard: "customer:1,_id:hashed", or "none".
func Text(pattern bson.Raw) string {
	if pattern == nil {
		return "none"
	}
	var fields []string
	for _, f := range Parse(pattern) {
		how := "1"
		if f.Hashed {
			how = "hashed"
		}
		fields = append(fields, f.Path+":"+how)
	}
	return strings.Join(fields, ",")
}

// Key is a document's shard key. The zero value is ready, and can be reused.
type Key struct {
	Values []bson.RawValue
	hash   [8]byte // servers hash one field at most
}

// Of sets k to the key of a document; false for a value that is an array or lies behind one, which
// servers refuse. A missing value is null.
func (p Pattern) Of(k *Key, doc bson.Raw) bool {
	k.Values = k.Values[:0]
	for i := range p {
		v, ok := Lookup(doc, p[i].Path)
		if !ok || v.Type == bson.TypeArray {
			return false
		}
		k.add(&p[i], v)
	}
	return true
}

// OfDocumentKey sets k to the key in an oplog entry, whose fields have dotted names.
func (p Pattern) OfDocumentKey(k *Key, key bson.Raw) bool {
	k.Values = k.Values[:0]
	for i := range p {
		e, found := bsonraw.Field(key, p[i].Path)
		v, ok := valueOf(e), true
		if !found {
			v, ok = Lookup(key, p[i].Path)
		}
		if !ok || v.Type == bson.TypeArray {
			return false
		}
		k.add(&p[i], v)
	}
	return true
}

func (k *Key) add(f *Field, v bson.RawValue) {
	if v.Type == 0 {
		v.Type = bson.TypeNull
	}
	if f.Hashed {
		binary.LittleEndian.PutUint64(k.hash[:], uint64(Hash(v)))
		v = bson.RawValue{Type: bson.TypeInt64, Value: k.hash[:]}
	}
	k.Values = append(k.Values, v)
}

// Indexed returns a value as in chunk bounds.
func (f Field) Indexed(v bson.RawValue) bson.RawValue {
	var k Key
	k.add(&f, v)
	return k.Values[0]
}

// Lookup returns the value at a dotted path, or the zero value; false for an array on the way.
func Lookup(doc bson.Raw, path string) (bson.RawValue, bool) {
	name, rest, more := strings.Cut(path, ".")
	e, ok := bsonraw.Field(doc, name)
	switch {
	case !ok:
		return bson.RawValue{}, true
	case !more:
		return valueOf(e), true
	case e.Type == bson.TypeArray:
		return bson.RawValue{}, false
	case e.Type != bson.TypeEmbeddedDocument:
		return bson.RawValue{}, true
	}
	return Lookup(bson.Raw(e.Value), rest)
}

// Bound returns the values of a chunk's bound, or of any key.
func Bound(doc bson.Raw) []bson.RawValue {
	var all []bson.RawValue
	for e, ok := range bsonraw.Fields(doc) {
		if ok {
			all = append(all, valueOf(e))
		}
	}
	return all
}

// CompareKeys orders keys. Missing values are the lowest: a refined key begins so.
func CompareKeys(a, b []bson.RawValue) int {
	for i := range max(len(a), len(b)) {
		if c := Compare(at(a, i), at(b, i)); c != 0 {
			return c
		}
	}
	return 0
}

func at(key []bson.RawValue, i int) bson.RawValue {
	if i < len(key) {
		return key[i]
	}
	return MinKey()
}

// Compare orders two values as servers do. A missing one is undefined.
func Compare(a, b bson.RawValue) int { return query.Compare(known(a), known(b)) }

func known(v bson.RawValue) bson.RawValue {
	if v.Type == 0 {
		v.Type = bson.TypeUndefined
	}
	return v
}

func CompareDocuments(a, b []byte) int { return query.CompareDocuments(a, b) }

func valueOf(e bsonraw.Element) bson.RawValue { return bson.RawValue{Type: e.Type, Value: e.Value} }

// MinKey and MaxKey are the lowest and the highest value.
func MinKey() bson.RawValue { return bson.RawValue{Type: bson.TypeMinKey} }
func MaxKey() bson.RawValue { return bson.RawValue{Type: bson.TypeMaxKey} }

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
