package router

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/shardkey"
)

// loadTries bounds how often a table is read that has gaps because it was changed meanwhile.
const loadTries = 20

// catalog keeps the routing tables that were used.
type catalog struct {
	upstream *upstream
	features features

	mu      sync.Mutex
	entries map[string]*entry
}

// entry is the place of one collection's table. All who want the table wait for one reading.
type entry struct {
	mu sync.Mutex
	t  *table
}

// table is the routing table of a collection, from memory if it is there.
func (c *catalog) table(ctx context.Context, db, coll string) (*table, error) {
	e := c.entry(db + "." + coll)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.t != nil {
		return e.t, nil
	}
	t, err := c.load(ctx, db, coll)
	if err == nil && t.db.exists {
		e.t = t
	}
	return t, err
}

func (c *catalog) entry(ns string) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[ns]
	if e == nil {
		e = &entry{}
		c.entries[ns] = e
	}
	return e
}

// outdated forgets a table that a shard has refused, unless a newer one is there.
func (c *catalog) outdated(t *table) {
	e := c.entry(t.ns())
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.t == t {
		e.t = nil
	}
}

// forget forgets all tables of a database, or of all for "".
func (c *catalog) forget(db string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.entries, func(ns string, _ *entry) bool { return db == "" || strings.HasPrefix(ns, db+".") })
}

func (c *catalog) database(ctx context.Context, name string) (database, error) {
	if name == "config" || name == "admin" {
		return database{name: name, primary: configName, exists: true}, nil
	}
	docs, err := c.upstream.config.configData(ctx, query{coll: "databases", filter: bson.D{{Key: "_id", Value: name}}})
	if err != nil || len(docs) == 0 {
		return database{name: name}, err
	}
	version, _ := docs[0].Lookup("version").DocumentOK()
	return database{name: name, primary: text(docs[0].Lookup("primary")), version: version, exists: true}, nil
}

func (c *catalog) load(ctx context.Context, db, coll string) (*table, error) {
	for range loadTries {
		d, err := c.database(ctx, db)
		if err != nil {
			return nil, err
		}
		t := &table{db: d, coll: coll}
		docs, err := c.upstream.config.configData(ctx,
			query{coll: "collections", filter: bson.D{{Key: "_id", Value: t.ns()}}})
		if err != nil {
			return nil, err
		}
		if len(docs) == 0 || truth(docs[0].Lookup("dropped")) {
			return t, nil
		}
		complete, err := c.loadChunks(ctx, t, docs[0])
		if err != nil || complete {
			return t, err
		}
	}
	return nil, fmt.Errorf("router: the chunks of %s.%s have gaps", db, coll)
}

// loadChunks reads a collection's chunks; false when they changed meanwhile and leave gaps. A changed chunk gets
// the highest lastmod. In that order a cursor meets each chunk's last state last, and no newer change without an
// older one: a shard's version would promise too much.
func (c *catalog) loadChunks(ctx context.Context, t *table, entry bson.Raw) (bool, error) {
	t.sharded = true
	t.epoch, _ = entry.Lookup("lastmodEpoch").ObjectIDOK()
	t.timestamp, _ = timeOf(entry, "timestamp")
	t.uuid = entry.Lookup("uuid")
	t.key = shardkey.Parse(entry.Lookup("key").Document())
	t.collation, _ = entry.Lookup("defaultCollation").DocumentOK()
	filter := bson.D{{Key: "ns", Value: t.ns()}}
	if c.features.AtLeast(5, 0) {
		filter = bson.D{{Key: "uuid", Value: t.uuid}}
	}
	docs, err := c.upstream.config.configData(ctx,
		query{coll: "chunks", filter: filter, sort: bson.D{{Key: "lastmod", Value: 1}}})
	if err != nil {
		return false, err
	}
	return t.place(docs), nil
}

type database struct {
	name    string
	primary string   // the shard of its unsharded collections
	version bson.Raw // nil where there is none (config, admin)
	exists  bool
}

// table says where the documents of a collection are. It does not change; a new one takes its place.
type table struct {
	db        database
	coll      string
	sharded   bool
	key       shardkey.Pattern
	epoch     bson.ObjectID
	uuid      bson.RawValue
	timestamp bson.Timestamp // zero before 5.0
	collation bson.Raw       // nil is the simple one
	chunks    []chunk
	versions  map[string]bson.Timestamp // by shard
}

// chunk is a range of shard keys, max excluded.
type chunk struct {
	id       bson.RawValue
	min, max bson.Raw
	shard    string
	lastmod  bson.Timestamp
	from, to []bson.RawValue // the values of min and max
}

// versioned is a copy of a command with the database's version, if there is one.
func (d database) versioned(cmd bson.D) bson.D {
	if d.version == nil {
		return without(cmd)
	}
	return append(without(cmd), bson.E{Key: "databaseVersion", Value: d.version})
}

