package shards_test

import (
	"context"
	"fmt"
	"sort"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// explain logs what the oplogs hold of an _id and of the chunk map.
func (b *bed) explain(id int) {
	type line struct {
		t, i uint32
		s    string
	}
	var all []line
	look := func(name, uri string, filter bson.D) {
		client, err := driver.Connect(options.Client().ApplyURI(uri))
		b.ok(err)
		defer client.Disconnect(context.Background())
		cur, err := client.Database("local").Collection("oplog.rs").Find(context.Background(), filter)
		b.ok(err)
		var docs []bson.Raw
		b.ok(cur.All(context.Background(), &docs))
		for _, d := range docs {
			tt, ii := d.Lookup("ts").Timestamp()
			all = append(all, line{tt, ii, fmt.Sprintf("%d.%d %s op=%s fm=%v o=%s o2=%s", tt, ii, name, d.Lookup("op"), d.Lookup("fromMigrate"), d.Lookup("o"), d.Lookup("o2"))})
		}
	}
	_ = sort.Ints
	for _, s := range b.lab.Shards() {
		look(s.URI()[10:26], s.URI(), bson.D{{Key: "$or", Value: bson.A{
			bson.D{{Key: "o._id", Value: id}}, bson.D{{Key: "o2._id", Value: id}}, bson.D{{Key: "o.applyOps.o._id", Value: id}}, bson.D{{Key: "o.applyOps.o2._id", Value: id}},
			bson.D{{Key: "o.commitTransaction", Value: 1}},
		}}})
	}
	look("config", b.lab.ConfigURI(), bson.D{{Key: "$or", Value: bson.A{bson.D{{Key: "o.applyOps.ns", Value: "config.chunks"}}, bson.D{{Key: "ns", Value: "config.migrations"}}}}})
	sort.Slice(all, func(i, j int) bool { return all[i].t < all[j].t || all[i].t == all[j].t && all[i].i < all[j].i })
	for _, l := range all {
		b.Log(l.s)
	}
	for i, n := range b.lab.ShardNames() {
		b.Log(n, b.lab.Shards()[i].URI())
	}
}
