package router_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/router"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// details are things that clients rely on without thinking of them.
func (w *world) details(t *testing.T) {
	c := w.spread(t, "details", 300)
	t.Run("unacknowledged", func(t *testing.T) {
		fast := c.Clone(options.Collection().SetWriteConcern(writeconcern.Unacknowledged()))
		if _, err := fast.InsertOne(t.Context(), k(1000)); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool { return len(ks(t, c, k(1000))) == 1 })
	})
	t.Run("snapshot", func(t *testing.T) {
		if w.version == "4.4" {
			t.Skip("4.4 has snapshot reads in transactions only")
		}
		s, err := w.client.StartSession(options.Session().SetSnapshot(true))
		if err != nil {
			t.Fatal(err)
		}
		defer s.EndSession(t.Context())
		ctx := mongo.NewSessionContext(t.Context(), s)
		before := len(ksIn(t, ctx, c, bson.D{}))
		insert(t, c, k(1001))
		equal(t, "later in the snapshot", len(ksIn(t, ctx, c, bson.D{})), before)
	})
	t.Run("snapshot transaction", func(t *testing.T) {
		s, err := w.client.StartSession()
		if err != nil {
			t.Fatal(err)
		}
		defer s.EndSession(t.Context())
		ctx := mongo.NewSessionContext(t.Context(), s)
		if err := s.StartTransaction(options.Transaction().SetReadConcern(readconcern.Snapshot())); err != nil {
			t.Fatal(err)
		}
		n := len(ksIn(t, ctx, c, k(5)))
		insert(t, c, k(150))
		equal(t, "of another shard, later", fmt.Sprint(n, ksIn(t, ctx, c, k(150))), "1 [150]")
		if err := s.CommitTransaction(ctx); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("zones", func(t *testing.T) {
		admin := w.client.Database("admin")
		shard := w.cluster.ShardNames()[0]
		command(t, admin, bson.D{{Key: "addShardToZone", Value: shard}, {Key: "zone", Value: "A"}})
		for _, zone := range []any{"A", nil} {
			command(t, admin, bson.D{{Key: "updateZoneKeyRange", Value: "details.c"}, {Key: "min", Value: k(10)},
				{Key: "max", Value: k(20)}, {Key: "zone", Value: zone}})
		}
		command(t, admin, bson.D{{Key: "removeShardFromZone", Value: shard}, {Key: "zone", Value: "A"}})
	})
	t.Run("hashed", func(t *testing.T) { w.hashed(t) })
	t.Run("time series", func(t *testing.T) { w.timeSeries(t) })
	t.Run("large", func(t *testing.T) {
		var docs []any
		for i := range 40 {
			docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i * 7},
				{Key: "s", Value: strings.Repeat("x", 1<<20)}})
		}
		big := c.Database().Collection("big")
		if _, err := big.InsertMany(t.Context(), docs); err != nil {
			t.Fatal(err)
		}
		equal(t, "large documents", len(ks(t, big, bson.D{}, options.Find().SetSort(k(1)))), 40)
	})
	err := c.FindOne(t.Context(), bson.D{{Key: "$where", Value: "sleep(200) || true"}},
		options.FindOne().SetHint(bson.D{{Key: "$natural", Value: 1}})).Err()
	if err != nil {
		t.Error(err)
	}
}

// hashed has a compound key with a hashed part and documents of many types.
func (w *world) hashed(t *testing.T) {
	admin := w.client.Database("admin")
	command(t, admin, bson.D{{Key: "shardCollection", Value: "details.hashed"},
		{Key: "key", Value: bson.D{{Key: "h", Value: "hashed"}, {Key: "a.b", Value: 1}}},
		{Key: "numInitialChunks", Value: 6}})
	c := w.client.Database("details").Collection("hashed")
	n := 0
	for _, v := range samples() {
		if fmt.Sprintf("%T", v) == "bson.MinKey" || fmt.Sprintf("%T", v) == "bson.MaxKey" {
			continue
		}
		doc := bson.D{{Key: "_id", Value: n}, {Key: "h", Value: v}, {Key: "a", Value: bson.D{{Key: "b", Value: n}}}}
		insert(t, c, doc)
		filter := bson.D{{Key: "h", Value: bson.D{{Key: "$eq", Value: v}}}, {Key: "a.b", Value: n}}
		if _, ok := v.(bson.Regex); ok {
			filter = filter[1:]
		}
		got, err := c.CountDocuments(t.Context(), filter)
		if err != nil || got != 1 {
			t.Errorf("found %d with h %v (%T): %v", got, v, v, err)
		}
		n++
	}
	equal(t, "hashed", len(ks(t, c, bson.D{})), n)
}

