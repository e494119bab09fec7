package mongo_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/workshop/lab"
)

func open(t *testing.T, l *lab.Cluster) *mongo.Cluster {
	return dial.Cluster(t, l.URI(), mongo.Options{AppName: mongo.TargetApp})
}

// TestEndConnections: a command of an earlier attempt that is under way has no
// effect after the next one has ended its connections; others are left alone.
func TestEndConnections(t *testing.T) {
	others := mongo.OtherRuns("job", "b", 1)
	mine := mongo.RunName("job", "b", 1)
	t.Run("first", func(t *testing.T) {
		endConnections(t, func(next *mongo.Cluster, waiting func([]mongo.Connection), then bson.D) (bson.Raw, error) {
			return next.EndConnectionsFirst(t.Context(), mine, others, waiting, then)
		})
	})
	t.Run("later", func(t *testing.T) {
		endConnections(t, func(next *mongo.Cluster, waiting func([]mongo.Connection), then bson.D) (bson.Raw, error) {
			if err := next.RenewConnections(t.Context(), mine); err != nil {
				return nil, err
			}
			return next.EndConnections(t.Context(), others, waiting, then)
		})
	})
}

func endConnections(t *testing.T,
	end func(next *mongo.Cluster, waiting func([]mongo.Connection), then bson.D) (bson.Raw, error)) {
	l := lab.ForTest(t, lab.Options{})
	earlier, other, next := open(t, l), open(t, l), open(t, l)
	for c, name := range map[*mongo.Cluster]string{earlier: mongo.RunName("job", "a", 3),
		other: mongo.RunName("another job", "a", 3)} {
		if err := c.RenewConnections(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	spare, err := other.Pool.Checkout(t.Context(), wire.Primary())
	if err != nil {
		t.Fatal(err)
	}
	defer spare.Release()
	if _, err := next.Client.Database("d").Collection("c").InsertOne(t.Context(),
		bson.D{{Key: "_id", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	slow := make(chan error, 1)
	go func() { // it would take minutes, and end in an update
		_, err := earlier.Write(context.Background(), "d", bson.D{{Key: "update", Value: "c"},
			{Key: "updates", Value: bson.A{bson.D{
				{Key: "q", Value: bson.D{{Key: "$where", Value: "sleep(120000) || true"}}},
				{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "late", Value: true}}}}}}}}})
		earlier.Close() // as a process that ends over it
		slow <- err
	}()
	await(t, other, mongo.OtherRuns("job", "b", 1))
	reply, err := end(next, func([]mongo.Connection) {},
		bson.D{{Key: "insert", Value: "jobs"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: "job"}}}},
			{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}})
	if err != nil || wire.ParseWriteResult([]byte(reply)).Term < 1 {
		t.Fatalf("%s, %v", reply, err)
	}
	if err := <-slow; err == nil {
		t.Error("the command of the earlier attempt was carried out")
	}
	if n, err := next.Client.Database("d").Collection("c").CountDocuments(t.Context(),
		bson.D{{Key: "late", Value: true}}); n != 0 || err != nil {
		t.Errorf("%d late changes, %v", n, err)
	}
	conn, err := next.Pool.Checkout(t.Context(), wire.Primary())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if reply, err := conn.Run(t.Context(), "admin", bson.D{{Key: "currentOp", Value: 1},
		{Key: "appName", Value: mongo.RunName("job", "b", 1)}, {Key: "$ownOps", Value: true}}); err != nil ||
		!bytes.Contains(reply, []byte(mongo.RunName("job", "b", 1))) {
		t.Errorf("later connections do not have the run's name: %v", err)
	}
	if _, err := spare.Run(t.Context(), "admin", bson.D{{Key: "ping", Value: 1}}); err != nil {
		t.Errorf("another job's connection: %v", err)
	}
}

