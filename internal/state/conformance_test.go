package state_test

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/test/statetest"
	"github.com/millrace/millrace/workshop/lab"
)

// TestConformance: the store in MongoDB keeps what any store promises.
func TestConformance(t *testing.T) {
	for _, version := range lab.Versions("4.2", "4.4", "5.0") {
		t.Run(version, func(t *testing.T) { testConformance(t, version) })
	}
}

func testConformance(t *testing.T, version string) {
	l := lab.ForTest(t, lab.Options{Version: version, Topology: "rs:2", TestCommands: true})
	c := dial.Cluster(t, l.URI(), mongo.Options{})
	statetest.Run(t, statetest.Setup{
		Open: func(job, run string) state.Store {
			return state.Open(c, state.Options{Job: job, Run: run, Write: "majority",
				EndOthers: func(ctx context.Context, _ int64, then bson.D) (bson.Raw, error) {
					return c.Command(ctx, mongo.StateDB, then)
				}})
		},
		SetOwner: func(job string, o state.Owner) {
			if _, err := c.Client.Database(mongo.StateDB).Collection("jobs").UpdateByID(t.Context(), job,
				bson.D{{Key: "$set", Value: bson.D{{Key: "owner", Value: o}}}}); err != nil {
				t.Fatal(err)
			}
		},
		Hold: func() func() { return hold(t, l, c) },
	})
}

// hold stops the replication to the secondary, so that nothing reaches a majority.
func hold(t *testing.T, l *lab.Cluster, c *mongo.Cluster) (release func()) {
	t.Helper()
	primary, err := l.Primary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	secondary, err := driver.Connect(options.Client().ApplyURI("mongodb://" + l.Members()[1-primary].Host() +
		"/?directConnection=true"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = secondary.Disconnect(context.Background()) })
	replicate := func(mode string) {
		err := secondary.Database("admin").RunCommand(t.Context(),
			bson.D{{Key: "configureFailPoint", Value: "stopReplProducer"}, {Key: "mode", Value: mode}}).Err()
		if err != nil {
			t.Fatal(err)
		}
	}
	replicate("alwaysOn")
	for { // it stops after what it is just fetching
		if _, err := c.Command(t.Context(), "admin", bson.D{{Key: "appendOplogNote", Value: 1},
			{Key: "data", Value: bson.D{}}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: 1}}}}); err != nil {
			t.Fatal(err)
		}
		p, err := c.Positions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond)
		if q, err := c.Positions(t.Context()); err == nil && q.Majority == p.Majority && q.Majority.Before(q.Last) {
			return func() { replicate("off") }
		}
	}
}
