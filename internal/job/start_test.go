package job_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
)

// testStartAmidFailures: nothing of what a job does before its first phase ends
// it when a cut comes in between, and the sets are known by their ids.
func testStartAmidFailures(t *testing.T, s servers) {
	insert(t, s.srcDB, "amid", 10)
	spec := s.spec("amid")
	id := open(t, spec).ID()
	cut(t, s.srcDB, "millrace-source", 1, "replSetGetConfig")
	cut(t, s.targetC, "millrace-target", 1, "replSetGetConfig")
	j := open(t, spec)
	if j.ID() != id {
		t.Errorf("the job is %s, and %s after a cut", id, j.ID())
	}
	cut(t, s.srcDB, "millrace-source", 3, "find", "listDatabases")
	cut(t, s.targetC, "millrace-target", 5, "find", "dbStats")
	if plan, err := j.Plan(t.Context()); err != nil || plan.Checks.Failed() {
		t.Fatalf("%+v, %v", plan, err)
	}
	cut(t, s.targetC, "millrace-target", 5, "find", "insert", "update")
	if err := j.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, s.targetC, "amid"); n != 10 {
		t.Errorf("%d documents arrived", n)
	}
}

// cut has a server hang up on the next commands of a client.
func cut(t *testing.T, c *driver.Client, app string, times int, commands ...string) {
	t.Helper()
	err := c.Database("admin").RunCommand(t.Context(), bson.D{{Key: "configureFailPoint", Value: "failCommand"},
		{Key: "mode", Value: bson.D{{Key: "times", Value: times}}},
		{Key: "data", Value: bson.D{{Key: "failCommands", Value: commands}, {Key: "closeConnection", Value: true},
			{Key: "appName", Value: app}}}}).Err()
	if err != nil {
		t.Fatal(err)
	}
}
