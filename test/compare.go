// Package test holds the scenarios that run across all packages: whole jobs
// between real clusters, judged by a comparison of its own.
package test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"
)

// CompareOptions say what is compared and which name it has on the target. The
// zero value compares everything but the servers' own databases and that of
// millrace.
type CompareOptions struct {
	// Source reports which source namespaces must be on the target.
	Source func(ns string) bool
	// Target reports which target namespaces must come from the source.
	Target func(ns string) bool
	// Name is the target name of a source namespace; system.buckets
	// collections are asked for under their own names.
	Name func(ns string) string
	// Filter chooses the documents of a source namespace that must be on the target; nil
	// is all of them. The server applies it.
	Filter func(ns string) bson.Raw
	// Marked is the field that marks documents on the target which the source has deleted;
	// they are left out. "" is none.
	Marked func(ns string) string
	// History are the source namespaces of which the target holds versions in place of
	// documents: the newest are compared, and nothing else of such a collection. Patterns
	// are those of Filters.
	History []string
	// Fields are the stages by which the server maps documents of a source namespace; nil
	// leaves them as they are. Of such a collection validators and indexes are left out.
	Fields func(ns string) bson.A
}

// Marks reads what CompareOptions.Marked is from the settings of a job. Patterns are
// those of Filters.
func Marks(rules []string) func(ns string) string {
	return func(ns string) string {
		db, _, _ := strings.Cut(ns, ".")
		for _, rule := range rules {
			if pattern, field, _ := strings.Cut(rule, "="); pattern == ns || pattern == db+".*" {
				return field
			}
		}
		return ""
	}
}

// recorded reports a source namespace that is among the histories.
func (o *CompareOptions) recorded(ns string) bool {
	db, _, _ := strings.Cut(ns, ".")
	return slices.ContainsFunc(o.History, func(p string) bool { return p == ns || p == db+".*" })
}

// recordedAs reports a target namespace that has versions.
func (o *CompareOptions) recordedAs(target string) bool {
	db, _, _ := strings.Cut(target, ".")
	return slices.ContainsFunc(o.History, func(p string) bool { return o.Name(p) == target || p == db+".*" })
}

// Filters reads what CompareOptions.Filter is from the settings of a job.
// A pattern is a name, or that of a database with an asterisk for all its collections.
func Filters(rules []string) func(ns string) bson.Raw {
	type filter struct {
		pattern string
		raw     bson.Raw
	}
	var filters []filter
	for _, rule := range rules {
		pattern, json, _ := strings.Cut(rule, "=")
		f := filter{pattern: pattern}
		if err := bson.UnmarshalExtJSON([]byte(json), false, &f.raw); err != nil {
			panic(fmt.Errorf("%s: %w", rule, err))
		}
		filters = append(filters, f)
	}
	return func(ns string) bson.Raw {
		db, _, _ := strings.Cut(ns, ".")
		for _, f := range filters {
			if f.pattern == ns || f.pattern == db+".*" {
				return f.raw
			}
		}
		return nil
	}
}

// Difference is one way in which the target differs.
type Difference struct {
	// NS is the source's namespace, or the target's where it alone has it.
	NS, What string
}

// String is the difference with its namespace.
func (d Difference) String() string { return d.NS + ": " + d.What }

