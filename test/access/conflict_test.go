package access

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/wire"
)

// TestConflictsWithLeastPrivileges: finding, removing and keeping what is in
// the way needs no more than the documented privileges, and so does going on
// after another process.
func TestConflictsWithLeastPrivileges(t *testing.T) {
	reset(t)
	unique := driver.IndexModel{Keys: bson.D{{Key: "k", Value: 1}}, Options: options.Index().SetUnique(true)}
	src, dst := shared.sourceDB.Database("acc_conflict").Collection("c"), shared.targetDB.Database("acc_conflict").Collection("c")
	for _, c := range []*driver.Collection{src, dst} {
		if _, err := c.Indexes().CreateOne(t.Context(), unique); err != nil {
			t.Fatal(err)
		}
	}
	insert := func(c *driver.Collection, id any, k int) {
		t.Helper()
		if _, err := c.InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}, {Key: "k", Value: k}}); err != nil {
			t.Fatal(err)
		}
	}
	insert(src, 1, 1)
	insert(dst, "theirs", 1)
	var log bytes.Buffer
	s := spec(sourceSide().userWith(t, "leastReader", documented(t, "millraceSource")), targetSide().userWith(t, "leastWriter", documented(t, "millraceTarget")), &log)
	s.Rules, s.OnExisting, s.Job = transform.Config{Include: []string{"acc_conflict.*"}}, job.ExistingMerge, "leastConflict"
	for i, policy := range []job.OnConflict{job.ConflictSkip, job.ConflictOverwrite} {
		s.OnConflict, s.Until = policy, "never"
		if policy == job.ConflictOverwrite {
			s.Until = "caught-up"
		}
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
		j, err := job.Open(ctx, s)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- j.Run(ctx) }()
		for s.Until == "never" && j.Status().Conflicts.Open != 1 && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		if s.Until == "never" {
			cancel()
		}
		if err := <-done; err != nil && i == 1 {
			t.Fatalf("%v\n%s", err, log.String())
		}
		cancel()
		j.Close()
	}
	if n, err := dst.CountDocuments(t.Context(), bson.D{{Key: "_id", Value: 1}}); err != nil || n != 1 {
		t.Errorf("%d documents, %v\n%s", n, err, log.String())
	}
	if strings.Contains(log.String(), "may hold up writes") {
		t.Error(log.String())
	}
}

// TestEndingTransactions: a transaction that a process left open is ended by
// another one of the same user without any privilege for that.
func TestEndingTransactions(t *testing.T) {
	reset(t)
	uri := targetSide().userWith(t, "leastWriter", documented(t, "millraceTarget"))
	open := func() *mongo.Cluster {
		c, err := mongo.Connect(t.Context(), uri, mongo.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	dead, next := open(), open()
	if _, err := next.Client.Database("acc").Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	txn, err := dead.NewTransactions()
	if err != nil {
		t.Fatal(err)
	}
	held, hold, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	again := errors.New("attempted again")
	attempts := 0
	change := bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}
	go func() {
		ended <- txn.Run(t.Context(), func(ctx context.Context) error {
			if attempts++; attempts > 1 {
				return again
			}
			_, err := dead.Client.Database("acc").Collection("c").UpdateOne(ctx, bson.D{{Key: "_id", Value: 1}}, change)
			close(held)
			<-hold
			return err
		})
	}()
	<-held
	if err := next.KillSession(t.Context(), txn.SessionID()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	if _, err := next.Client.Database("acc").Collection("c").UpdateOne(ctx, bson.D{{Key: "_id", Value: 1}}, change); err != nil {
		t.Errorf("the document is still held: %v", err)
	}
	close(hold)
	if err := <-ended; !errors.Is(err, again) {
		t.Errorf("the transaction was not ended: %v", err)
	}

	// The same in a session of its batches, which the driver knows nothing of.
	conn, err := dead.Pool.Checkout(t.Context(), wire.Primary())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	begun := bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "u", Value: change}}}},
		{Key: "lsid", Value: txn.Batch(3)}, {Key: "txnNumber", Value: txn.Number()}, {Key: "startTransaction", Value: true}, {Key: "autocommit", Value: false}}
	if _, err := conn.Run(t.Context(), "acc", begun); err != nil {
		t.Fatal(err)
	}
	if err := next.KillSession(t.Context(), txn.SessionID()); err != nil {
		t.Error(err)
	}
	if _, err := next.Client.Database("acc").Collection("c").UpdateOne(ctx, bson.D{{Key: "_id", Value: 1}}, change); err != nil {
		t.Errorf("the document is still held: %v", err)
	}
}
