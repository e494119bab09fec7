package router_test

import (
	"errors"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/workshop/lab/router"
)

func k(v any) bson.D { return bson.D{{Key: "k", Value: v}} }

func set(name string, v any) bson.D {
	return bson.D{{Key: "$set", Value: bson.D{{Key: name, Value: v}}}}
}

func (w *world) writes(t *testing.T) {
	c := w.spread(t, "writes", 300)
	for _, shard := range w.cluster.ShardNames() {
		equal(t, "documents on "+shard, w.on(t, shard, c, bson.D{}), 100)
	}
	for _, x := range []struct {
		name string
		got  func() (*mongo.UpdateResult, error)
		want string
	}{
		{"one by key", func() (*mongo.UpdateResult, error) { return c.UpdateOne(t.Context(), k(3), set("x", 1)) },
			"1 1 <nil>"},
		{"one by id", func() (*mongo.UpdateResult, error) { return c.UpdateByID(t.Context(), 103, set("x", 1)) },
			"1 1 <nil>"},
		{"many", func() (*mongo.UpdateResult, error) {
			return c.UpdateMany(t.Context(), bson.D{{Key: "g", Value: 1}}, set("x", 2))
		}, "60 60 <nil>"},
		{"replace", func() (*mongo.UpdateResult, error) {
			return c.ReplaceOne(t.Context(), bson.D{{Key: "_id", Value: 201}},
				bson.D{{Key: "k", Value: 201}, {Key: "g", Value: 1}})
		}, "1 1 <nil>"},
		{"upsert", func() (*mongo.UpdateResult, error) {
			return c.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 1000}, {Key: "k", Value: 50}}, set("x", 1),
				options.UpdateOne().SetUpsert(true))
		}, "0 0 1000"},
	} {
		r, err := x.got()
		if err != nil {
			t.Fatalf("%s: %v", x.name, err)
		}
		equal(t, x.name, fmt.Sprint(r.MatchedCount, r.ModifiedCount, r.UpsertedID), x.want)
	}
	_, err := c.UpdateOne(t.Context(), bson.D{{Key: "g", Value: 1}}, set("x", 1))
	equal(t, "update without a key", codes(err), "[0:72]")
	_, err = c.DeleteOne(t.Context(), bson.D{{Key: "g", Value: 1}})
	equal(t, "delete without a key", codes(err), "[0:61]")
	_, err = c.UpdateOne(t.Context(), bson.D{{Key: "g", Value: 77}}, set("x", 1), options.UpdateOne().SetUpsert(true))
	equal(t, "upsert without a key", codes(err), "[0:61]")
	w.batches(t, c)
	r, err := c.DeleteMany(t.Context(), bson.D{{Key: "k", Value: bson.D{{Key: "$gte", Value: 90}}}})
	equal(t, "delete many", fmt.Sprint(r.DeletedCount, err), "210 <nil>")
}

// codes are the places and codes of write errors.
func codes(err error) string {
	all := []string{}
	if e, ok := errors.AsType[mongo.WriteException](err); ok {
		for _, w := range e.WriteErrors {
			all = append(all, fmt.Sprintf("%d:%d", w.Index, w.Code))
		}
	}
	if e, ok := errors.AsType[mongo.BulkWriteException](err); ok {
		for _, w := range e.WriteErrors {
			all = append(all, fmt.Sprintf("%d:%d", w.Index, w.Code))
		}
	}
	return fmt.Sprint(all)
}

