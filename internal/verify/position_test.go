package verify

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/workshop/lab"
)

// slowCommit is a server whose majority position follows its writes late, as a
// busy one's does.
func slowCommit(t *testing.T, version string) *mongo.Cluster {
	l := lab.ForTest(t, lab.Options{Version: version, Args: []string{"--journalCommitInterval", "500"}})
	return dial.Cluster(t, l.URI(), mongo.Options{})
}

// writeOne inserts a document with a write concern of its own.
func writeOne(t *testing.T, c *mongo.Cluster, ns string, id int, concern any) {
	t.Helper()
	db, coll := mongo.SplitNS(ns)
	if _, err := c.Command(t.Context(), db, bson.D{{Key: "insert", Value: coll},
		{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: concern}}}}); err != nil {
		t.Fatal(err)
	}
}

// TestSeesWhatWasAcknowledged: what either side acknowledged before the
// comparison began is compared, although it is not majority-committed yet.
func TestSeesWhatWasAcknowledged(t *testing.T) {
	for _, version := range []string{"4.2", "6.0"} {
		t.Run(version, func(t *testing.T) {
			src, dst := slowCommit(t, version), slowCommit(t, version)
			b := newBed(t, src, dst)
			b.create()
			for i := range 4 {
				if i%2 == 0 { // the source is late, else the target
					writeOne(t, dst, b.pair.Target, i, "majority")
					writeOne(t, src, b.pair.Source, i, 1)
				} else {
					writeOne(t, src, b.pair.Source, i, "majority")
					writeOne(t, dst, b.pair.Target, i, 1)
				}
				r, err := New(src, dst, Options{}).Run(t.Context(), []Pair{b.pair})
				if err != nil {
					t.Fatal(err)
				}
				if r.Count > 0 {
					t.Errorf("document %d: %+v", i, r.Differences)
				}
			}
		})
	}
}

// TestRecheckSeesWhatWasAcknowledged: the same for what comes while the
// comparison goes on.
func TestRecheckSeesWhatWasAcknowledged(t *testing.T) {
	src, dst := slowCommit(t, "4.2"), slowCommit(t, "6.0")
	b := newBed(t, src, dst)
	b.create()
	writeOne(t, src, b.pair.Source, 1, "majority")
	e := New(src, dst, Options{Online: true, Recheck: RecheckOptions{Every: 50 * time.Millisecond,
		Quiet: 150 * time.Millisecond}})
	done := make(chan *Report, 1)
	go func() {
		r, err := e.Run(t.Context(), []Pair{b.pair})
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	for e.Stats().Waiting == 0 {
		time.Sleep(time.Millisecond)
	}
	writeOne(t, dst, b.pair.Target, 1, 1)
	if r := <-done; r != nil && r.Count > 0 {
		t.Errorf("%+v", r.Differences)
	}
}
