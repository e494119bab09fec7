package router

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/shardkey"
)

// keyOf takes the shard key's values out of a document; false when one of them is
// an array or lies behind one. What is missing counts as null.
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
	body, _ := bsonraw.Body(v.Value)
	first, _, ok := bsonraw.Next(body)
	if !ok || !strings.HasPrefix(string(first.Name), "$") {
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

// demand is the value that equalities demand of a path, which may lie within a
// literal document.
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

// keyIn takes the full shard key out of a filter; false when the filter does not
// demand one value of each field.
func (t *table) keyIn(filter, collation bson.Raw) ([]bson.RawValue, bool) {
	prefix := t.prefixIn(filter, collation)
	return prefix, len(prefix) == len(t.key)
}

// prefixIn takes the shard key's leading values out of a filter, as far as it
// demands one of each.
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

// alone is the value of a shard key of one field, where a filter begins with it: what
// comes first is what counts.
func (t *table) alone(filter bson.Raw) (v bson.RawValue, ok bool) {
	body, _ := bsonraw.Body(filter)
	first, _, ok := bsonraw.Next(body)
	if !ok || len(t.key) != 1 || string(first.Name) != t.key[0].Path {
		return v, false
	}
	return demanded(valueOf(first))
}

// collated reports a collation other than the simple one.
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
	if collation == nil {
		collation = t.collation
	}
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