func (t *table) ns() string { return t.db.name + "." + t.coll }

func (t *table) pattern() bson.D {
	var d bson.D
	for _, p := range t.key {
		d = append(d, bson.E{Key: p.Path, Value: p.Value})
	}
	return d
}

// place takes the chunks, which come by growing lastmod; false when they do not fill the space of keys.
func (t *table) place(docs []bson.Raw) bool {
	byID := map[string]chunk{}
	t.versions = map[string]bson.Timestamp{}
	for _, d := range docs {
		lastmod, _ := timeOf(d, "lastmod")
		id := d.Lookup("_id")
		byID[id.String()] = chunk{
			id: id, min: d.Lookup("min").Document(), max: d.Lookup("max").Document(),
			shard: d.Lookup("shard").StringValue(), lastmod: lastmod,
			from: values(d.Lookup("min").Document()), to: values(d.Lookup("max").Document()),
		}
	}
	for _, c := range byID {
		t.chunks = append(t.chunks, c)
		if c.lastmod.After(t.versions[c.shard]) {
			t.versions[c.shard] = c.lastmod
		}
	}
	slices.SortFunc(t.chunks, func(a, b chunk) int { return shardkey.CompareDocuments(a.min, b.min) })
	return t.complete()
}

// complete reports chunks that follow each other without gap or overlap, and are bounded by values of the shard key.
func (t *table) complete() bool {
	if len(t.chunks) == 0 {
		return false
	}
	for i, c := range t.chunks {
		if !t.bounds(c.min) || !t.bounds(c.max) || i > 0 && shardkey.CompareDocuments(t.chunks[i-1].max, c.min) != 0 {
			return false
		}
	}
	return all(t.chunks[0].min, bson.TypeMinKey) && all(t.chunks[len(t.chunks)-1].max, bson.TypeMaxKey)
}

func (t *table) bounds(doc bson.Raw) bool {
	i := 0
	for e, ok := range bsonraw.Fields(doc) {
		if !ok || i >= len(t.key) || string(e.Name) != t.key[i].Path {
			return false
		}
		i++
	}
	return i == len(t.key)
}

// all reports a document whose values are all of a type.
func all(doc bson.Raw, want bson.Type) bool {
	for e, ok := range bsonraw.Fields(doc) {
		if !ok || e.Type != want {
			return false
		}
	}
	return true
}

// owners are the shards that have chunks, sorted; of an unsharded collection the database's primary.
func (t *table) owners() []string {
	if !t.sharded {
		return []string{t.db.primary}
	}
	return slices.Sorted(maps.Keys(t.versions))
}

// owner is the chunk that holds a key.
func (t *table) owner(key []bson.RawValue) chunk {
	i, found := slices.BinarySearchFunc(t.chunks, key,
		func(c chunk, key []bson.RawValue) int { return compareKeys(c.from, key) })
	if !found {
		i--
	}
	return t.chunks[max(i, 0)]
}

func values(doc []byte) []bson.RawValue {
	var all []bson.RawValue
	for e, ok := range bsonraw.Fields(doc) {
		if !ok {
			break
		}
		all = append(all, valueOf(e))
	}
	return all
}

// compareKeys orders two keys by the fields that both have.
func compareKeys(a, b []bson.RawValue) int {
	n := min(len(a), len(b))
	return slices.CompareFunc(a[:n], b[:n], shardkey.Compare)
}

// overlapping are the shards with chunks that have keys from low to high.
func (t *table) overlapping(low, high []bson.RawValue) []string {
	var names []string
	for _, c := range t.chunks {
		if compareKeys(c.to, low) > 0 && compareKeys(c.from, high) <= 0 && !slices.Contains(names, c.shard) {
			names = append(names, c.shard)
		}
	}
	slices.Sort(names)
	return names
}

// keyOf returns a document's shard key, missing fields as null; false for an array in it or before it.
func (t *table) keyOf(doc bson.Raw) ([]bson.RawValue, bool) {
	var k shardkey.Key
	ok := t.key.Of(&k, doc)
	return k.Values, ok
}

// equalities are the values that a filter demands of fields, by dotted path.
func equalities(filter bson.Raw) map[string]bson.RawValue {
	found := map[string]bson.RawValue{}
	collect(filter, found)
	return found
}

func collect(filter bson.Raw, found map[string]bson.RawValue) {
	for e, ok := range bsonraw.Fields(filter) {
		if !ok {
			return
		}
		name, v := string(e.Name), valueOf(e)
		if name == "$and" && e.Type == bson.TypeArray {
			for _, d := range documents(e.Value) {
				collect(d, found)
			}
			continue
		}
		if v, ok := demanded(v); ok && !strings.HasPrefix(name, "$") {
			if _, twice := found[name]; !twice {
				found[name] = v
			}
		}
	}
}

