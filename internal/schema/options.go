package schema

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/mongo"
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

// createOptions turns options of listCollections into those of create, without those that only the
// source knows or that no server takes. It returns the expiry separately.
func createOptions(options bson.Raw, v mongo.Version) (out bson.Raw, expire *bson.RawValue, err error) {
	out, err = edit(options, func(key string, value bson.RawValue) (bson.RawValue, error) {
		switch key {
		case "uuid", "idIndex", "autoIndexId", "temp", "create", "flags", "usePowerOf2Sizes", "$nExtents",
			"safe", "w", "writeConcern", "lsid", "$db", "$clusterTime":
			return leftOut(), nil
		case "recordIdsReplicated": // by which a server's members name documents alike
			return leftOut(), nil
		case expiry.Option:
			expire = &value
			return leftOut(), nil
		case "collation":
			return portableCollation(value)
		case "storageEngine":
			return onlyWiredTiger(value), nil
		case "indexOptionDefaults":
			value, err := editValue(value, func(key string, v bson.RawValue) (bson.RawValue, error) {
				if key == "storageEngine" {
					return onlyWiredTiger(v), nil
				}
				return v, nil
			})
			if value.Type != bson.TypeEmbeddedDocument || len(value.Value) <= len(emptyDoc()) {
				return leftOut(), err
			}
			return value, err
		case "recordPreImages":
			// 7.0 knows the setting under its new name only.
			if v.AtLeast(7, 0) || !truthy(value) {
				return leftOut(), nil
			}
		}
		return value, nil
	})
	if err == nil && v.AtLeast(7, 0) && truthyField(options, "recordPreImages") &&
		!has(options, "changeStreamPreAndPostImages") {
		out, err = with(out, "changeStreamPreAndPostImages", bson.D{{Key: "enabled", Value: true}})
	}
	return out, expire, err
}

// portableCollation drops the version of the source's collation library; the rest defines the order.
func portableCollation(v bson.RawValue) (bson.RawValue, error) {
	return editValue(v, dropping("version"))
}

// onlyWiredTiger drops options of old storage engines, and internal ones of WiredTiger
// (app_metadata).
func onlyWiredTiger(v bson.RawValue) bson.RawValue {
	doc, _ := v.DocumentOK()
	config := withoutMetadata(str(doc, "wiredTiger", "configString"))
	if config == "" {
		return leftOut()
	}
	return rawValue(bson.D{{Key: "wiredTiger", Value: bson.D{{Key: "configString", Value: config}}}})
}

func withoutMetadata(config string) string {
	const start = "app_metadata=("
	at := strings.Index(config, start)
	if at < 0 {
		return config
	}
	end, depth := at+len(start), 1
	for ; end < len(config) && depth > 0; end++ {
		switch config[end] {
		case '(':
			depth++
		case ')':
			depth--
		}
	}
	return strings.Trim(strings.TrimSuffix(config[:at], ",")+config[end:], ",")
}

