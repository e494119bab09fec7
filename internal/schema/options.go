package schema

import (
	"fmt"
	"math"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

// createOptions turns options as listCollections gives them into those that
// create takes: without what only the source can know or what no server takes
// any more, and without the expiry of documents, which is returned by itself.
func createOptions(options bson.Raw, v mongo.Version) (out bson.Raw, expire *bson.RawValue, err error) {
	out, err = edit(options, func(key string, value bson.RawValue) (bson.RawValue, bool, error) {
		switch key {
		case "uuid", "idIndex", "autoIndexId", "temp", "create", "flags", "usePowerOf2Sizes", "$nExtents",
			"safe", "w", "writeConcern", "lsid", "$db", "$clusterTime":
			return value, false, nil
		case "expireAfterSeconds":
			expire = &value
			return value, false, nil
		case "collation":
			doc, err := portableCollation(value)
			return doc, true, err
		case "storageEngine":
			return onlyWiredTiger(value)
		case "indexOptionDefaults":
			doc, ok := value.DocumentOK()
			if !ok {
				return value, false, nil
			}
			doc, err := edit(doc, func(key string, v bson.RawValue) (bson.RawValue, bool, error) {
				if key == "storageEngine" {
					return onlyWiredTiger(v)
				}
				return v, true, nil
			})
			return docValue(doc), len(doc) > 5, err
		case "recordPreImages":
			// 7.0 knows the setting under its new name only.
			return value, !v.AtLeast(7, 0) && truthy(value), nil
		}
		return value, true, nil
	})
	if err == nil && v.AtLeast(7, 0) && truthyField(options, "recordPreImages") && !has(options, "changeStreamPreAndPostImages") {
		out, err = with(out, "changeStreamPreAndPostImages", bson.D{{Key: "enabled", Value: true}})
	}
	return out, expire, err
}

// portableCollation drops the version of the source's collation library, which
// another server may not have; the ordering itself is defined by the rest.
func portableCollation(v bson.RawValue) (bson.RawValue, error) {
	doc, ok := v.DocumentOK()
	if !ok {
		return v, nil
	}
	doc, err := without(doc, "version")
	return docValue(doc), err
}

// onlyWiredTiger drops the options of storage engines that no longer exist, and
// what a server keeps among those of WiredTiger for itself (app_metadata).
func onlyWiredTiger(v bson.RawValue) (bson.RawValue, bool, error) {
	doc, ok := v.DocumentOK()
	config := withoutMetadata(str(doc, "wiredTiger", "configString"))
	if !ok || config == "" {
		return v, false, nil
	}
	return rawValue(bson.D{{Key: "wiredTiger", Value: bson.D{{Key: "configString", Value: config}}}}), true, nil
}

// withoutMetadata cuts app_metadata=(…) out of a list of settings.
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

// Unsupported names what of a collection a server of the version cannot hold,
// each in one sentence; nothing when it can hold all of it.
func Unsupported(coll Collection, v mongo.Version) []string {
	var out []string
	need := func(present bool, major, minor int, what string) {
		if present && !v.AtLeast(major, minor) {
			out = append(out, fmt.Sprintf("%s: %s needs a target of version %d.%d or newer", coll.NS, what, major, minor))
		}
	}
	need(coll.Type == TypeTimeSeries, 5, 0, "a time-series collection")
	need(coll.Type == TypeCollection && has(coll.Options, "clusteredIndex"), 5, 3, "a clustered collection")
	need(enabled(coll.Options, "changeStreamPreAndPostImages"), 6, 0, "changeStreamPreAndPostImages")
	need(truthyField(coll.Options, "recordPreImages"), 4, 4, "recordPreImages")
	if has(coll.Options, "encryptedFields") {
		out = append(out, coll.NS+": queryable encryption is not supported")
	}
	for _, ix := range coll.Indexes {
		kind := indexKind(ix.Spec)
		need(truthyField(ix.Spec, "hidden"), 4, 4, "hidden index "+ix.Name)
		need(truthyField(ix.Spec, "prepareUnique"), 6, 0, "prepareUnique of index "+ix.Name)
		need(kind == "columnstore", 99, 0, "columnstore index "+ix.Name)
		if coll.Capped() && has(ix.Spec, "expireAfterSeconds") && v.AtLeast(6, 0) {
			out = append(out, fmt.Sprintf("%s: index %s expires documents of a capped collection: version 6.0 and newer have no such index, and older ones do not expire any by it", coll.NS, ix.Name))
		}
		if kind == "geoHaystack" && v.AtLeast(5, 0) {
			out = append(out, fmt.Sprintf("%s: geoHaystack index %s: version 5.0 and newer have none", coll.NS, ix.Name))
		}
	}
	return out
}

func enabled(options bson.Raw, key string) bool {
	return has(options, key, "enabled") && truthy(options.Lookup(key, "enabled"))
}

// comparableOptions brings options into a form in which equal collections are equal:
// one canonical text a setting, without defaults and without what differs
// between servers for no fault of the job.
func comparableOptions(coll Collection, o DiffOptions) (map[string]string, error) {
	options, expire, err := createOptions(coll.Options, mongo.Version{Major: math.MaxInt})
	if err != nil {
		return nil, fmt.Errorf("options of %s: %w", coll.NS, err)
	}
	els, err := elements(options)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, el := range els {
		if text := comparableOption(el.Key(), el.Value()); text != "" {
			out[el.Key()] = text
		}
	}
	if expire != nil && !o.IgnoreTTL {
		n, _ := seconds(*expire)
		out["expireAfterSeconds"] = fmt.Sprint(n)
	}
	return out, nil
}

// comparableOption is a setting's canonical text, "" when it is the default.
func comparableOption(key string, v bson.RawValue) string {
	doc, isDoc := v.DocumentOK()
	switch key {
	case "validationLevel", "validationAction":
		if s, _ := v.StringValueOK(); s == "strict" || s == "error" { // no value of the other
			return ""
		}
	case "validator", "storageEngine", "indexOptionDefaults":
		if isDoc && len(doc) <= 5 {
			return ""
		}
	case "changeStreamPreAndPostImages":
		if !has(doc, "enabled") || !truthy(doc.Lookup("enabled")) {
			return ""
		}
		return "enabled"
	case "capped":
		if !truthy(v) {
			return ""
		}
	case "size", "max":
		n, ok := v.AsInt64OK()
		if ok && n != 0 {
			return fmt.Sprint(n)
		}
		return ""
	case "collation":
		if str(doc, "locale") == "simple" {
			return ""
		}
	case "timeseries":
		if isDoc && has(doc, "granularity") {
			doc, _ = without(doc, "bucketMaxSpanSeconds", "bucketRoundingSeconds") // follow from it
			return docValue(doc).String()
		}
	case "clusteredIndex":
		if isDoc {
			doc, _ = without(doc, "v")
			return docValue(doc).String()
		}
	}
	return v.String()
}
