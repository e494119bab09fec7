package job_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/state/deadletter"
)

// TestRetryOfAnotherCollection: after a job was finalized applications may give the name of
// a collection to another one. A dead letter is not written into that.
func TestRetryOfAnotherCollection(t *testing.T) {
	t.Parallel()
	c := follow(t, start(t), "retryname", job.ConflictSkip)
	c.remove(c.dst, 1)
	c.insert(c.dst, bson.D{{Key: "_id", Value: "theirs"}, {Key: "k", Value: 1}})
	c.set(c.src, 1, bson.D{{Key: "x", Value: 1}})
	c.caughtUp()
	c.oneLetter("open", "missing", c.on(c.src, 1))
	c.must(nil, c.j.Finalize(t.Context(), true))
	c.must(nil, <-c.ended)
	c.remove(c.dst, "theirs")
	rename := func(from, to string) {
		t.Helper()
		c.must(nil, c.s.targetC.Database("admin").RunCommand(t.Context(), bson.D{{Key: "renameCollection", Value: c.db + "." +
			from}, {Key: "to", Value: c.db + "." + to}}).Err())
	}
	target, err := mongo.Connect(t.Context(), c.spec.Target, mongo.Options{AppName: mongo.TargetApp})
	c.must(nil, err)
	defer target.Close()
	retry := func() string {
		t.Helper()
		var got []string
		c.must(nil, job.Hold(t.Context(), target, c.db, slog.New(slog.DiscardHandler),
			func(ctx context.Context, held *job.Stopped) error {
				return held.RetryLetters(ctx, func(_ deadletter.Letter, refused error) { got = append(got, fmt.Sprint(refused)) })
			}))
		return strings.Join(got, "; ")
	}
	rename("c", "moved")
	c.insert(c.dst, bson.D{{Key: "_id", Value: "another"}})
	for range 2 { // what is written again keeps what it knows
		if got := retry(); !strings.Contains(got, "another collection") {
			t.Errorf("tried with another collection: %s", got)
		}
	}
	if n, err := c.dst.CountDocuments(t.Context(), bson.D{}); err != nil || n != 1 {
		t.Errorf("%d documents, %v", n, err)
	}
	rename("c", "other")
	rename("moved", "c")
	if got := retry(); got != "<nil>" {
		t.Errorf("tried with its own: %s", got)
	}
	c.same(1)
}