// Unsupported lists what of a collection a server version cannot hold, in one sentence each.
func Unsupported(coll Collection, v mongo.Version) []string {
	var out []string
	need := func(present bool, major, minor int, what string) {
		if present && !v.AtLeast(major, minor) {
			out = append(out, fmt.Sprintf("%s: %s needs a target of version %d.%d or newer", coll.NS, what, major, minor))
		}
	}
	need(coll.Type == TypeTimeSeries, 5, 0, "a time-series collection")
	if coll.Type == TypeTimeSeries && v.AtLeast(8, 3) {
		out = append(out, coll.NS+": a time-series collection: version 8.3 and newer have no system.buckets collection to "+
			"write its buckets to")
	}
	need(coll.Type == TypeCollection && has(coll.Options, "clusteredIndex"), 5, 3, "a clustered collection")
	need(truthyField(coll.Options, "changeStreamPreAndPostImages", "enabled"), 6, 0, "changeStreamPreAndPostImages")
	need(truthyField(coll.Options, "recordPreImages"), 4, 4, "recordPreImages")
	need(has(sub(coll.Options, "timeseries"), "bucketRoundingSeconds"), 7, 0,
		"a time-series collection with bucketRoundingSeconds")
	// 7.0 keeps its metadata in another form than 6.0, which has a third collection of it.
	if fields := sub(coll.Options, "encryptedFields"); fields != nil && has(fields, "eccCollection") == v.AtLeast(7, 0) {
		out = append(out, coll.NS+": queryable encryption of 6.0 and that of 7.0 and newer differ, and one cannot become "+
			"the other")
	}
	for _, ix := range coll.Indexes {
		kind := indexKind(ix.Spec)
		need(truthyField(ix.Spec, "hidden"), 4, 4, "hidden index "+ix.Name)
		// Only indexes of buckets have originalSpec.
		need(has(ix.Spec, "originalSpec") && has(ix.Spec, expiry.Option), 6, 3,
			"index "+ix.Name+", which expires documents of a time-series collection,")
		need(truthyField(ix.Spec, "prepareUnique"), 6, 0, "prepareUnique of index "+ix.Name)
		keys := keyFields(ix.Spec)
		wildcard := kind == "" &&
			slices.ContainsFunc(keys, func(el bson.RawElement) bool { return strings.HasSuffix(el.Key(), "$**") })
		need(wildcard && len(keys) > 1, 7, 0, "compound wildcard index "+ix.Name)
		need(kind == "columnstore", 99, 0, "columnstore index "+ix.Name)
		if coll.Capped() && has(ix.Spec, expiry.Option) && v.AtLeast(6, 0) {
			out = append(out, fmt.Sprintf("%s: index %s expires documents of a capped collection: version 6.0 and newer have "+
				"no such index, and older ones do not expire any by it", coll.NS, ix.Name))
		}
		if kind == "geoHaystack" && v.AtLeast(5, 0) {
			out = append(out, fmt.Sprintf("%s: geoHaystack index %s: version 5.0 and newer have none", coll.NS, ix.Name))
		}
	}
	return out
}

// comparableOptions makes equal collections equal: a text per setting, without defaults and without
// differences between servers.
func comparableOptions(coll Collection, o DiffOptions) (map[string]string, error) {
	options, expire, err := createOptions(coll.Options, mongo.Version{Major: math.MaxInt})
	if err != nil {
		return nil, fmt.Errorf("options of %s: %w", coll.NS, err)
	}
	out := map[string]string{}
	for key, v := range fields(options) {
		if text := comparableOption(key, v); text != "" {
			out[key] = text
		}
	}
	if expire != nil && !o.IgnoreTTL {
		n, _ := expiry.Seconds(*expire)
		out[expiry.Option] = fmt.Sprint(n)
	}
	return out, nil
}

func comparableOption(key string, v bson.RawValue) string {
	doc, isDoc := v.DocumentOK()
	switch key {
	case "validationLevel", "validationAction":
		if s, _ := v.StringValueOK(); s == "strict" || s == "error" { // no value of the other
			return ""
		}
	case "validator", "storageEngine", "indexOptionDefaults":
		if isDoc && len(doc) <= len(emptyDoc()) {
			return ""
		}
	case "changeStreamPreAndPostImages":
		if !truthyField(doc, "enabled") {
			return ""
		}
		return "enabled"
	case "capped":
		if !truthy(v) {
			return ""
		}
	case "size", "max":
		if n, _ := v.AsInt64OK(); n != 0 && !(key == "max" && n >= noMost) {
			return fmt.Sprint(n)
		}
		return ""
	case "collation":
		if str(doc, "locale") == "simple" {
			return ""
		}
	case "timeseries":
		if has(doc, "granularity") {
			v, _ = editValue(v, dropping("bucketMaxSpanSeconds", "bucketRoundingSeconds")) // follow from it
		}
	case "clusteredIndex":
		v, _ = editValue(v, dropping("v"))
	}
	return v.String()
}