// Compare reads two clusters on which nothing is written and lists how the
// target differs from the source: collections, types, options, indexes, views,
// and every document byte for byte, in the order of _id or, in capped
// collections, of insertion. It shares no code with millrace, so that it can
// judge it. At most a few differences of each collection are listed.
func Compare(ctx context.Context, source, target *mongo.Client, o CompareOptions) ([]Difference, error) {
	all := func(string) bool { return true }
	if o.Source == nil {
		o.Source = all
	}
	if o.Target == nil {
		o.Target = all
	}
	if o.Name == nil {
		o.Name = func(ns string) string { return ns }
	}
	want, err := catalogOf(ctx, source, o.Source)
	if err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	have, err := catalogOf(ctx, target, o.Target)
	if err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	if o.Filter == nil {
		o.Filter = func(string) bson.Raw { return nil }
	}
	if o.Marked == nil {
		o.Marked = func(string) string { return "" }
	}
	if o.Fields == nil {
		o.Fields = func(string) bson.A { return nil }
	}
	c := comparison{source: source, target: target, name: o.Name, filter: o.Filter, mapping: o.Fields, marked: o.Marked,
		history: o.recorded}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, ns := range slices.Sorted(maps.Keys(want)) {
		w, name := want[ns], o.Name(ns)
		h, ok := have[name]
		delete(have, name)
		if on, is := w.Options.Lookup("viewOn").StringValueOK(); is && o.recorded(w.db+"."+on) {
			if ok {
				c.add(ns, "a view of versions is on the target")
			}
			continue
		}
		if !ok {
			c.add(ns, "%s is not on the target (as %s)", w.Type, name)
			continue
		}
		g.Go(func() error { return c.collection(gctx, w, h) })
	}
	for _, ns := range slices.Sorted(maps.Keys(have)) {
		if o.recordedAs(ns) { // no document of it may be left
			e := have[ns]
			g.Go(func() error { return c.ended(gctx, e) })
			continue
		}
		c.add(ns, "%s is on the target alone", have[ns].Type)
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	slices.SortFunc(c.found, func(x, y Difference) int { return strings.Compare(x.String(), y.String()) })
	return c.found, nil
}

// entry is what listCollections tells of a namespace.
type entry struct {
	Name    string   `bson:"name"`
	Type    string   `bson:"type"`
	Options bson.Raw `bson:"options"`
	IDIndex bson.Raw `bson:"idIndex"`
	db      string
}

func (e entry) ns() string { return e.db + "." + e.Name }

func (e entry) capped() bool {
	v, err := e.Options.LookupErr("capped")
	return err == nil && v.Type == bson.TypeBoolean && v.Boolean()
}

func catalogOf(ctx context.Context, c *mongo.Client, keep func(string) bool) (map[string]entry, error) {
	dbs, err := c.ListDatabaseNames(ctx, bson.D{})
	if err != nil {
		return nil, err
	}
	out := map[string]entry{}
	for _, db := range dbs {
		switch db {
		case "admin", "config", "local", "millrace":
			continue
		}
		cur, err := c.Database(db).ListCollections(ctx, bson.D{})
		if err != nil {
			return nil, err
		}
		var entries []entry
		if err := cur.All(ctx, &entries); err != nil {
			return nil, err
		}
		for _, e := range entries {
			e.db = db
			if e.Name != "system.views" && e.Name != "system.profile" && keep(e.ns()) {
				out[e.ns()] = e
			}
		}
	}
	return out, nil
}

type comparison struct {
	source, target *mongo.Client
	name           func(string) string
	filter         func(string) bson.Raw
	mapping        func(string) bson.A
	marked         func(string) string
	history        func(string) bool
	mu             sync.Mutex
	found          []Difference
}

func (c *comparison) add(ns, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.found = append(c.found, Difference{ns, fmt.Sprintf(format, args...)})
}

func (c *comparison) collection(ctx context.Context, w, h entry) error {
	if w.Type != h.Type {
		c.add(w.ns(), "type %s on the source, %s on the target", w.Type, h.Type)
		return nil
	}
	if w.Type == "collection" && c.history(w.ns()) {
		if len(h.Options) > 5 {
			c.add(w.ns(), "a collection of versions with options: %s", h.Options)
		}
		return c.documents(ctx, w, h)
	}
	mapped := c.mapping(w.ns()) != nil && w.Type == "collection"
	want := c.options(w, true)
	if mapped {
		for _, name := range []string{"validator", "validationLevel", "validationAction"} {
			delete(want, name)
		}
	}
	c.fields(w.ns(), "option ", want, c.options(h, false))
	switch w.Type {
	case "view":
		return nil
	case "timeseries": // its buckets have an entry of their own
		return c.indexes(ctx, w, h)
	}
	c.fields(w.ns(), "_id index, ", indexFields(w.IDIndex), indexFields(h.IDIndex))
	if !mapped {
		if err := c.indexes(ctx, w, h); err != nil {
			return err
		}
	}
	return c.documents(ctx, w, h)
}

// fields compares two sets of named values.
func (c *comparison) fields(ns, what string, want, have map[string]string) {
	all := maps.Clone(want)
	maps.Copy(all, have)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		w, inSource := want[key]
		h, inTarget := have[key]
		switch {
		case !inTarget:
			c.add(ns, "%s%s: %s on the source, nothing on the target", what, key, w)
		case !inSource:
			c.add(ns, "%s%s: nothing on the source, %s on the target", what, key, h)
		case w != h:
			c.add(ns, "%s%s: %s on the source, %s on the target", what, key, w, h)
		}
	}
}

// mixedSchema marks time-series collections whose buckets may hold several types of a field.
const mixedSchema = "timeseriesBucketsMayHaveMixedSchemaData"

// options are a collection's options by name. A source's view names the
// collections as they are called on the target.
func (c *comparison) options(e entry, renamed bool) map[string]string {
	out := map[string]string{}
	els, _ := e.Options.Elements()
	for _, el := range els {
		v := el.Value()
		// The one says nothing, the other is the server's own, and another in 7.0.
		if el.Key() == "autoIndexId" || el.Key() == "validator" && strings.HasPrefix(e.Name, "system.buckets.") {
			continue
		}
		// How buckets of a source before 5.2 are marked, which has no such option.
		if el.Key() == "storageEngine" && text(v) == `{"wiredTiger": {"configString": "app_metadata=(`+mixedSchema+
			`=true)"}}` {
			continue
		}
		if renamed && e.Type == "view" && (el.Key() == "viewOn" || el.Key() == "pipeline") {
			v = c.mapView(e.db, el.Key(), v)
		}
		out[el.Key()] = text(v)
	}
	return out
}

