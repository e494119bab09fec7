package job_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/workshop/lab"
)

// TestDocumentsBeyondTheApplyBuffer: changes that are each larger than all room for
// changes pass one by one, among small ones, with one partition as with many.
func TestDocumentsBeyondTheApplyBuffer(t *testing.T) {
	lab.Nightly(t)
	s := start(t)
	for _, partitions := range []int{1, 16} {
		t.Run(fmt.Sprint(partitions, " partitions"), func(t *testing.T) {
			db := fmt.Sprint("beyond", partitions)
			if err := s.srcDB.Database(db).CreateCollection(t.Context(), "c"); err != nil {
				t.Fatal(err)
			}
			spec := s.spec(db)
			spec.Mode, spec.StartAt = job.ModeIncremental, lastOp(t, s.srcDB).String()
			spec.OnExisting = job.ExistingMerge
			spec.ApplyBuffer, spec.Partitions = job.LeastApplyBuffer, partitions
			writeLarge(t, s.srcDB.Database(db).Collection("c"))
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			if err := open(t, spec).Run(ctx); err != nil {
				t.Fatal(err)
			}
			same(t, s, db)
		})
	}
}

// writeLarge makes documents and changes of up to 16 MB, between them many small
// ones, some of them on the same documents.
func writeLarge(t *testing.T, c *driver.Collection) {
	t.Helper()
	ctx := t.Context()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const whole = 16<<20 - 60 // with its fields, the largest document that a server takes
	large := func(letter string, n int) string { return strings.Repeat(letter, n) }
	small := func(round int) {
		t.Helper()
		var all []any
		for i := range 300 {
			all = append(all, bson.D{{Key: "_id", Value: 1000*round + i}, {Key: "x", Value: large("s", 200)}})
		}
		_, err := c.InsertMany(ctx, all)
		ok(err)
		_, err = c.UpdateMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: 1000*round + 200}}}},
			bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: round}}}})
		ok(err)
	}
	set := func(id any, field string, value any) {
		t.Helper()
		_, err := c.UpdateByID(ctx, id, bson.D{{Key: "$set", Value: bson.D{{Key: field, Value: value}}}})
		ok(err)
	}
	for i := range 2 {
		_, err := c.InsertOne(ctx, bson.D{{Key: "_id", Value: fmt.Sprint("large", i)}, {Key: "x", Value: large("a", whole)}})
		ok(err)
		small(i + 1)
	}
	for i := range 2 {
		set(fmt.Sprint("large", i), "x", large("b", whole-100)) // $v:2 with as much
		set(fmt.Sprint("large", i), "n", i)
		set(fmt.Sprint("large", i), "x", large("c", whole-100))
		small(i + 3)
	}
	ok(c.Database().Client().UseSession(ctx, func(ctx context.Context) error {
		_, err := driver.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) {
			for i := range 3 {
				if _, err := c.InsertOne(ctx, bson.D{{Key: "_id", Value: fmt.Sprint("txn", i)},
					{Key: "x", Value: large("t", 9<<20)}}); err != nil {
					return nil, err
				}
			}
			return nil, nil
		})
		return err
	}))
	_, err := c.ReplaceOne(ctx, bson.D{{Key: "_id", Value: "large0"}}, bson.D{{Key: "x", Value: large("d", whole)}})
	ok(err)
	_, err = c.DeleteOne(ctx, bson.D{{Key: "_id", Value: "large1"}})
	ok(err)
	small(5)
}
