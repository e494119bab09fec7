package router_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// world is a cluster of three shards, a router and a client of it.
type world struct {
	cluster *sharded.Cluster
	client  *mongo.Client
	uri     string
	version string
}

func newWorld(t *testing.T, version string) *world {
	t.Helper()
	// Else a range that has moved away does not come back for 15 minutes.
	parameters := map[string]string{"orphanCleanupDelaySecs": "0"}
	if version != "4.4" {
		parameters["reshardingMinimumOperationDurationMillis"] = "0" // else five minutes
	}
	c := sharded.ForTest(t,
		sharded.Options{Options: lab.Options{Topology: "sharded:3x1", Version: version, SetParameters: parameters,
			TestCommands: true}})
	r, client := start(t, c.ConfigURI())
	return &world{cluster: c, client: client, uri: r.URI(), version: version}
}

// TestRouter does all that needs no cluster of its own on one.
func TestRouter(t *testing.T) {
	lab.NeedServers(t)
	for _, version := range lab.Versions("4.4", "5.0") {
		t.Run(version, func(t *testing.T) {
			w := newWorld(t, version)
			t.Run("hash", w.hash)
			t.Run("order", w.order)
			t.Run("writes", w.writes)
			t.Run("taken", w.taken)
			t.Run("reads", w.reads)
			t.Run("aggregate", w.aggregate)
			t.Run("key", w.changedKey)
			t.Run("transactions", w.transactions)
			t.Run("operations", w.operations)
			t.Run("schema", w.schema)
			t.Run("cluster", w.clusterCommands)
			t.Run("details", w.details)
			t.Run("move", w.moves)
			t.Run("shards", w.shards)
			t.Run("elections", w.elections)
		})
	}
}

// spread makes a collection sharded by k with a chunk on each shard: below 100,
// below 200, and the rest. It holds n documents {_id: i, k: i, g: i % 5}.
func (w *world) spread(t *testing.T, name string, n int) *mongo.Collection {
	t.Helper()
	ns, admin := name+".c", w.client.Database("admin")
	command(t, admin, bson.D{{Key: "enableSharding", Value: name}})
	command(t, admin, bson.D{{Key: "shardCollection", Value: ns}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}})
	for i, shard := range w.cluster.ShardNames() {
		at := bson.D{{Key: "k", Value: i * 100}}
		if i > 0 {
			command(t, admin, bson.D{{Key: "split", Value: ns}, {Key: "middle", Value: at}})
		}
		command(t, admin, bson.D{{Key: "moveChunk", Value: ns}, {Key: "find", Value: at}, {Key: "to", Value: shard}})
	}
	c := w.client.Database(name).Collection("c")
	for i := range n {
		insert(t, c, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}, {Key: "g", Value: i % 5}})
	}
	return c
}

func insert(t *testing.T, c *mongo.Collection, doc bson.D) {
	t.Helper()
	if _, err := c.InsertOne(t.Context(), doc); err != nil {
		t.Fatal(err)
	}
}

// on counts what a shard has of a collection, orphans too.
func (w *world) on(t *testing.T, shard string, c *mongo.Collection, filter bson.D) int64 {
	t.Helper()
	client, err := w.cluster.Direct(shard)
	if err != nil {
		t.Fatal(err)
	}
	n, err := client.Database(c.Database().Name()).Collection(c.Name()).CountDocuments(t.Context(), filter)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// ks are the values of k in the order of a cursor.
func ks(t *testing.T, c *mongo.Collection, filter bson.D, o ...options.Lister[options.FindOptions]) []int {
	t.Helper()
	return ksIn(t, t.Context(), c, filter, o...)
}

// ksIn is ks in a session.
func ksIn(t *testing.T, ctx context.Context, c *mongo.Collection, filter bson.D,
	o ...options.Lister[options.FindOptions]) []int {
	t.Helper()
	cur, err := c.Find(ctx, filter, o...)
	if err != nil {
		t.Fatal(err)
	}
	var docs []struct{ K int }
	if err := cur.All(ctx, &docs); err != nil {
		t.Fatal(err)
	}
	var all []int
	for _, d := range docs {
		all = append(all, d.K)
	}
	return all
}

func equal[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Errorf("%s: %s, want %s", what, g, w)
	}
}

// upTo are the numbers from a below b.
func upTo(a, b int) []int {
	var all []int
	for i := a; i < b; i++ {
		all = append(all, i)
	}
	return all
}

