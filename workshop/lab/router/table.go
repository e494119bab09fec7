package router

import (
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/shardkey"
)

// database is an entry of config.databases.
type database struct {
	name    string
	primary string   // the shard of its unsharded collections
	version bson.Raw // nil where there is none (config, admin)
	exists  bool
}

// table says where the documents of a collection are. It does not change; a new
// one takes its place.
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
	from     []bson.RawValue // the values of min
}

func (t *table) ns() string { return t.db.name + "." + t.coll }

// pattern is the shard key as a document.
func (t *table) pattern() bson.D {
	var d bson.D
	for _, p := range t.key {
		d = append(d, bson.E{Key: p.Path, Value: p.Value})
	}
	return d
}

// place takes the chunks, which come by growing lastmod; false when they do not
// fill the space of keys.
func (t *table) place(docs []bson.Raw) bool {
	byID := map[string]chunk{}
	t.versions = map[string]bson.Timestamp{}
	for _, d := range docs {
		lastmod, _ := timeOf(d, "lastmod")
		id := d.Lookup("_id")
		byID[id.String()] = chunk{
			id: id, min: d.Lookup("min").Document(), max: d.Lookup("max").Document(),
			shard: d.Lookup("shard").StringValue(), lastmod: lastmod, from: values(d.Lookup("min").Document()),
		}
	}
	for _, c := range byID {
		t.chunks = append(t.chunks, c)
		if c.lastmod.After(t.versions[c.shard]) {
			t.versions[c.shard] = c.lastmod
		}
	}
	slices.SortFunc(t.chunks, func(a, b chunk) int { return shardkey.CompareDocuments(a.min, b.min) })
	return t.whole()
}

// whole reports chunks that follow each other without gap or overlap, and are
// bounded by values of the shard key.
func (t *table) whole() bool {
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

// bounds reports a document with the shard key's fields.
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

// owners are the shards that have chunks, sorted; of an unsharded collection the
// database's primary.
func (t *table) owners() []string {
	if !t.sharded {
		return []string{t.db.primary}
	}
	return slices.Sorted(maps.Keys(t.versions))
}

// owner is the chunk that holds a key.
func (t *table) owner(key []bson.RawValue) chunk {
	i, found := slices.BinarySearchFunc(t.chunks, key, func(c chunk, key []bson.RawValue) int {
		return slices.CompareFunc(c.from[:min(len(c.from), len(key))], key[:min(len(c.from), len(key))], shardkey.Compare)
	})
	if !found {
		i--
	}
	return t.chunks[max(i, 0)]
}

// values are those of a document's fields.
func values(doc bson.Raw) []bson.RawValue {
	var all []bson.RawValue
	for e, ok := range bsonraw.Fields(doc) {
		if !ok {
			break
		}
		all = append(all, valueOf(e))
	}
	return all
}

// compareBound orders a chunk's bound, and the values of a key.
func compareBound(bound bson.Raw, key []bson.RawValue) int {
	i := 0
	for e, ok := range bsonraw.Fields(bound) {
		if !ok || i >= len(key) {
			break
		}
		if c := shardkey.Compare(valueOf(e), key[i]); c != 0 {
			return c
		}
		i++
	}
	return 0
}

// overlapping are the shards with chunks that have keys from low to high.
func (t *table) overlapping(low, high []bson.RawValue) []string {
	var names []string
	for _, c := range t.chunks {
		if compareBound(c.max, low) > 0 && compareBound(c.min, high) <= 0 && !slices.Contains(names, c.shard) {
			names = append(names, c.shard)
		}
	}
	slices.Sort(names)
	return names
}

// dotted reports a field path of several names.
func dotted(path string) bool { return strings.Contains(path, ".") }