// timeSeries are unsharded.
func (w *world) timeSeries(t *testing.T) {
	if w.version == "4.4" {
		t.Skip("4.4 has none")
	}
	db := w.client.Database("details")
	command(t, db, bson.D{{Key: "create", Value: "ts"},
		{Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}}}})
	for i := range 5 {
		insert(t, db.Collection("ts"), bson.D{{Key: "t", Value: bson.DateTime(i)}, {Key: "k", Value: i}})
	}
	equal(t, "time series", ks(t, db.Collection("ts"), bson.D{}), upTo(0, 5))
}

// shards come and go.
func (w *world) shards(t *testing.T) {
	c := w.spread(t, "shards", 300)
	inserts := mongo.Pipeline{{{Key: "$match", Value: bson.D{{Key: "operationType", Value: "insert"}}}}}
	cs, err := w.client.Watch(t.Context(), inserts, startAt(now(t, w.client)))
	next := follow(t, cs, err)
	insert(t, c, k(-1))
	equal(t, "event", next().NS.DB, "shards")
	name, err := w.cluster.AddShard(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Of a database whose primary is the new shard, of which no migration tells.
	if err := w.cluster.CreateDatabase(t.Context(), "young", name); err != nil {
		t.Fatal(err)
	}
	insert(t, w.client.Database("young").Collection("c"), k(1))
	equal(t, "event of a new shard", next().NS.DB, "young")
	if err := w.client.Database("young").Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	command(t, w.client.Database("admin"), bson.D{{Key: "moveChunk", Value: "shards.c"}, {Key: "find", Value: k(0)},
		{Key: "to", Value: name}})
	insert(t, c, k(2))
	equal(t, "event after a migration", next().NS.DB, "shards")
	if _, err := c.DeleteMany(t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$type", Value: "objectId"}}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.UpdateMany(t.Context(), bson.D{}, set("x", 1)); err != nil {
		t.Fatal(err)
	}
	equal(t, "on the new shard", w.on(t, name, c, bson.D{{Key: "x", Value: 1}}), 100)
	if err := w.cluster.RemoveShard(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	equal(t, "after its removal", len(ks(t, c, bson.D{})), 300)
	insert(t, c, k(3))
	equal(t, "event after its removal", next().NS.DB, "shards")
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come")
		}
	}
}

// TestAuth has users, whom the config servers know.
func TestAuth(t *testing.T) {
	c := sharded.ForTest(t, sharded.Options{Options: lab.Options{
		Topology: "sharded:2x1", Auth: true, SetParameters: map[string]string{"orphanCleanupDelaySecs": "0"},
	}})
	r, anonymous := start(t, c.ConfigURI())
	err := anonymous.Database("a").Collection("c").FindOne(t.Context(), bson.D{}).Err()
	if !hasCode(err, 13) {
		t.Errorf("without a login: %v", err)
	}
	login := options.Client().ApplyURI(c.Config().URI()).Auth
	client, err := mongo.Connect(options.Client().ApplyURI(r.URI()).SetAuth(*login))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Disconnect(context.Background()) }()
	w := &world{cluster: c, client: client, uri: r.URI(), version: "6.0"}
	docs := w.spread(t, "auth", 0)
	for i := range 300 {
		insert(t, docs, k(i))
	}
	equal(t, "documents", len(ks(t, docs, bson.D{}, options.Find().SetBatchSize(20))), 300)
	s, err := client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.EndSession(t.Context())
	_, err = s.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
		return docs.InsertMany(ctx, []any{k(1000), k(-1)})
	})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "transaction", ksIn(t, mongo.NewSessionContext(t.Context(), s), docs,
		bson.D{{Key: "k", Value: bson.D{{Key: "$in", Value: bson.A{1000, -1}}}}}, options.Find().SetSort(k(1))),
		[]int{-1, 1000})
	status := command(t, client.Database("admin"), bson.D{{Key: "connectionStatus", Value: 1}})
	equal(t, "user", status.Lookup("authInfo", "authenticatedUsers", "0", "user").StringValue(), login.Username)
	login.Password = "wrong"
	wrong, err := mongo.Connect(options.Client().ApplyURI(r.URI()).SetAuth(*login))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = wrong.Disconnect(context.Background()) }()
	if err := wrong.Ping(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "Authentication failed") {
		t.Errorf("with a wrong password: %v", err)
	}
}

func hasCode(err error, code int) bool {
	e, ok := errors.AsType[mongo.CommandError](err)
	return ok && e.HasErrorCode(code)
}

// TestClose leaves nothing behind.
func TestClose(t *testing.T) {
	c := sharded.ForTest(t, sharded.Options{Options: lab.Options{Topology: "sharded:1x1"}})
	before := runtime.NumGoroutine()
	r, err := router.Start(t.Context(), router.Options{ConfigURI: c.ConfigURI()})
	if err != nil {
		t.Fatal(err)
	}
	client := kit.Client(t, r.URI())
	insert(t, client.Database("a").Collection("c"), k(1))
	for range 2 {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := client.Disconnect(t.Context()); err != nil {
		t.Error(err)
	}
	eventually(t, func() bool { return runtime.NumGoroutine() <= before })
}