func (w *world) reads(t *testing.T) {
	c := w.spread(t, "reads", 300)
	all := ks(t, c, bson.D{}, options.Find().SetBatchSize(7))
	slices.Sort(all)
	equal(t, "all", all, upTo(0, 300))
	byK := options.Find().SetSort(bson.D{{Key: "k", Value: 1}})
	equal(t, "sorted", ks(t, c, bson.D{}, byK.SetBatchSize(7)), upTo(0, 300))
	down := options.Find().SetSort(bson.D{{Key: "k", Value: -1}}).SetSkip(95).SetLimit(10).
		SetProjection(bson.D{{Key: "k", Value: 1}, {Key: "_id", Value: 0}})
	want := upTo(195, 205)
	slices.Reverse(want)
	equal(t, "skip and limit", ks(t, c, bson.D{}, down), want)
	two := options.Find().SetSort(bson.D{{Key: "g", Value: -1}, {Key: "k", Value: 1}}).SetLimit(3)
	equal(t, "two fields", ks(t, c, bson.D{}, two), []int{4, 9, 14})
	equal(t, "one", ks(t, c, bson.D{{Key: "k", Value: 150}}), []int{150})
	ranged := bson.D{{Key: "k", Value: bson.D{{Key: "$gte", Value: 98}, {Key: "$lt", Value: 103}}}}
	equal(t, "range", ks(t, c, ranged, byK), upTo(98, 103))
	n, err := c.EstimatedDocumentCount(t.Context())
	equal(t, "count", fmt.Sprint(n, err), "300 <nil>")
	var groups []int
	if err := c.Distinct(t.Context(), "g", bson.D{}).Decode(&groups); err != nil {
		t.Fatal(err)
	}
	equal(t, "distinct", groups, upTo(0, 5))
	w.killed(t, c)
}

// killed ends a cursor in its middle.
func (w *world) killed(t *testing.T, c *mongo.Collection) {
	cur, err := c.Find(t.Context(), bson.D{}, options.Find().SetBatchSize(2))
	if err != nil {
		t.Fatal(err)
	}
	id := cur.ID()
	raw := command(t, c.Database(), bson.D{{Key: "killCursors", Value: "c"}, {Key: "cursors", Value: bson.A{id}}})
	equal(t, "killed", raw.Lookup("cursorsKilled", "0").Int64(), id)
	err = c.Database().RunCommand(t.Context(), bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "c"}}).Err()
	if !hasCode(err, 43) {
		t.Errorf("a cursor that was killed: %v", err)
	}
}

func (w *world) aggregate(t *testing.T) {
	c := w.spread(t, "aggregate", 300)
	for _, x := range []struct {
		name     string
		pipeline string
		want     string
	}{
		{"group",
			`[{"$group": {"_id": "$g", "n": {"$sum": 1}, "most": {"$max": "$k"}}}, {"$sort": {"_id": 1}}, {"$limit": 2}]`,
			`{"_id":0,"n":60,"most":295} {"_id":1,"n":60,"most":296}`},
		{"average", `[{"$group": {"_id": null, "a": {"$avg": "$k"}}}]`, `{"_id":null,"a":149.5}`},
		{"set", `[{"$group": {"_id": null, "s": {"$addToSet": "$g"}}}]`, `{"_id":null,"s":[0,1,2,3,4]}`},
		{"count", `[{"$match": {"k": {"$gte": 50}}}, {"$count": "n"}]`, `{"n":250}`},
		{"sort", `[{"$sort": {"k": -1}}, {"$skip": 1}, {"$limit": 2}, {"$project": {"_id": 0, "k": 1}}]`,
			`{"k":298} {"k":297}`},
		{"skip", `[{"$match": {"k": {"$lt": 0}}}, {"$skip": 5}, {"$limit": 1}]`, ``},
		{"one shard", `[{"$match": {"k": 7}}, {"$group": {"_id": null, "p": {"$stdDevPop": "$k"}}}]`, `{"_id":null,"p":0.0}`},
	} {
		var pipeline bson.A
		if err := bson.UnmarshalExtJSON([]byte(x.pipeline), false, &pipeline); err != nil {
			t.Fatal(err)
		}
		equal(t, x.name, w.run(t, c, pipeline), x.want)
	}
}

// run gives an aggregation's documents as JSON.
func (w *world) run(t *testing.T, c *mongo.Collection, pipeline bson.A) string {
	t.Helper()
	cur, err := c.Aggregate(t.Context(), pipeline)
	if err != nil {
		t.Fatal(err)
	}
	text, sep := "", ""
	for cur.Next(t.Context()) {
		json, err := bson.MarshalExtJSON(cur.Current, false, false)
		if err != nil {
			t.Fatal(err)
		}
		text, sep = text+sep+string(json), " "
	}
	return text
}
