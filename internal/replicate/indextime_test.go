package replicate

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/catalog"
	"github.com/millrace/millrace/internal/checkpoint"
)

func TestEarlyIndex(t *testing.T) {
	index := func(spec bson.D) catalog.Index {
		raw, err := bson.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		return catalog.Index{Name: "i", Spec: raw}
	}
	on := func(key ...bson.E) catalog.Index { return index(bson.D{{Key: "key", Value: bson.D(key)}}) }
	plain := on(bson.E{Key: "a.b", Value: -1})
	coll := func(mb int64, indexes ...catalog.Index) checkpoint.Mapped {
		return checkpoint.Mapped{Target: "d.c", Collection: catalog.Collection{Type: catalog.TypeCollection, Bytes: mb << 20, Indexes: indexes}}
	}
	roomy := room{processors: 4, cacheBytes: 1 << 30}
	for _, c := range []struct {
		name  string
		colls []checkpoint.Mapped
		room  room
		want  bool
	}{
		{"the only one", []checkpoint.Mapped{coll(500, plain)}, roomy, true},
		{"most of the data", []checkpoint.Mapped{coll(10, plain, plain), coll(500, plain), coll(900)}, roomy, true},
		{"none", []checkpoint.Mapped{coll(500)}, roomy, false},
		{"two", []checkpoint.Mapped{coll(500, plain, plain)}, roomy, false},
		{"two collections", []checkpoint.Mapped{coll(300, plain), coll(300, plain)}, roomy, false},
		{"larger than half of the cache", []checkpoint.Mapped{coll(600, plain)}, roomy, false},
		{"few processors", []checkpoint.Mapped{coll(500, plain)}, room{3, 1 << 30}, false},
		{"unknown", []checkpoint.Mapped{coll(500, plain)}, room{}, false},
		{"two fields: arrays side by side", []checkpoint.Mapped{coll(500, on(bson.E{Key: "a", Value: 1}, bson.E{Key: "b", Value: 1}))}, roomy, false},
		{"hashed", []checkpoint.Mapped{coll(500, on(bson.E{Key: "a", Value: "hashed"}))}, roomy, false},
		{"wildcard", []checkpoint.Mapped{coll(500, on(bson.E{Key: "a.$**", Value: 1}))}, roomy, false},
		{"unique", []checkpoint.Mapped{coll(500, index(bson.D{{Key: "key", Value: bson.D{{Key: "a", Value: 1}}}, {Key: "unique", Value: true}}))}, roomy, false},
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
