package access

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/verify"
	"github.com/millrace/millrace/test/kit"
)

// logsIn reports whether a user of database acc can read it with a password.
func (s side) logsIn(t *testing.T, user, password string) bool {
	t.Helper()
	c, err := driver.Connect(options.Client().ApplyURI(s.cluster.URI()).
		SetAuth(options.Credential{Username: user, Password: password, AuthSource: "acc"}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Disconnect(context.Background()) }()
	return c.Database("acc").RunCommand(t.Context(), bson.D{{Key: "find", Value: "c"}}).Err() == nil
}

// in runs a command on a database.
func (s side) in(t *testing.T, db, command string) {
	t.Helper()
	var cmd bson.D
	if err := bson.UnmarshalExtJSON([]byte(command), false, &cmd); err != nil {
		t.Fatal(err)
	}
	if err := s.client.Database(db).RunCommand(t.Context(), cmd).Err(); err != nil {
		t.Fatalf("%s: %v", command, err)
	}
}

// withoutUsers removes the users and roles of the tests from both sides.
func withoutUsers(t *testing.T) {
	t.Helper()
	for _, s := range []side{sourceSide(), targetSide()} {
		for _, db := range []string{"acc", "out"} {
			s.in(t, db, `{"dropAllUsersFromDatabase": 1}`)
			s.in(t, db, `{"dropAllRolesFromDatabase": 1}`)
		}
	}
}

// TestUsers copies users and roles with the documented roles: in the copy phase, across a restart, and at the end.
func TestUsers(t *testing.T) {
	load(t)
	withoutUsers(t)
	source, target := sourceSide(), targetSide()
	reader := source.user(t, "reader", append(sourceRoles(), "backup"))
	writer := target.user(t, "writer", append(targetRoles(), "backup"))
	source.in(t, "acc", `{"createRole": "looks", "privileges": [{"resource": {"db": "acc", "collection": "c"},
		"actions": ["find"]}], "roles": [], "authenticationRestrictions": [{"clientSource": ["127.0.0.1"]}]}`)
	source.in(t, "acc", `{"createUser": "ada", "pwd": "one", "roles": ["looks"], "customData": {"team": 7}}`)
	source.in(t, "acc", `{"createUser": "bob", "pwd": "bob's", "roles": ["looks"]}`)
	source.in(t, "acc", `{"createUser": "cyd", "pwd": "source", "roles": ["read"]}`)
	source.in(t, "out", `{"createUser": "eve", "pwd": "eve's", "roles": []}`)
	target.in(t, "acc", `{"createUser": "cyd", "pwd": "target", "roles": ["read"]}`)
	target.in(t, "acc", `{"createUser": "own", "pwd": "target", "roles": ["read"]}`)
	var log bytes.Buffer
	s := spec(reader, writer, &log)
	s.Users = true
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(log.String())
		}
	})
	_, err := attempt(t, s, false, func(context.Context) {
		kit.Until(t, "ada logs in", func() bool { return target.logsIn(t, "ada", "one") })
		if !target.logsIn(t, "bob", "bob's") || !target.logsIn(t, "cyd", "target") || target.logsIn(t, "cyd", "source") {
			t.Error("bob is missing, or cyd is not the target's")
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	source.in(t, "acc", `{"dropUser": "bob"}`) // while the job is stopped
	end, err := attempt(t, s, true, func(context.Context) {
		kit.Until(t, "bob is gone", func() bool { return !target.logsIn(t, "bob", "bob's") })
		source.in(t, "acc", `{"updateUser": "ada", "pwd": "two"}`)
		source.in(t, "acc", `{"updateRole": "looks", "privileges": [{"resource": {"db": "acc", "collection": "d"},
			"actions": ["find"]}, {"resource": {"db": "acc", "collection": "c"}, "actions": ["find"]}]}`)
		source.in(t, "acc", `{"createUser": "dan", "pwd": "dan's", "roles": ["looks"]}`)
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		user, password string
		ok             bool
	}{{"ada", "two", true}, {"ada", "one", false}, {"dan", "dan's", true}, {"bob", "bob's", false},
		{"cyd", "target", true}, {"own", "target", true}} {
		if target.logsIn(t, c.user, c.password) != c.ok {
			t.Errorf("%s with %s on the target: %t", c.user, c.password, !c.ok)
		}
	}
	n, err := shared.targetDB.Database("admin").Collection("system.users").CountDocuments(t.Context(), bson.D{{Key: "db",
		Value: "out"}})
	if err != nil || n > 0 {
		t.Errorf("%d users of a database that is not chosen, %v", n, err)
	}
	left, err := shared.targetDB.Database("admin").ListCollectionNames(t.Context(), bson.D{{Key: "name",
		Value: bson.D{{Key: "$regex", Value: "millrace"}}}})
	if err != nil || len(left) > 0 {
		t.Errorf("left on the target: %v, %v", left, err)
	}
	if len(end.Differences) != 1 || !strings.HasPrefix(end.Differences[0], "acc.cyd: credentials of the user") {
		t.Errorf("differences: %q", end.Differences)
	}
	report, err := verify.Clusters(t.Context(), verify.Spec{Source: reader, Target: writer, Rules: rules(),
		Options: verify.Options{Users: true}})
	if err != nil || len(report.Schema) != 1 || report.Schema[0].NS != "acc.cyd" {
		t.Errorf("verify: %v, %+v", err, report)
	}
	for _, secret := range []string{"SCRAM", "storedKey", "salt"} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log has %s", secret)
		}
	}
}

// TestUsersAreChecked: missing rights fail the precheck, which lists what is copied and what the target keeps.
func TestUsersAreChecked(t *testing.T) {
	load(t)
	withoutUsers(t)
	source, target := sourceSide(), targetSide()
	source.in(t, "acc", `{"createUser": "ada", "pwd": "one", "roles": []}`)
	source.in(t, "acc", `{"createUser": "cyd", "pwd": "source", "roles": []}`)
	target.in(t, "acc", `{"createUser": "cyd", "pwd": "target", "roles": []}`)
	for _, c := range []struct {
		source, target bson.A
		lacks          string
	}{
		{sourceRoles(), targetRoles(), "source privileges: the user lacks find on admin.system.users"},
		{append(sourceRoles(), "backup"), targetRoles(), "target privileges: the user lacks find on admin.system.roles"},
		{append(sourceRoles(), "backup"), append(targetRoles(), "backup"), ""},
	} {
		var log bytes.Buffer
		s := spec(source.user(t, "reader", c.source), target.user(t, "writer", c.target), &log)
		s.Users = true
		j, err := job.Open(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := j.Plan(t.Context())
		j.Close()
		if err != nil {
			t.Fatal(err)
		}
		failed := plan.Checks.Err()
		if c.lacks != "" {
			if failed == nil || !strings.Contains(failed.Error(), c.lacks) {
				t.Errorf("lacking %s: %v", c.lacks, failed)
			}
			continue
		}
		text := ""
		for _, check := range plan.Checks {
			text += check.Name + ": " + check.Message + "\n"
		}
		if failed != nil || !slices.Equal(plan.Users, []string{"user acc.ada", "user acc.cyd"}) ||
			!strings.Contains(text, "users: 1 users and roles are written") ||
			!strings.Contains(text, "acc.cyd (credentials of the user)") {
			t.Errorf("%v, %q, %s", failed, plan.Users, text)
		}
	}
}
