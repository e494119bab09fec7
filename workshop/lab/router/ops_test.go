package router_test

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// operations: what a client has under way is listed under its application's name by
// the router and by the shards, and can be ended there.
func (w *world) operations(t *testing.T) {
	c := w.spread(t, "operations", 10)
	sess, err := w.client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer sess.EndSession(t.Context())
	if err := sess.StartTransaction(); err != nil {
		t.Fatal(err)
	}
	ctx := mongo.NewSessionContext(t.Context(), sess)
	one, hit := bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}},
		bson.D{{Key: "$inc", Value: bson.D{{Key: "hit", Value: 1}}}}
	if _, err := c.UpdateOne(ctx, one, hit); err != nil {
		t.Fatal(err)
	}
	for _, local := range []bool{false, true} {
		app, err := mongo.Connect(options.Client().ApplyURI(w.uri).SetAppName("operations-app").SetRetryWrites(false))
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { // waits for the transaction
			_, err := app.Database("operations").Collection("c").UpdateOne(t.Context(), one, hit)
			ended <- err
		}()
		op := w.active(t, local, "operations-app")
		command(t, w.client.Database("admin"), bson.D{{Key: "killOp", Value: 1}, {Key: "op", Value: op}})
		if err := <-ended; err == nil {
			t.Errorf("local %v: an operation that was killed has ended well", local)
		}
		if err := app.Disconnect(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := sess.AbortTransaction(t.Context()); err != nil {
		t.Error(err)
	}
}

// active waits for an operation of an application and returns its id.
func (w *world) active(t *testing.T, local bool, app string) (id any) {
	t.Helper()
	pipeline := bson.A{bson.D{{Key: "$currentOp",
		Value: bson.D{{Key: "allUsers", Value: true}, {Key: "idleConnections", Value: true},
			{Key: "localOps", Value: local}}}},
		bson.D{{Key: "$match", Value: bson.D{{Key: "appName", Value: app}, {Key: "active", Value: true}}}}}
	for t.Context().Err() == nil {
		cur, err := w.client.Database("admin").Aggregate(t.Context(), pipeline)
		var all []bson.M
		if err == nil {
			err = cur.All(t.Context(), &all)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range all {
			if op["opid"] != nil {
				return op["opid"]
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("no such operation")
	return nil
}
