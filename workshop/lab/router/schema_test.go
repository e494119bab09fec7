package router_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func (w *world) schema(t *testing.T) {
	c := w.spread(t, "schema", 300)
	db, admin := c.Database(), w.client.Database("admin")
	name, err := c.Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{Key: "g", Value: 1}}})
	equal(t, "index", fmt.Sprint(name, err), "g_1<nil>")
	equal(t, "indexes", w.indexes(t, c), "[_id_ k_1 g_1]")
	if err := c.Indexes().DropOne(t.Context(), "g_1"); err != nil {
		t.Error(err)
	}
	equal(t, "indexes", w.indexes(t, c), "[_id_ k_1]")
	command(t, db, bson.D{{Key: "collMod", Value: "c"}, {Key: "validationLevel", Value: "moderate"}})
	command(t, db, bson.D{{Key: "create", Value: "plain"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
	insert(t, db.Collection("plain"), k(1))
	command(t, db, bson.D{{Key: "create", Value: "view"}, {Key: "viewOn", Value: "c"},
		{Key: "pipeline", Value: bson.A{bson.D{{Key: "$match", Value: bson.D{{Key: "g", Value: 1}}}}}}})
	equal(t, "view", ks(t, db.Collection("view"), bson.D{}, options.Find().SetSort(k(-1)).SetLimit(2)), []int{296, 291})
	n, err := db.Collection("view").EstimatedDocumentCount(t.Context())
	equal(t, "count of a view", fmt.Sprint(n, err), "60 <nil>")
	names, err := db.ListCollectionNames(t.Context(),
		bson.D{{Key: "name", Value: bson.D{{Key: "$in", Value: bson.A{"c", "plain", "view"}}}}})
	equal(t, "collections", fmt.Sprint(len(names), err), "3 <nil>")
	equal(t, "statistics", number(command(t, db, bson.D{{Key: "collStats", Value: "c"}}), "count"), 300)
	w.primary(t, db)
	if w.version != "4.4" {
		command(t, admin, bson.D{{Key: "renameCollection", Value: "schema.c"}, {Key: "to", Value: "schema.d"}})
		equal(t, "renamed", len(ks(t, db.Collection("d"), bson.D{})), 300)
		equal(t, "old name", len(ks(t, c, bson.D{})), 0)
	}
	command(t, admin, bson.D{{Key: "renameCollection", Value: "schema.plain"}, {Key: "to", Value: "schema.other"}})
	equal(t, "renamed", len(ks(t, db.Collection("other"), bson.D{})), 1)
	for _, coll := range []string{"c", "d"} {
		if err := db.Collection(coll).Drop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for _, shard := range w.cluster.ShardNames() {
		equal(t, "dropped on "+shard, w.on(t, shard, db.Collection("d"), bson.D{}), 0)
	}
	if err := db.Drop(t.Context()); err != nil {
		t.Error(err)
	}
	dbs, err := w.client.ListDatabaseNames(t.Context(), bson.D{{Key: "name", Value: "schema"}})
	equal(t, "databases", fmt.Sprint(dbs, err), "[] <nil>")
	insert(t, c, k(1))
	equal(t, "made again", len(ks(t, c, bson.D{})), 1)
}

// primary moves unsharded collections to each shard in turn.
func (w *world) primary(t *testing.T, db *mongo.Database) {
	for _, shard := range w.cluster.ShardNames() {
		err := w.client.Database("admin").RunCommand(t.Context(),
			bson.D{{Key: "movePrimary", Value: db.Name()}, {Key: "to", Value: shard}}).Err()
		if err != nil {
			t.Errorf("move the primary to %s: %v", shard, err)
		}
		equal(t, "unsharded collection after movePrimary", len(ks(t, db.Collection("plain"), bson.D{})), 1)
	}
}

func number(raw bson.Raw, name string) int64 {
	n, _ := raw.Lookup(name).AsInt64OK()
	return n
}

func (w *world) indexes(t *testing.T, c *mongo.Collection) string {
	t.Helper()
	specs, err := c.Indexes().ListSpecifications(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range specs {
		names = append(names, s.Name)
	}
	return fmt.Sprint(names)
}

func (w *world) clusterCommands(t *testing.T) {
	c := w.spread(t, "shape", 300)
	admin := w.client.Database("admin")
	if _, err := c.Indexes().CreateOne(t.Context(),
		mongo.IndexModel{Keys: bson.D{{Key: "k", Value: 1}, {Key: "g", Value: 1}}}); err != nil {
		t.Fatal(err)
	}
	command(t, admin, bson.D{{Key: "refineCollectionShardKey", Value: "shape.c"},
		{Key: "key", Value: bson.D{{Key: "k", Value: 1}, {Key: "g", Value: 1}}}})
	r, err := c.UpdateOne(t.Context(), bson.D{{Key: "k", Value: 7}, {Key: "g", Value: 2}}, set("x", 1))
	equal(t, "update by the refined key", fmt.Sprint(r, err), "&{1 1 0 <nil> true} <nil>")
	if w.version != "4.4" {
		command(t, admin, bson.D{{Key: "reshardCollection", Value: "shape.c"},
			{Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}})
		equal(t, "resharded", len(ks(t, c, bson.D{})), 300)
		r, err = c.UpdateByID(t.Context(), 8, set("x", 1))
		equal(t, "update by the new key", fmt.Sprint(r, err), "&{1 1 0 <nil> true} <nil>")
	}
	command(t, admin, bson.D{{Key: "balancerStop", Value: 1}})
	equal(t, "balancer", command(t, admin, bson.D{{Key: "balancerStatus", Value: 1}}).Lookup("mode").StringValue(), "off")
	command(t, admin, bson.D{{Key: "balancerStart", Value: 1}})
	shards := command(t, admin, bson.D{{Key: "listShards", Value: 1}})
	equal(t, "shards", len(documents(t, shards.Lookup("shards"))), 3)
	command(t, admin, bson.D{{Key: "flushRouterConfig", Value: 1}})
	equal(t, "after a flush", len(ks(t, c, bson.D{})), 300)
}

func documents(t *testing.T, v bson.RawValue) []bson.RawValue {
	t.Helper()
	all, err := v.Array().Values()
	if err != nil {
		t.Fatal(err)
	}
	return all
}
