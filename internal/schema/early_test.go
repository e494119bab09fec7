package schema

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/stream"
)

func TestEarlyIndex(t *testing.T) {
	index := func(spec bson.D) stream.Index {
		raw, err := bson.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		return stream.Index{Name: "i", Spec: raw}
	}
	on := func(key ...bson.E) stream.Index { return index(bson.D{{Key: "key", Value: bson.D(key)}}) }
	plain := on(bson.E{Key: "a.b", Value: -1})
	coll := func(mb int64, indexes ...stream.Index) Collection {
		return Collection{NS: "d.c", Type: TypeCollection, Bytes: mb << 20, Indexes: indexes}
	}
	roomy := room{processors: 4, cacheBytes: 1 << 30}
	for _, c := range []struct {
		name  string
		colls []Collection
		room  room
		want  bool
	}{
		{"the only one", []Collection{coll(500, plain)}, roomy, true},
		{"most of the data", []Collection{coll(10, plain, plain), coll(500, plain), coll(900)}, roomy, true},
		{"none", []Collection{coll(500)}, roomy, false},
		{"two", []Collection{coll(500, plain, plain)}, roomy, false},
		{"two collections", []Collection{coll(300, plain), coll(300, plain)}, roomy, false},
		{"larger than half of the cache", []Collection{coll(600, plain)}, roomy, false},
		{"few processors", []Collection{coll(500, plain)}, room{3, 1 << 30}, false},
		{"unknown", []Collection{coll(500, plain)}, room{}, false},
		{"two fields: arrays side by side",
			[]Collection{coll(500, on(bson.E{Key: "a", Value: 1}, bson.E{Key: "b", Value: 1}))}, roomy, false},
		{"hashed", []Collection{coll(500, on(bson.E{Key: "a", Value: "hashed"}))}, roomy, false},
		{"wildcard", []Collection{coll(500, on(bson.E{Key: "a.$**", Value: 1}))}, roomy, false},
		{"unique", []Collection{coll(500,
			index(bson.D{{Key: "key", Value: bson.D{{Key: "a", Value: 1}}}, {Key: "unique", Value: true}}))}, roomy, false},
	} {
		got, why := earlyIndex(c.colls, c.room)
		if (got != nil) != c.want || why == "" {
			t.Errorf("%s: %v, %q", c.name, got, why)
		}
		if got != nil && got.Bytes != 500<<20 {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}
