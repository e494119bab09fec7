package schema

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// indexes lists the finished and unfinished indexes of a collection, without the one on _id; none if
// it is gone.
//
// A build is no index yet: its end comes later in the oplog, if it succeeds. Some servers list builds
// like indexes, and name them in the statistics. Servers before 4.4 do, and 5.0 and 6.0 for indexes on
// measurements of a time series. There an index is finished if it is in two listings, and not among
// the builds in between.
func indexes(ctx context.Context, c *mongo.Cluster, ns string) (finished, building []stream.Index, err error) {
	if c.Info.Version.AtLeast(4, 4) {
		finished, building, err = listIndexes(ctx, c, ns, withBuilds())
		if !mongo.IsCode(err, codeCannotDescribe) {
			return finished, building, err
		}
	}
	found, _, err := listIndexes(ctx, c, ns)
	if err != nil || len(found) == 0 {
		return nil, nil, err
	}
	under, err := buildsUnderWay(ctx, c, ns)
	if err != nil {
		return nil, nil, err
	}
	again, _, err := listIndexes(ctx, c, ns)
	if err != nil {
		return nil, nil, err
	}
	for _, ix := range found {
		listed := slices.ContainsFunc(again, func(other stream.Index) bool { return other.Name == ix.Name })
		switch {
		case slices.Contains(under, ix.Name):
			building = append(building, ix)
		case listed:
			finished = append(finished, ix)
		}
	}
	return finished, building, nil
}

// codeCannotDescribe: an index has a field that the reply does not know (originalSpec of a build).
const codeCannotDescribe = 5254501

func withBuilds() bson.E { return bson.E{Key: "includeBuildUUIDs", Value: true} }

// listIndexes lists the indexes of a collection. Without withBuilds, builds count as finished.
func listIndexes(ctx context.Context, c *mongo.Cluster, ns string,
	more ...bson.E) (finished, building []stream.Index, err error) {
	specs, err := listSpecs(ctx, c, ns, more...)
	for _, spec := range specs {
		if under := sub(spec, "spec"); under != nil && has(spec, "buildUUID") {
			building = append(building, stream.Index{Name: str(under, "name"), Spec: under})
		} else if !isIDIndex(spec) && !truthyField(spec, "clustered") {
			finished = append(finished, stream.Index{Name: str(spec, "name"), Spec: spec})
		}
	}
	return finished, building, err
}

func listSpecs(ctx context.Context, c *mongo.Cluster, ns string, more ...bson.E) ([]bson.Raw, error) {
	db, coll := mongo.SplitNS(ns)
	cmd := append(bson.D{{Key: "listIndexes", Value: coll}, {Key: "cursor", Value: bson.D{}}}, more...)
	all, err := c.Documents(ctx, db, cmd)
	return unlessGone(all, mongo.Wrap(err, "list indexes of %s of %s", ns, c.Address()))
}

func buildsUnderWay(ctx context.Context, c *mongo.Cluster, ns string) ([]string, error) {
	stats, err := collStats(ctx, c, ns, bson.D{{Key: "storageStats", Value: bson.D{}}},
		bson.D{{Key: "builds", Value: "$storageStats.indexBuilds"}})
	var out []string
	for _, shard := range stats {
		out = append(out, texts(shard, "builds")...)
	}
	return out, err
}

func truthyField(doc bson.Raw, key ...string) bool { return truthy(doc.Lookup(key...)) }

func isIDIndex(spec bson.Raw) bool {
	els := keyFields(spec)
	if len(els) != 1 || els[0].Key() != "_id" {
		return false
	}
	n, ok := els[0].Value().AsFloat64OK()
	return ok && n > 0
}

// Building lists the kept collections on which a source is building indexes.
func Building(ctx context.Context, c *mongo.Cluster, rules *transform.Set) ([]Collection, error) {
	colls, err := list(ctx, c, Scope{NS: rules.Match, DB: rules.MatchDB})
	return slices.DeleteFunc(colls, func(c Collection) bool { return len(c.Building) == 0 }),
		mongo.Wrap(err, "look for index builds under way")
}

func addBuilding(colls, others []Collection) {
	for _, o := range others {
		at := slices.IndexFunc(colls, func(c Collection) bool { return c.NS == o.NS })
		if at < 0 {
			continue
		}
		c := &colls[at]
		for _, ix := range o.Building {
			if !slices.ContainsFunc(slices.Concat(c.Indexes, c.Building),
				func(have stream.Index) bool { return have.Name == ix.Name }) {
				c.Building = append(c.Building, ix)
			}
		}
	}
}

// BuildingNames lists the index builds of a catalog that concern the target, sorted, with the
// source's namespaces.
func BuildingNames(colls []Collection, rules *transform.Set) (out []IndexName, err error) {
	for _, c := range colls {
		if len(c.Building) == 0 || !rules.Match(c.NS) || rules.Route(c.NS).Skips.Has(stream.OpCreateIndexes) {
			continue
		}
		if c, _, err = Mapped(c, rules); err != nil {
			return nil, err
		}
		for _, ix := range c.Building {
			out = append(out, IndexName{NS: c.NS, Name: ix.Name})
		}
	}
	slices.SortFunc(out, func(a, b IndexName) int { return cmp.Or(cmp.Compare(a.NS, b.NS), cmp.Compare(a.Name, b.Name)) })
	return slices.Compact(out), nil
}

const mostNamed = 10

// NameAll names indexes in a text: "a_1 of db.c, b_1 of db.c".
func NameAll(all []IndexName) string {
	var out []string
	for _, one := range all[:min(len(all), mostNamed)] {
		out = append(out, one.Name+" of "+one.NS)
	}
	if more := len(all) - mostNamed; more > 0 {
		out = append(out, fmt.Sprintf("%d more", more))
	}
	return strings.Join(out, ", ")
}

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

// takesAll reports indexes in the order of one field. They refuse no documents but those whose field names are numbers.
func takesAll(ix stream.Index) bool { return takesMost(ix) && len(keyFields(ix.Spec)) == 1 }

// takesMost reports indexes in the order of fields. They refuse no documents but those with arrays in two of them.
func takesMost(ix stream.Index) bool {
	fields := keyFields(ix.Spec)
	return len(fields) > 0 && !uniqueLike(ix.Spec) && !slices.ContainsFunc(fields, func(f bson.RawElement) bool {
		_, ordered := f.Value().AsInt64OK()
		return !ordered || strings.Contains(f.Key(), "$")
	})
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
