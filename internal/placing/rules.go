package placing

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/shardkey"
)

// Rules say by which keys collections are sharded, by their names on the source. The zero value has none.
type Rules struct {
	ruled[bson.Raw] // nil for one that is to stay unsharded
}

type ruled[T any] struct{ by map[string]T }

// Of returns the rule about a name; ok is false without one.
func (r ruled[T]) Of(name string) (says T, ok bool) {
	says, ok = r.by[name]
	return says, ok
}

// Names are the names that rules are about, sorted.
func (r ruled[T]) Names() []string { return slices.Sorted(maps.Keys(r.by)) }

// ParseRules reads rules such as shop.orders=customer:1,_id:hashed, shop.orders={"customer": 1} and shop.orders=none.
func ParseRules(texts []string) (Rules, error) {
	r := Rules{ruled[bson.Raw]{map[string]bson.Raw{}}}
	for _, text := range texts {
		ns, key, ok := strings.Cut(text, "=")
		db, coll := mongo.SplitNS(ns)
		if !ok || db == "" || coll == "" {
			return r, fmt.Errorf("%q is not database.collection=key", text)
		}
		if _, twice := r.by[ns]; twice {
			return r, fmt.Errorf("names %s twice", ns)
		}
		pattern, err := parseKey(strings.TrimSpace(key))
		if err != nil {
			return r, fmt.Errorf("of %s: %w", ns, err)
		}
		r.by[ns] = pattern
	}
	return r, nil
}

func parseKey(text string) (bson.Raw, error) {
	var key bson.D
	switch {
	case text == "none":
		return nil, nil
	case strings.HasPrefix(text, "{"):
		if err := bson.UnmarshalExtJSON([]byte(text), false, &key); err != nil {
			return nil, fmt.Errorf("the key %s is not JSON: %w", text, err)
		}
	default:
		for part := range strings.SplitSeq(text, ",") {
			name, how, _ := strings.Cut(strings.TrimSpace(part), ":")
			key = append(key, bson.E{Key: strings.TrimSpace(name), Value: strings.TrimSpace(how)})
		}
	}
	return checkKey(key)
}

// checkKey checks a key and gives it the servers' form.
func checkKey(key bson.D) (bson.Raw, error) {
	hashed, seen := 0, map[string]bool{}
	for i, e := range key {
		if e.Key == "" || strings.HasPrefix(e.Key, "$") || seen[e.Key] {
			return nil, fmt.Errorf("%q cannot be a field of the key", e.Key)
		}
		seen[e.Key] = true
		switch fmt.Sprint(e.Value) {
		case "hashed":
			hashed++
			key[i].Value = "hashed"
		case "1", "":
			key[i].Value = int32(1)
		default:
			return nil, fmt.Errorf("field %s of the key is %v: want 1 or hashed", e.Key, e.Value)
		}
	}
	switch {
	case len(key) == 0:
		return nil, errors.New("the key has no fields")
	case hashed > 1:
		return nil, errors.New("two fields of the key are hashed; servers hash one at most")
	}
	return bson.Marshal(key)
}

// SameKey reports that two patterns of shard keys mean the same.
func SameKey(a, b bson.Raw) bool {
	return slices.EqualFunc(shardkey.Parse(a), shardkey.Parse(b), func(x, y shardkey.Field) bool {
		return x.Path == y.Path && x.Hashed == y.Hashed
	})
}
