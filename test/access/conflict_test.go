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
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/wire"
	"github.com/millrace/millrace/test/dial"
)

// inTheWay gives both sides a collection with a unique index on k, whose key 1 the
// source's document 1 has, and a document of somebody else on the target. The spec
// is of a job by users with the documented privileges.
func inTheWay(t *testing.T, db string, log *bytes.Buffer) (target *driver.Collection, s job.Spec) {
	t.Helper()
	reset(t)
	unique := driver.IndexModel{Keys: bson.D{{Key: "k", Value: 1}}, Options: options.Index().SetUnique(true)}
	target = shared.targetDB.Database(db).Collection("c")
	for c, id := range map[*driver.Collection]any{shared.sourceDB.Database(db).Collection("c"): 1, target: "theirs"} {
		if _, err := c.Indexes().CreateOne(t.Context(), unique); err != nil {
			t.Fatal(err)
		}
		if _, err := c.InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}, {Key: "k", Value: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	s = spec(sourceSide().userWith(t, "leastReader", documented(t, "millraceSource")),
		targetSide().userWith(t, "leastWriter", documented(t, "millraceTarget")), log)
	s.Rules, s.OnExisting, s.Job = transform.Config{Include: []string{db + ".*"}}, job.ExistingMerge, db
	return target, s
}

// arrived wants the source's document on the target.
func arrived(t *testing.T, target *driver.Collection, log *bytes.Buffer) {
	t.Helper()
	if n, err := target.CountDocuments(t.Context(), bson.D{{Key: "_id", Value: 1}}); err != nil || n != 1 {
		t.Errorf("%d documents, %v\n%s", n, err, log)
	}
	if strings.Contains(log.String(), "may hold up writes") {
		t.Error(log)
	}
}

// TestConflictsWithLeastPrivileges: finding, removing and keeping what is in
// the way needs no more than the documented privileges, and so does going on
// after another process.
func TestConflictsWithLeastPrivileges(t *testing.T) {
	var log bytes.Buffer
	dst, s := inTheWay(t, "acc_conflict", &log)
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
	arrived(t, dst, &log)
}

// TestStoppedWithLeastPrivileges: so does what is done with a job that no process
// runs: the letters of a finalized one are tried again, and the job is dropped.
func TestStoppedWithLeastPrivileges(t *testing.T) {
	var log bytes.Buffer
	dst, s := inTheWay(t, "acc_stopped", &log)
	s.OnConflict, s.Until = job.ConflictSkip, "caught-up"
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v\n%s", err, log.String())
		}
	}
	j, err := job.Open(ctx, s)
	must(err)
	must(j.Run(ctx))
	j.Close()
	_, err = dst.DeleteOne(ctx, bson.D{{Key: "_id", Value: "theirs"}})
	must(err)
	c, err := mongo.Connect(ctx, s.Target, mongo.Options{AppName: mongo.TargetApp})
	must(err)
	defer c.Close()
	must(job.Hold(ctx, c, s.Job, s.Log, func(ctx context.Context, held *job.Stopped) error {
		return held.RetryLetters(ctx, func(_ deadletter.Letter, refused error) {
			if refused != nil {
				t.Error(refused)
			}
		})
	}))
	arrived(t, dst, &log)
	must(job.Hold(ctx, c, s.Job, s.Log, func(ctx context.Context, held *job.Stopped) error { return held.Drop(ctx) }))
	for _, coll := range []string{"jobs", "deadletters"} {
		if n, err := shared.targetDB.Database(mongo.StateDB).Collection(coll).CountDocuments(ctx, bson.D{}); err != nil ||
			n != 0 {
			t.Errorf("%d documents in %s, %v", n, coll, err)
		}
	}
}

// TestEndingTransactions: a transaction that a process left open is ended by
// another one of the same user without any privilege for that.
func TestEndingTransactions(t *testing.T) {
	reset(t)
	uri := targetSide().userWith(t, "leastWriter", documented(t, "millraceTarget"))
	open := func() *mongo.Cluster {
		c := dial.Cluster(t, uri, mongo.Options{})
		return c
	}
	dead, next := open(), open()
	if _, err := next.Client.Database("acc").Collection("c").
		InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}}); err != nil {
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
	if _, err := next.Client.Database("acc").Collection("c").
		UpdateOne(ctx, bson.D{{Key: "_id", Value: 1}}, change); err != nil {
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
	begun := bson.D{{Key: "update", Value: "c"},
		{Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "u", Value: change}}}},
		{Key: "lsid", Value: txn.Batch(3)}, {Key: "txnNumber", Value: txn.Number()}, {Key: "startTransaction", Value: true},
		{Key: "autocommit", Value: false}}
	if _, err := conn.Run(t.Context(), "acc", begun); err != nil {
		t.Fatal(err)
	}
	if err := next.KillSession(t.Context(), txn.SessionID()); err != nil {
		t.Error(err)
	}
	if _, err := next.Client.Database("acc").Collection("c").
		UpdateOne(ctx, bson.D{{Key: "_id", Value: 1}}, change); err != nil {
		t.Errorf("the document is still held: %v", err)
	}
}
