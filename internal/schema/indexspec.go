package schema

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/stream"
)

// cleanIndex turns an index specification of any age into one that createIndexes takes. The collation
// is explicit, else the index would inherit that of its collection. The expiry is returned apart.
func cleanIndex(ix stream.Index) (spec bson.Raw, expire *bson.RawValue, err error) {
	spec, err = edit(ix.Spec, func(key string, v bson.RawValue) (bson.RawValue, error) {
		switch key {
		case "unique", "sparse", "hidden", "prepareUnique":
			if truthy(v) { // old servers stored whatever they were given
				return rawValue(true), nil
			}
		case expiry.Option:
			if n, ok := expiry.Seconds(v); ok {
				v = rawValue(n)
				expire = &v
			}
		case "key":
			return cleanKey(v)
		case "collation":
			return portableCollation(v)
		case "storageEngine":
			return onlyWiredTiger(v), nil
		// createIndexes takes no others of old servers (ns, background, dropDups, safe …), and the target chooses v.
		case "name", "partialFilterExpression", "wildcardProjection", "columnstoreProjection", "originalSpec", "weights",
			"default_language", "language_override", "textIndexVersion", "2dsphereIndexVersion", "finestIndexedLevel",
			"coarsestIndexedLevel", "bits", "min", "max", "bucketSize":
			return v, nil
		}
		return leftOut(), nil
	})
	if err == nil && len(keyFields(spec)) > 1 {
		expire = nil // it never expired anything, and no server takes it any more
	}
	if err == nil && !has(spec, "collation") {
		spec, err = with(spec, "collation", bson.D{{Key: "locale", Value: "simple"}})
	}
	if err != nil {
		return nil, nil, fmt.Errorf("index %s: %w", ix.Name, err)
	}
	return spec, expire, nil
}

// cleanKey replaces directions that old servers took as ascending (true, "", null, 0) by 1.
func cleanKey(v bson.RawValue) (bson.RawValue, error) {
	if v.Type != bson.TypeEmbeddedDocument {
		return v, fmt.Errorf("its key is a %s", v.Type)
	}
	return editValue(v, func(_ string, v bson.RawValue) (bson.RawValue, error) {
		if !validDirection(v) {
			v = rawValue(int32(1))
		}
		return v, nil
	})
}

func validDirection(v bson.RawValue) bool {
	switch v.Type {
	case bson.TypeString:
		return v.StringValue() != ""
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble:
		f, ok := v.AsFloat64OK()
		return ok && f != 0 && !math.IsNaN(f)
	case bson.TypeDecimal128:
		return true
	}
	return false
}

func keyFields(spec bson.Raw) []bson.RawElement {
	els, _ := sub(spec, "key").Elements()
	return els
}

func indexKind(spec bson.Raw) string {
	for _, el := range keyFields(spec) {
		if kind, ok := el.Value().StringValueOK(); ok {
			return kind
		}
	}
	return ""
}

func uniqueLike(spec bson.Raw) bool {
	return truthyField(spec, "unique") || truthyField(spec, "prepareUnique")
}

// TakesAll reports indexes that refuse no document: those in the order of one field.
func TakesAll(ix stream.Index) bool {
	fields := keyFields(ix.Spec)
	if uniqueLike(ix.Spec) || len(fields) != 1 || strings.Contains(fields[0].Key(), "$") {
		return false
	}
	_, ordered := fields[0].Value().AsInt64OK()
	return ordered
}

func comparableIndex(ix stream.Index, o DiffOptions) (map[string]string, error) {
	spec, expire, err := cleanIndex(ix)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for key, v := range fields(spec) {
		switch key {
		case "originalSpec":
			continue // follows from the rest
		case "key":
			out[key] = comparableKey(v.Document())
		case "collation":
			if str(v.Document(), "locale") != "simple" {
				out[key] = v.String()
			}
		case "wildcardProjection", "columnstoreProjection":
			out[key] = comparableProjection(v)
		default:
			out[key] = comparableNumber(v)
		}
	}
	if expire != nil && !o.IgnoreTTL {
		out[expiry.Option] = comparableNumber(*expire)
	}
	return out, nil
}

func comparablePair(a, b stream.Index, o DiffOptions) (x, y map[string]string, err error) {
	x, errx := comparableIndex(a, o)
	y, erry := comparableIndex(b, o)
	return x, y, errors.Join(errx, erry)
}

// comparableProjection sorts paths: some servers (seen on 5.0) nest dotted paths and add that _id is
// left out.
func comparableProjection(v bson.RawValue) string {
	var paths []string
	var walk func(prefix string, doc bson.Raw)
	walk = func(prefix string, doc bson.Raw) {
		for key, v := range fields(doc) {
			path := prefix + key
			if inner, ok := v.DocumentOK(); ok {
				walk(path+".", inner)
			} else if on := truthy(v); on || path != "_id" {
				paths = append(paths, fmt.Sprintf("%s:%v", path, on))
			}
		}
	}
	doc, _ := v.DocumentOK()
	walk("", doc)
	slices.Sort(paths)
	return strings.Join(paths, " ")
}

// comparableKey makes 1, 1.0 and NumberLong(1) equal.
func comparableKey(key bson.Raw) string {
	text := ""
	for name, v := range fields(key) {
		text += fmt.Sprintf("%q:%s ", name, comparableNumber(v))
	}
	return text
}

func comparableNumber(v bson.RawValue) string {
	if f, ok := v.AsFloat64OK(); ok {
		return fmt.Sprint(f)
	}
	return v.String()
}
