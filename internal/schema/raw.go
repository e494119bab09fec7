package schema

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
)

func emptyDoc() bson.Raw { return bson.Raw{5, 0, 0, 0, 0} }

func fields(doc bson.Raw) iter.Seq2[string, bson.RawValue] {
	return func(yield func(string, bson.RawValue) bool) {
		for e, ok := range bsonraw.Fields(doc) {
			if !ok || !yield(string(e.Name), bson.RawValue{Type: e.Type, Value: e.Value}) {
				return
			}
		}
	}
}

type editor func(key string, v bson.RawValue) (bson.RawValue, error)

// leftOut removes a field.
func leftOut() bson.RawValue { return bson.RawValue{} }

func edit(doc bson.Raw, f editor) (bson.Raw, error) {
	if len(doc) > 0 && !bsonraw.Valid(doc, 1) {
		return nil, errors.New("malformed document")
	}
	idx, out := bsoncore.AppendDocumentStart(nil)
	for key, v := range fields(doc) {
		v, err := f(key, v)
		if err != nil {
			return nil, err
		}
		if v.Type != 0 {
			out = appendField(out, key, v)
		}
	}
	out, err := bsoncore.AppendDocumentEnd(out, idx)
	return bson.Raw(out), err
}

// editValue is edit of a document or array; other values stay.
func editValue(v bson.RawValue, f editor) (bson.RawValue, error) {
	if v.Type != bson.TypeEmbeddedDocument && v.Type != bson.TypeArray {
		return v, nil
	}
	doc, err := edit(v.Value, f)
	return bson.RawValue{Type: v.Type, Value: doc}, err
}

func appendField(dst []byte, key string, v bson.RawValue) []byte {
	dst = bsoncore.AppendHeader(dst, bsoncore.Type(v.Type), key)
	return append(dst, v.Value...)
}

func without(doc bson.Raw, keys ...string) (bson.Raw, error) {
	return edit(doc, dropping(keys...))
}

func dropping(keys ...string) editor {
	return func(key string, v bson.RawValue) (bson.RawValue, error) {
		if slices.Contains(keys, key) {
			return leftOut(), nil
		}
		return v, nil
	}
}

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

func has(doc bson.Raw, key ...string) bool {
	_, err := doc.LookupErr(key...)
	return err == nil
}

func str(doc bson.Raw, key ...string) string {
	s, _ := doc.Lookup(key...).StringValueOK()
	return s
}

func texts(doc bson.Raw, key ...string) (out []string) {
	list, _ := doc.Lookup(key...).ArrayOK()
	for _, v := range fields(bson.Raw(list)) {
		if s, ok := v.StringValueOK(); ok {
			out = append(out, s)
		}
	}
	return out
}

func sub(doc bson.Raw, key ...string) bson.Raw {
	d, _ := doc.Lookup(key...).DocumentOK()
	return d
}

// truthy is the server's notion: all but 0, false, null and undefined.
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

func rawValue(v any) bson.RawValue {
	t, data, err := bson.MarshalValue(v)
	if err != nil {
		panic(fmt.Sprintf("catalog: a constant that is no BSON: %v", err)) // a bug
	}
	return bson.RawValue{Type: t, Value: data}
}

func rawDoc(d bson.D) bson.Raw { return rawValue(d).Document() }
