package sharded

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// TestRefusedDirectly: shards that refuse direct commands, as those from 8.0 on do, fail the plan with the role that
// they need, before anything is written.
func TestRefusedDirectly(t *testing.T) {
	source := sharded.ForTest(t, sharded.Options{Options: lab.Options{Topology: "sharded:2x1"}, Routers: 1,
		RefuseDirect: true})
	target := lab.ForTest(t, lab.Options{})
	db := kit.Client(t, source.URI()).Database("db")
	_, err := db.Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}})
	if err != nil {
		t.Fatal(err)
	}
	j, err := job.Open(t.Context(), job.Spec{Source: source.URI(), Target: target.URI(), Mode: job.ModeAll})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	for what, err := range map[string]error{"plan": planned(t, j), "run": j.Run(t.Context())} {
		if err == nil || !strings.Contains(err.Error(), "connecting directly to a shard") ||
			!strings.Contains(mongo.HintOf(err), "directShardOperations") {
			t.Errorf("%s: %v, hint %q", what, err, mongo.HintOf(err))
		}
	}
	names, err := kit.Client(t, target.URI()).ListDatabaseNames(t.Context(),
		bson.D{{Key: "name", Value: bson.D{{Key: "$in", Value: bson.A{"db", mongo.StateDB}}}}})
	if err != nil || len(names) > 0 {
		t.Errorf("the target has %q, %v", names, err)
	}
}

func planned(t *testing.T, j *job.Job) error {
	t.Helper()
	plan, err := j.Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return plan.Checks.Err()
}
