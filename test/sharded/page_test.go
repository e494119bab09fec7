package sharded_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// TestListPage: a page of a sharded cluster's collections has their shard keys, and the
// documents of all shards.
func TestListPage(t *testing.T) {
	b := newBed(t)
	b.ok(b.lab.CreateDatabase(t.Context(), "paged", b.lab.ShardNames()[0]))
	b.ok(b.lab.ShardCollection(t.Context(), "paged.sharded",
		sharded.Sharding{Key: bson.D{{Key: "region", Value: 1}, {Key: "_id", Value: "hashed"}}}))
	for _, name := range []string{"sharded", "whole"} {
		for i := range 20 {
			_, err := b.source.Database("paged").Collection(name).
				InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}, {Key: "region", Value: i % 3}})
			b.ok(err)
		}
	}
	c, err := mongo.Connect(t.Context(), b.sourceURI, mongo.Options{})
	b.ok(err)
	defer c.Close()
	p, err := schema.ListPage(t.Context(), c, schema.Range{Search: "PAGED.", Limit: 10})
	b.ok(err)
	if len(p.Collections) != 2 || p.More || p.NoKeys {
		t.Fatalf("%+v", p)
	}
	if one := p.Collections[0]; one.NS != "paged.sharded" || one.ShardKey != "region:1,_id:hashed" || one.Docs != 20 ||
		one.Bytes <= 0 {
		t.Errorf("%+v", one)
	}
	if one := p.Collections[1]; one.NS != "paged.whole" || one.ShardKey != "" || one.Docs != 20 {
		t.Errorf("%+v", one)
	}
	first, err := schema.ListPage(t.Context(), c, schema.Range{Search: "paged.", Limit: 1})
	if b.ok(err); !first.More || len(first.Collections) != 1 {
		t.Errorf("%+v", first)
	}
}