// batches have errors at places that are those of the client's batch, not of the
// shards'.
func (w *world) batches(t *testing.T, c *mongo.Collection) {
	var docs []any
	for _, n := range []int{500, 5, 501, 150, 502, 150, 503} { // 5 and 150 are there
		docs = append(docs, bson.D{{Key: "_id", Value: n}, {Key: "k", Value: n % 300}})
	}
	r, err := c.InsertMany(t.Context(), docs, options.InsertMany().SetOrdered(false))
	equal(t, "unordered", fmt.Sprint(codes(err), len(r.InsertedIDs)), "[1:11000 3:11000 5:11000]4")
	for _, d := range docs {
		doc := d.(bson.D)
		if id := doc[0].Value.(int); id >= 500 {
			if _, err := c.DeleteOne(t.Context(), doc[:1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	r, err = c.InsertMany(t.Context(), docs[2:])
	equal(t, "ordered", fmt.Sprint(codes(err), len(r.InsertedIDs)), "[1:11000]1")
	if _, err := c.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: 501}}); err != nil {
		t.Fatal(err)
	}
}

// changedKey gives documents to other shards by changing their key.
func (w *world) changedKey(t *testing.T) {
	c := w.spread(t, "changed", 10)
	r, err := c.UpdateOne(t.Context(), k(1), set("k", 150))
	equal(t, "update", fmt.Sprint(r, err), "&{1 1 0 <nil> true} <nil>")
	var after bson.D
	err = c.FindOneAndUpdate(t.Context(), k(2), set("k", 250),
		options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&after)
	equal(t, "findAndModify", fmt.Sprint(after, err),
		`{"_id":{"$numberInt":"2"},"k":{"$numberInt":"250"},"g":{"$numberInt":"2"}} <nil>`)
	s, err := w.client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.EndSession(t.Context())
	ctx := mongo.NewSessionContext(t.Context(), s)
	if err := s.StartTransaction(); err != nil {
		t.Fatal(err)
	}
	r, err = c.UpdateOne(ctx, k(3), set("k", 199))
	equal(t, "in a transaction", fmt.Sprint(r, err), "&{1 1 0 <nil> true} <nil>")
	equal(t, "seen from outside", ks(t, c, k(3)), []int{3})
	if err := s.CommitTransaction(ctx); err != nil {
		t.Fatal(err)
	}
	// Causally: a commit over shards is told when it is decided, not when each has done it.
	equal(t, "all", ksIn(t, ctx, c, bson.D{}, options.Find().SetSort(k(1))), []int{0, 4, 5, 6, 7, 8, 9, 150, 199, 250})
	names := w.cluster.ShardNames()
	equal(t, "moved", w.on(t, names[1], c, bson.D{}), 2)
	plain, err := mongo.Connect(options.Client().ApplyURI(w.uri).SetRetryWrites(false))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = plain.Disconnect(t.Context()) }()
	_, err = plain.Database("changed").Collection("c").UpdateOne(t.Context(), k(4), set("k", 150))
	equal(t, "neither retryable nor in a transaction", codes(err), "[0:20]")
}

// transactions over shards are prepared ones, and leave nothing when aborted.
func (w *world) transactions(t *testing.T) {
	c := w.spread(t, "transactions", 0)
	s, err := w.client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.EndSession(t.Context())
	ctx := mongo.NewSessionContext(t.Context(), s)
	for i, x := range []struct {
		keys   []int
		commit bool
	}{{[]int{1, 101, 201}, true}, {[]int{2, 102, 202}, false}, {[]int{3, 4}, true}, {[]int{5, 105}, true}} {
		if err := s.StartTransaction(); err != nil {
			t.Fatal(err)
		}
		for _, n := range x.keys {
			if _, err := c.InsertOne(ctx, k(n)); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := c.CountDocuments(ctx, bson.D{}); err != nil || n < int64(len(x.keys)) {
			t.Errorf("transaction %d does not see its own writes: %d, %v", i, n, err)
		}
		end := s.AbortTransaction
		if x.commit {
			end = s.CommitTransaction
		}
		if err := end(ctx); err != nil {
			t.Fatal(err)
		}
	}
	equal(t, "committed", ksIn(t, ctx, c, bson.D{}, options.Find().SetSort(k(1))), []int{1, 3, 4, 5, 101, 105, 201})
	prepared := int64(0)
	for _, shard := range w.cluster.ShardNames() {
		client, err := w.cluster.Direct(shard)
		if err != nil {
			t.Fatal(err)
		}
		n, err := client.Database("local").Collection("oplog.rs").CountDocuments(t.Context(),
			bson.D{{Key: "o.prepare", Value: true}, {Key: "o.applyOps.ns", Value: "transactions.c"}})
		if err != nil {
			t.Fatal(err)
		}
		prepared += n
	}
	if prepared < 5 {
		t.Errorf("%d prepared parts of transactions, want 5 at least", prepared)
	}
}

// taken: statements are counted by kind, and clients are told.
func (w *world) taken(t *testing.T) {
	r, client := start(t, w.cluster.ConfigURI())
	c := client.Database("taken").Collection("c")
	insert(t, c, bson.D{{Key: "_id", Value: 1}})
	for _, cmd := range []bson.D{
		{{Key: "insert", Value: "c"},
			{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 2}}, bson.D{{Key: "_id", Value: 3}}}}},
		{{Key: "update", Value: "c"},
			{Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}},
				{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "a", Value: 1}}}}}, {Key: "multi", Value: true}}}}},
		{{Key: "delete", Value: "c"},
			{Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}}},
	} {
		command(t, c.Database(), cmd)
	}
	if have, want := r.Taken(), (router.Taken{Inserts: 3, Updates: 1, Deletes: 1}); have != want {
		t.Errorf("taken %+v, want %+v", have, want)
	}
	status := command(t, client.Database("admin"), bson.D{{Key: "serverStatus", Value: 1}}).Lookup("opcounters", "insert")
	if n, _ := status.AsInt64OK(); n != 3 {
		t.Errorf("serverStatus tells of %v inserts, want 3", status)
	}
}
