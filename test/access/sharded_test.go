package access

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/verify"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// place is a cluster of either kind: what jobs connect to, and the replica set that has its users.
type place struct {
	uri   string
	users *driver.Client
}

func (p place) in(t *testing.T, db, command string) {
	t.Helper()
	side{client: p.users}.in(t, db, command)
}

// logsIn reports whether a user of database acc is one of the cluster.
func (p place) logsIn(t *testing.T, user, password string) bool {
	t.Helper()
	c, err := driver.Connect(options.Client().ApplyURI(p.uri).
		SetAuth(options.Credential{Username: user, Password: password, AuthSource: "acc", AuthMechanism: "SCRAM-SHA-256"}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Disconnect(context.Background()) }()
	return c.Database("acc").RunCommand(t.Context(), bson.D{{Key: "find", Value: "c"}}).Err() == nil
}

// TestUsersOfShardedClusters: the users of a sharded cluster are those of its config servers, on either side.
func TestUsersOfShardedClusters(t *testing.T) {
	of := func() place {
		c := sharded.ForTest(t, sharded.Options{Options: lab.Options{Topology: "sharded:1x1", Auth: true, CacheGB: 0.25},
			Routers: 1})
		client, err := driver.Connect(options.Client().ApplyURI(c.ConfigURI()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
		return place{c.URI(), client}
	}
	from, to := of(), of()
	for _, c := range []struct {
		name           string
		source, target place
	}{
		{name: "sharded to sharded", source: from, target: to},
		{name: "sharded to a replica set", source: from, target: place{shared.target.URI(), shared.targetDB}},
		{name: "a replica set to sharded", source: place{shared.source.URI(), shared.sourceDB}, target: to},
	} {
		t.Run(c.name, func(t *testing.T) { copiesUsers(t, c.source, c.target) })
	}
}

// dropAll drops what jobs and other tests have left.
func dropAll(ctx context.Context, c *driver.Client) error {
	names, err := c.ListDatabaseNames(ctx, bson.D{{Key: "name", Value: bson.Regex{Pattern: "^(acc|millrace$)"}}})
	for _, name := range names {
		err = errors.Join(err, c.Database(name).Drop(ctx))
	}
	return err
}

func copiesUsers(t *testing.T, source, target place) {
	withoutUsers(t)
	for _, p := range []place{source, target} {
		p.in(t, "acc", `{"dropAllUsersFromDatabase": 1}`)
		p.in(t, "acc", `{"dropAllRolesFromDatabase": 1}`)
		c, err := driver.Connect(options.Client().ApplyURI(p.uri))
		if err == nil {
			err = dropAll(t.Context(), c)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err = c.Database("acc").Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}}); err != nil {
			t.Fatal(err)
		}
		if p == target {
			if err := c.Database("acc").Drop(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		_ = c.Disconnect(t.Context())
	}
	source.in(t, "acc", `{"createRole": "looks", "privileges": [{"resource": {"db": "acc", "collection": "c"},
		"actions": ["find"]}], "roles": []}`)
	source.in(t, "acc", `{"createUser": "ada", "pwd": "one", "roles": ["looks"]}`)
	source.in(t, "acc", `{"createUser": "bob", "pwd": "bob's", "roles": ["looks"]}`)
	var log bytes.Buffer
	s := spec(source.uri, target.uri, &log)
	s.Users = true
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(log.String())
		}
	})
	end, err := attempt(t, s, true, func(context.Context) {
		kit.Until(t, "ada logs in", func() bool { return target.logsIn(t, "ada", "one") })
		source.in(t, "acc", `{"updateUser": "ada", "pwd": "two"}`)
		source.in(t, "acc", `{"dropUser": "bob"}`)
	})
	if err != nil || len(end.Differences) > 0 {
		t.Fatalf("%v, differences %q", err, end.Differences)
	}
	if !target.logsIn(t, "ada", "two") || target.logsIn(t, "ada", "one") || target.logsIn(t, "bob", "bob's") {
		t.Error("the target has not the users of the source")
	}
	v := verify.Spec{Source: source.uri, Target: target.uri, Rules: rules(), Options: verify.Options{Users: true}}
	report, err := verify.Clusters(t.Context(), v)
	if err != nil || len(report.Schema) > 0 {
		t.Errorf("verify: %v, %+v", err, report)
	}
	source.in(t, "acc", `{"updateUser": "ada", "pwd": "three"}`)
	report, err = verify.Clusters(t.Context(), v)
	if err != nil || len(report.Schema) != 1 || !strings.HasPrefix(report.Schema[0].What, "credentials") {
		t.Errorf("verify after a change: %v, %+v", err, report)
	}
}
