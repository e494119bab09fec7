package access

import (
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/replicate"
)

// sourceRoles and targetRoles are the built-in roles that docs/operations.md
// names.
func sourceRoles() bson.A {
	return bson.A{"readAnyDatabase", "clusterMonitor"}
}

func targetRoles() bson.A {
	return bson.A{"readWriteAnyDatabase", "restore", "clusterMonitor"}
}

func createUser(t *testing.T, c *driver.Client, name string, roles bson.A) account {
	t.Helper()
	a := account{name, "p@ss:w/rd% #1"}
	_ = c.Database("admin").RunCommand(t.Context(), bson.D{{Key: "dropUser", Value: name}}).Err()
	if err := c.Database("admin").RunCommand(t.Context(), bson.D{{Key: "createUser", Value: name}, {Key: "pwd", Value: a.password}, {Key: "roles", Value: roles}}).Err(); err != nil {
		t.Fatal(err)
	}
	return a
}

func without(roles bson.A, i int) bson.A {
	return append(append(bson.A{}, roles[:i]...), roles[i+1:]...)
}

// TestBuiltInRoles runs a whole job with the documented roles, and wants the
// precheck to refuse it when any one of them is taken away.
func TestBuiltInRoles(t *testing.T) {
	src := createUser(t, shared.sourceDB, "reader", sourceRoles()).uri(shared.source)
	dst := createUser(t, shared.targetDB, "writer", targetRoles()).uri(shared.target)
	log, err := job(t, src, dst)
	finished(t, log, err)
	refused := func(what, source, target string) {
		t.Helper()
		reset(t)
		if err := setup(t.Context(), shared.sourceDB); err != nil {
			t.Fatal(err)
		}
		j, err := replicate.Open(t.Context(), replicate.Spec{Source: source, Target: target, Mode: replicate.ModeAll, Until: "caught-up", Rules: rules(), OnExisting: replicate.ExistingFail})
		if err != nil {
			t.Fatalf("without %s: %v", what, err)
		}
		defer j.Close()
		err = j.Run(t.Context())
		var refused *replicate.PrecheckError
		switch {
		case err == nil:
			t.Errorf("role %s is not needed", what)
		case !errors.As(err, &refused) || !strings.Contains(err.Error(), "privileges"):
			t.Errorf("without %s the job ended with: %v", what, err)
		}
	}
	for i, role := range sourceRoles() {
		refused("source role "+role.(string), createUser(t, shared.sourceDB, "less", without(sourceRoles(), i)).uri(shared.source), dst)
	}
	// Enough for plain collections, not for system.js and time series.
	refused("target role restore", src, createUser(t, shared.targetDB, "less", bson.A{"readWriteAnyDatabase", "dbAdminAnyDatabase"}).uri(shared.target))
	for i, role := range targetRoles()[:2] { // without clusterMonitor there is a warning only
		refused("target role "+role.(string), src, createUser(t, shared.targetDB, "less", without(targetRoles(), i)).uri(shared.target))
	}
}
