package mongo_test

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
	"github.com/millrace/millrace/workshop/lab"
)

// TestConnectionAfterTimeout: a connection on which a reply is still to come is used no
// more, so that the reply is not taken for that of a later command.
func TestConnectionAfterTimeout(t *testing.T) {
	c := open(t, lab.ForTest(t, lab.Options{}))
	if _, err := c.Client.Database("d").Collection("c").InsertOne(t.Context(),
		bson.D{{Key: "_id", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	conn, err := c.Pool.Checkout(t.Context(), wire.Primary())
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := conn.Run(short, "d", bson.D{{Key: "find", Value: "c"},
		{Key: "filter", Value: bson.D{{Key: "$where", Value: "sleep(1000) || true"}}}}); err == nil {
		t.Fatal("the command was answered at once")
	}
	reply, err := conn.Run(t.Context(), "d", bson.D{{Key: "count", Value: "c"}})
	if mongo.Classify(err) != mongo.ClassRetry {
		t.Errorf("%s, %v", reply, err)
	}
	conn.Release()
	if conn, err = c.Pool.Checkout(t.Context(), wire.Primary()); err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if reply, err = conn.Run(t.Context(), "d", bson.D{{Key: "count", Value: "c"}}); err != nil ||
		bson.Raw(reply).Lookup("n").AsInt64() != 1 {
		t.Errorf("%s, %v", reply, err)
	}
}