// demanded is the one value that a condition on a field allows.
func demanded(v bson.RawValue) (bson.RawValue, bool) {
	switch v.Type {
	case bson.TypeRegex, bson.TypeArray, bson.TypeUndefined:
		return v, false
	case bson.TypeEmbeddedDocument:
	default:
		return v, true
	}
	if !strings.HasPrefix(stageName(v.Value), "$") {
		return v, true // a literal document
	}
	for e, ok := range bsonraw.Fields(v.Value) {
		eq := ok && string(e.Name) == "$eq"
		if eq && e.Type != bson.TypeArray && e.Type != bson.TypeRegex && e.Type != bson.TypeUndefined {
			return valueOf(e), true
		}
	}
	return v, false
}

// demand is the value that equalities demand of a path, which may lie within a literal document.
func demand(eq map[string]bson.RawValue, path string) (bson.RawValue, bool) {
	if v, ok := eq[path]; ok {
		return v, true
	}
	for i := len(path) - 1; i > 0; i-- {
		if path[i] != '.' {
			continue
		}
		v, ok := eq[path[:i]]
		if !ok || v.Type != bson.TypeEmbeddedDocument {
			continue
		}
		if v, ok = shardkey.Lookup(bson.Raw(v.Value), path[i+1:]); ok {
			return v, v.Type != bson.TypeArray
		}
	}
	return bson.RawValue{}, false
}

// keyIn takes the full shard key out of a filter; false when the filter does not demand one value of each field.
func (t *table) keyIn(filter, collation bson.Raw) ([]bson.RawValue, bool) {
	prefix := t.prefixIn(filter, collation)
	return prefix, len(prefix) == len(t.key)
}

// prefixIn takes the shard key's leading values out of a filter, as far as it demands one of each.
func (t *table) prefixIn(filter, collation bson.Raw) []bson.RawValue {
	if v, ok := t.alone(filter); ok && !collated(collation) {
		return []bson.RawValue{t.key[0].Indexed(v)}
	}
	eq := equalities(filter)
	var key []bson.RawValue
	for _, p := range t.key {
		v, ok := demand(eq, p.Path)
		if !ok || collated(collation) && worded(v) {
			break
		}
		key = append(key, p.Indexed(v))
	}
	return key
}

// alone is the value of a shard key of one field, where a filter begins with it: what comes first is what counts.
func (t *table) alone(filter bson.Raw) (v bson.RawValue, ok bool) {
	body, _ := bsonraw.Body(filter)
	first, _, ok := bsonraw.Next(body)
	if !ok || len(t.key) != 1 || string(first.Name) != t.key[0].Path {
		return v, false
	}
	return demanded(valueOf(first))
}

func collated(collation bson.Raw) bool {
	return len(collation) > 0 && text(collation.Lookup("locale")) != "simple"
}

// worded reports values that a collation may hold equal to others.
func worded(v bson.RawValue) bool {
	switch v.Type {
	case bson.TypeString, bson.TypeSymbol, bson.TypeEmbeddedDocument, bson.TypeArray:
		return true
	}
	return false
}

// shardsFor are the shards that may hold what a filter matches, sorted.
func (t *table) shardsFor(filter, collation bson.Raw) []string {
	if !t.sharded {
		return t.owners()
	}
	collation = t.orDefault(collation)
	low := t.prefixIn(filter, collation)
	if len(low) == len(t.key) {
		return []string{t.owner(low).shard}
	}
	high := low[:len(low):len(low)]
	from, to := t.rangeIn(filter, collation, len(low))
	low, high = append(low[:len(low):len(low)], from), append(high, to)
	for len(low) < len(t.key) {
		low, high = append(low, shardkey.MinKey()), append(high, shardkey.MaxKey())
	}
	if names := t.overlapping(low, high); len(names) > 0 {
		return names
	}
	return t.owners()[:1] // nothing can match, and something has to say so
}

// rangeIn is the range that a filter leaves to part i of the key.
func (t *table) rangeIn(filter, collation bson.Raw, i int) (low, high bson.RawValue) {
	low, high = shardkey.MinKey(), shardkey.MaxKey()
	p := t.key[i]
	e, ok := bsonraw.Field(filter, p.Path)
	if !ok || p.Hashed || e.Type != bson.TypeEmbeddedDocument {
		return low, high
	}
	for op, ok := range bsonraw.Fields(e.Value) {
		v := valueOf(op)
		if !ok || v.Type == bson.TypeArray || collated(collation) && worded(v) {
			continue
		}
		switch string(op.Name) {
		case "$gt", "$gte":
			low = v
		case "$lt", "$lte":
			high = v
		}
	}
	return low, high
}