// TestEndConnectionsEndsTransactions: a transaction that an earlier attempt had open
// when its connection ended is ended, not waited for.
func TestEndConnectionsEndsTransactions(t *testing.T) {
	l := lab.ForTest(t, lab.Options{SetParameters: map[string]string{"transactionLifetimeLimitSeconds": "3600"}})
	earlier, next := open(t, l), open(t, l)
	if err := earlier.RenewConnections(t.Context(), mongo.RunName("job", "a", 3)); err != nil {
		t.Fatal(err)
	}
	insert := bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}}
	session := bson.D{{Key: "id", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: []byte("0123456789abcdef")}}}
	if _, err := earlier.Write(t.Context(), "d", append(slices.Clone(insert),
		bson.D{{Key: "lsid", Value: session}, {Key: "txnNumber", Value: int64(1)},
			{Key: "startTransaction", Value: true}, {Key: "autocommit", Value: false}}...)); err != nil {
		t.Fatal(err)
	}
	earlier.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := next.EndConnections(ctx, mongo.OtherRuns("job", "b", 1), func([]mongo.Connection) {},
		bson.D{{Key: "isMaster", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	if _, err := next.Write(ctx, "d", insert); err != nil {
		t.Error(err)
	}
}

// await waits until the server has a connection that matches.
func await(t *testing.T, c *mongo.Cluster, match func(string) bool) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		ctx, cancel := context.WithCancelCause(t.Context())
		found := errors.New("found")
		short := time.AfterFunc(2*time.Second, func() { cancel(nil) })
		_, err := c.EndConnections(ctx, func(name string) bool {
			if match(name) {
				cancel(found)
			}
			return false // it is looked for, not ended
		}, func([]mongo.Connection) {}, bson.D{{Key: "ping", Value: 1}})
		short.Stop()
		if errors.Is(context.Cause(ctx), found) {
			return
		}
		if err != nil && ctx.Err() == nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the command did not begin")
}

// TestNewest: the position is not before a write that was acknowledged, on a
// namespace that does not exist, too.
func TestNewest(t *testing.T) {
	c := open(t, lab.ForTest(t, lab.Options{}))
	for _, ns := range []string{"none.none", "d.c"} {
		coll := c.Client.Database("d").Collection("c")
		if _, err := coll.InsertOne(t.Context(), bson.D{}); err != nil {
			t.Fatal(err)
		}
		before, err := c.Positions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		at, err := c.Newest(t.Context(), ns)
		if err != nil || at.Before(before.Last) {
			t.Errorf("%s: %s, %v, after %s", ns, at, err, before.Last)
		}
	}
	if name := mongo.RunName(strings.Repeat("long ", 100), "0123456789abcdef", 1<<40); len(name) > 128 {
		t.Errorf("a name of %d bytes", len(name))
	}
}

// TestDocuments: all that a command lists, also if it is more than a reply, and no cursor is left.
func TestDocuments(t *testing.T) {
	c := open(t, lab.ForTest(t, lab.Options{}))
	find := bson.D{{Key: "find", Value: "c"}, {Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}}}
	have := 0
	for _, n := range []int{0, 1, 100, 300} {
		for ; have < n; have++ {
			if _, err := c.Client.Database("d").Collection("c").InsertOne(t.Context(),
				bson.D{{Key: "_id", Value: have}}); err != nil {
				t.Fatal(err)
			}
		}
		docs, err := c.Documents(t.Context(), "d", find)
		if err != nil || len(docs) != n {
			t.Fatalf("%d documents of %d: %v", len(docs), n, err)
		}
		for i, doc := range docs {
			if id, _ := doc.Lookup("_id").AsInt64OK(); id != int64(i) {
				t.Errorf("document %d of %d is %s", i, n, doc)
			}
		}
	}
	left, err := c.Documents(t.Context(), "admin", bson.D{{Key: "aggregate", Value: 1}, {Key: "cursor", Value: bson.D{}},
		{Key: "pipeline", Value: bson.A{bson.D{{Key: "$currentOp", Value: bson.D{{Key: "idleCursors", Value: true}}}},
			bson.D{{Key: "$match", Value: bson.D{{Key: "type", Value: "idleCursor"}}}}}}})
	if err != nil || len(left) != 0 {
		t.Errorf("%d cursors are open: %v", len(left), err)
	}
	if _, err := c.Documents(t.Context(), "d", bson.D{{Key: "find", Value: "c"}, {Key: "nothing", Value: 1}}); err == nil {
		t.Error("no error of an unknown field")
	}
}
