package schema

import (
	"fmt"
	"math"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// emptyDoc is a document without fields.
func emptyDoc() bson.Raw { return bson.Raw{5, 0, 0, 0, 0} }

// elements lists a document's fields; nil and empty documents have none.
func elements(doc bson.Raw) ([]bson.RawElement, error) {
	if len(doc) == 0 {
		return nil, nil
	}
	els, err := doc.Elements()
	if err != nil {
		return nil, fmt.Errorf("malformed document: %w", err)
	}
	return els, nil
}

// edit copies doc field by field; f says what becomes of a field: its new
// value, and whether it stays at all.
func edit(doc bson.Raw, f func(key string, v bson.RawValue) (bson.RawValue, bool, error)) (bson.Raw, error) {
	els, err := elements(doc)
	if err != nil {
		return nil, err
	}
	idx, out := bsoncore.AppendDocumentStart(nil)
	for _, el := range els {
		v, keep, err := f(el.Key(), el.Value())
		if err != nil {
			return nil, err
		}
		if keep {
			out = appendField(out, el.Key(), v)
		}
	}
	out, err = bsoncore.AppendDocumentEnd(out, idx)
	return bson.Raw(out), err
}

func appendField(dst []byte, key string, v bson.RawValue) []byte {
	dst = bsoncore.AppendHeader(dst, bsoncore.Type(v.Type), key)
	return append(dst, v.Value...)
}

// without copies doc leaving out fields.
func without(doc bson.Raw, keys ...string) (bson.Raw, error) {
	return edit(doc, func(key string, v bson.RawValue) (bson.RawValue, bool, error) {
		return v, !slices.Contains(keys, key), nil
	})
}

// with copies doc with one field replaced or appended.
func with(doc bson.Raw, key string, value any) (bson.Raw, error) {
	t, data, err := bson.MarshalValue(value)
	if err != nil {
		return nil, fmt.Errorf("field %s: %w", key, err)
	}
	doc, err = without(doc, key)
	if err != nil {
		return nil, err
	}
	out := slices.Clone(doc[:len(doc)-1])
	out = append(appendField(out, key, bson.RawValue{Type: t, Value: data}), 0)
	return bson.Raw(bsoncore.UpdateLength(out, 0, int32(len(out)))), nil
}

// has reports a field.
func has(doc bson.Raw, key ...string) bool {
	if len(doc) == 0 {
		return false
	}
	_, err := doc.LookupErr(key...)
	return err == nil
}

// str reads a string field, "" when it is none.
func str(doc bson.Raw, key ...string) string {
	if len(doc) == 0 {
		return ""
	}
	s, _ := doc.Lookup(key...).StringValueOK()
	return s
}

// sub reads an embedded document, nil when it is none.
func sub(doc bson.Raw, key ...string) bson.Raw {
	if len(doc) == 0 {
		return nil
	}
	d, _ := doc.Lookup(key...).DocumentOK()
	return d
}

// truthy is the server's notion: everything but 0, false, null and undefined.
func truthy(v bson.RawValue) bool {
	switch v.Type {
	case bson.TypeBoolean:
		return v.Boolean()
	case bson.TypeNull, bson.TypeUndefined, 0:
		return false
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble:
		n, ok := v.AsFloat64OK()
		return !ok || n != 0
	}
	return true
}

// seconds reads an expiry the way current servers do: fractions are cut off,
// not-a-number stands for the largest value.
func seconds(v bson.RawValue) (int64, bool) {
	switch v.Type {
	case bson.TypeInt32:
		return int64(v.Int32()), true
	case bson.TypeInt64:
		return v.Int64(), true
	case bson.TypeDouble:
		if f := v.Double(); !math.IsNaN(f) && f < math.MaxInt32 {
			return int64(f), true
		}
		return math.MaxInt32, true
	case bson.TypeDecimal128:
		bi, exp, err := v.Decimal128().BigInt()
		if err != nil || exp != 0 || !bi.IsInt64() {
			return math.MaxInt32, true
		}
		return bi.Int64(), true
	}
	return 0, false
}

// rawValue is a Go value as BSON.
func rawValue(v any) bson.RawValue {
	t, data, err := bson.MarshalValue(v)
	if err != nil {
		panic(fmt.Sprintf("catalog: a constant that is no BSON: %v", err)) // a bug of ours
	}
	return bson.RawValue{Type: t, Value: data}
}
