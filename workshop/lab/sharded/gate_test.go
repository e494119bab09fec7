package sharded

import (
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// wantRefused wants the error with which a shard from 8.0 on refuses a direct command.
func wantRefused(t *testing.T, what, ns string, err error) {
	t.Helper()
	var e mongo.ServerError
	if !errors.As(err, &e) || !e.HasErrorCode(13) || !strings.Contains(err.Error(), "directly to a shard") ||
		!strings.Contains(err.Error(), "Namespace: "+ns) {
		t.Errorf("%s: %v", what, err)
	}
}

// Shards of several members refuse direct reads and writes, but not what routers, members and the lab send.
func TestRefuseDirect(t *testing.T) {
	topology := "sharded:2x1"
	if lab.InMatrix() {
		topology = "sharded:2x3"
	}
	c := ForTest(t, Options{Options: lab.Options{Topology: topology}, Routers: 1, RefuseDirect: true})
	routed := throughRouters(t, c.URI())
	must(t, c.CreateDatabase(t.Context(), "db", "s0"))
	must(t, c.ShardCollection(t.Context(), "db.c", Sharding{Key: key(1)}))
	for i := range 20 {
		_, err := routed.Database("db").Collection("c").InsertOne(t.Context(), key(i))
		must(t, err)
	}
	must(t, c.Split(t.Context(), "db.c", key(10)))
	must(t, c.MoveChunk(t.Context(), "db.c", key(10), "s1"))
	n, err := routed.Database("db").Collection("c").CountDocuments(t.Context(), bson.D{})
	if err != nil || n != 20 {
		t.Errorf("a router counts %d: %v", n, err)
	}
	if on := count(t, c, "s1", "db.c", bson.D{}); on != 10 {
		t.Errorf("the lab counts %d on a shard", on)
	}
	// Clients find the members by what the shard says of itself, and offer compression, which the gate does not read.
	direct := kit.Client(t, c.Shard("s0").URI(), options.Client().SetCompressors([]string{"zstd", "snappy"}))
	db, admin := direct.Database("db"), direct.Database("admin")
	wantRefused(t, "find", "db.c", db.Collection("c").FindOne(t.Context(), bson.D{}).Err())
	_, err = db.Collection("c").InsertOne(t.Context(), key(1))
	wantRefused(t, "insert", "db.c", err)
	_, err = db.Collection("c").Aggregate(t.Context(), mongo.Pipeline{})
	wantRefused(t, "aggregate", "db.c", err)
	_, err = direct.ListDatabaseNames(t.Context(), bson.D{})
	wantRefused(t, "listDatabases", "admin", err)
	wantRefused(t, "dbStats", "db", db.RunCommand(t.Context(), bson.D{{Key: "dbStats", Value: 1}}).Err())
	_, err = db.ListCollectionNames(t.Context(), bson.D{})
	wantRefused(t, "listCollections", "db", err)
	_, err = db.Collection("c").Watch(t.Context(), mongo.Pipeline{})
	wantRefused(t, "change stream", "db.c", err)
	must(t, direct.Database("local").Collection("oplog.rs").FindOne(t.Context(), bson.D{}).Err())
	for _, cmd := range []bson.D{
		{{Key: "serverStatus", Value: 1}}, {{Key: "replSetGetStatus", Value: 1}}, {{Key: "hello", Value: 1}},
		{{Key: "appendOplogNote", Value: 1}, {Key: "data", Value: bson.D{}}},
	} {
		must(t, admin.RunCommand(t.Context(), cmd).Err())
	}
	_, err = Start(t.Context(), Options{Options: lab.Options{TLS: true}, RefuseDirect: true})
	if err == nil {
		t.Error("a cluster with TLS starts whose gates cannot read")
	}
}
