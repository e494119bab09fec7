package oplog

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/test/kit"
)

// writeAllKinds makes entries of every kind that a client's writes make, and
// returns the events they are.
func writeAllKinds(t *testing.T, c *mongo.Cluster, db string) []string {
	ctx := t.Context()
	d := c.Client.Database(db)
	coll := d.Collection("c")
	v2 := c.Info.Version.AtLeast(5, 0) // updates are diffs since then
	diff := func(v1, diff string) string {
		if v2 {
			return diff
		}
		return v1
	}
	var want []string
	add := func(lines ...string) { want = append(want, lines...) }

	ok(t, d.CreateCollection(ctx, "c"))
	add("schema create " + db + ".c")
	must[*driver.InsertManyResult](t)(coll.InsertMany(ctx, []any{doc(1), doc(2), doc(3)}))
	add("insert "+db+".c 1 {\"_id\":1}", "insert "+db+".c 2 {\"_id\":2}", "insert "+db+".c 3 {\"_id\":3}")

	_, err := coll.BulkWrite(ctx, []driver.WriteModel{
		driver.NewInsertOneModel().SetDocument(doc(4)),
		driver.NewInsertOneModel().SetDocument(doc(4)), // fails
		driver.NewDeleteOneModel().SetFilter(doc(4)),
		driver.NewReplaceOneModel().SetFilter(doc(3)).SetReplacement(bson.D{{Key: "r", Value: 1}}),
	}, options.BulkWrite().SetOrdered(false))
	if err == nil {
		t.Fatal("want a duplicate key")
	}
	add("insert "+db+".c 4 {\"_id\":4}", "update "+db+".c 3 {\"_id\":3,\"r\":1}", "delete "+db+".c 4")

	must[*driver.UpdateResult](t)(coll.UpdateOne(ctx, doc(5), bson.D{{Key: "$set", Value: bson.D{{Key: "u", Value: 1}}}},
		options.UpdateOne().SetUpsert(true)))
	add("insert " + db + ".c 5 {\"_id\":5,\"u\":1}")
	must[*driver.UpdateResult](t)(coll.UpdateMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: 3}}}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "m", Value: 1}}}}))
	for _, id := range []string{"1", "2"} {
		add("update " + db + ".c " + id + " " + diff(`{"$v":1,"$set":{"m":1}}`, `{"$v":2,"diff":{"i":{"m":1}}}`))
	}
	ok(t, coll.FindOneAndUpdate(ctx, doc(1), bson.D{{Key: "$unset", Value: bson.D{{Key: "m", Value: 1}}}}).Err())
	add("update " + db + ".c 1 " + diff(`{"$v":1,"$unset":{"m":true}}`, `{"$v":2,"diff":{"d":{"m":false}}}`))
	ok(t, coll.FindOneAndDelete(ctx, doc(1)).Err())
	add("delete " + db + ".c 1")
	must[*driver.DeleteResult](t)(coll.DeleteMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$lte", Value: 3}}}}))
	add("delete "+db+".c 2", "delete "+db+".c 3")

	ok(t, c.Client.Database("admin").RunCommand(ctx, bson.D{{Key: "applyOps", Value: bson.A{
		bson.D{{Key: "op", Value: "i"}, {Key: "ns", Value: db + ".c"}, {Key: "o", Value: doc(10)}},
		bson.D{{Key: "op", Value: "u"}, {Key: "ns", Value: db + ".c"}, {Key: "o2", Value: doc(10)},
			{Key: "o", Value: bson.D{{Key: "$v", Value: 1}, {Key: "$set", Value: bson.D{{Key: "x", Value: 1}}}}}},
		bson.D{{Key: "op", Value: "d"}, {Key: "ns", Value: db + ".c"}, {Key: "o", Value: doc(10)}},
	}}}).Err())
	add("put "+db+".c 10 {\"_id\":10}", "upsert "+db+".c 10 {\"$v\":1,\"$set\":{\"x\":1}}", "delete "+db+".c 10")

	must[*driver.InsertOneResult](t)(c.Client.Database(db+"_other").Collection("c").InsertOne(ctx, doc(1)))
	must[*driver.InsertOneResult](t)(c.Client.Database("millrace").Collection("c").InsertOne(ctx, doc(1)))
	ok(t, d.CreateView(ctx, "v", "c", bson.A{}))
	add("schema view " + db + ".v")
	ok(t, d.Collection("v").Drop(ctx))
	add("schema dropView " + db + ".v")
	must[string](t)(coll.Indexes().CreateOne(ctx, driver.IndexModel{Keys: bson.D{{Key: "q", Value: 1}}}))
	add("schema createIndexes " + db + ".c")
	ok(t, coll.Drop(ctx))
	ok(t, d.Drop(ctx))
	add("schema drop "+db+".c", "schema dropAllViews "+db, "schema dropDatabase "+db)
	return want
}

func TestAllKinds(t *testing.T) {
	c := connect(t, sharedURI)
	start := position(t, c)
	want := writeAllKinds(t, c, "kinds")
	got := read(t, c, Options{Keep: only("kinds")}, from(start), position(t, c))
	kit.SameLines(t, schemaOf("kinds", events(got)), want)
}