// mapView renames the collections that a view's definition names.
func (c *comparison) mapView(db, key string, v bson.RawValue) bson.RawValue {
	var walk func(path string, x any) any
	walk = func(path string, x any) any {
		switch x := x.(type) {
		case string:
			switch path {
			case "viewOn", "$lookup.from", "$graphLookup.from", "$unionWith", "$unionWith.coll":
				_, coll, _ := strings.Cut(c.name(db+"."+x), ".")
				return coll
			}
		case bson.D:
			for i := range x {
				below := x[i].Key
				if path != "" && below[:min(1, len(below))] != "$" {
					below = path + "." + below
				}
				x[i].Value = walk(below, x[i].Value)
			}
		case bson.A:
			for i := range x {
				x[i] = walk("", x[i])
			}
		}
		return x
	}
	var x any
	if err := v.Unmarshal(&x); err != nil {
		return v
	}
	t, b, err := bson.MarshalValue(walk(key, x))
	if err != nil {
		return v
	}
	return bson.RawValue{Type: t, Value: b}
}

func (c *comparison) indexes(ctx context.Context, w, h entry) error {
	want, err := indexesOf(ctx, c.source, w)
	if err != nil {
		return fmt.Errorf("indexes of source %s: %w", w.ns(), err)
	}
	have, err := indexesOf(ctx, c.target, h)
	if err != nil {
		return fmt.Errorf("indexes of target %s: %w", h.ns(), err)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if have[name] == nil {
			c.add(w.ns(), "index %s is not on the target: %v", name, want[name])
			continue
		}
		c.fields(w.ns(), "index "+name+", ", want[name], have[name])
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if want[name] == nil {
			c.add(w.ns(), "index %s is on the target alone: %v", name, have[name])
		}
	}
	return nil
}

func indexesOf(ctx context.Context, client *mongo.Client, e entry) (map[string]map[string]string, error) {
	cur, err := client.Database(e.db).Collection(e.Name).Indexes().List(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = cur.Close(ctx) }()
	out := map[string]map[string]string{}
	for cur.Next(ctx) {
		fields := indexFields(cur.Current)
		out[strings.Trim(fields["name"], `"`)] = fields
	}
	return out, cur.Err()
}

// indexFields are an index's settings by name, without those that say nothing
// about it: the namespace and the way of building in which old servers wrote
// it down, the version of the format on disk, and what is off.
func indexFields(spec bson.Raw) map[string]string {
	out := map[string]string{}
	els, _ := spec.Elements()
	for _, el := range els {
		v := el.Value()
		switch el.Key() {
		case "ns", "background", "v":
		case "unique", "sparse", "hidden", "prepareUnique":
			if on, isBool := v.BooleanOK(); on || !isBool {
				out[el.Key()] = text(v)
			}
		case "expireAfterSeconds": // servers count whole ones
			if _, err := spec.LookupErr("clustered"); err == nil {
				continue // the collection's option, which 7.0 shows here too
			}
			out[el.Key()] = text(v)
			if f, ok := v.AsFloat64OK(); ok {
				out[el.Key()] = fmt.Sprint(math.Trunc(f))
			}
		case "wildcardProjection":
			var paths []string
			flatten(&paths, "", v)
			slices.Sort(paths)
			out[el.Key()] = strings.Join(paths, ", ")
		default:
			out[el.Key()] = text(v)
		}
	}
	return out
}

// flatten lists the paths of a projection with what is said of each. 5.0 nests
// dotted paths and adds that _id is left out, which others leave to be known.
func flatten(paths *[]string, prefix string, v bson.RawValue) {
	doc, nested := v.DocumentOK()
	if !nested {
		on, isBool := v.BooleanOK()
		if n, isNumber := v.AsFloat64OK(); isNumber {
			on, isBool = n != 0, true
		}
		if on || !isBool || prefix != "_id" {
			*paths = append(*paths, fmt.Sprintf("%s: %v", prefix, on))
		}
		return
	}
	els, _ := doc.Elements()
	for _, el := range els {
		flatten(paths, strings.TrimPrefix(prefix+"."+el.Key(), "."), el.Value())
	}
}

// text is a value for people that differs if the value differs in any byte,
// but for the type of a number that stands alone.
func text(v bson.RawValue) string {
	if f, ok := v.AsFloat64OK(); ok {
		return fmt.Sprint(f)
	}
	return v.String()
}
