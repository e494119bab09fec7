package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// TestPartialDeployments: what is less than a deployment, or more than one, is rejected as
// the source and as the target, by every command that trusts it to be complete.
func TestPartialDeployments(t *testing.T) {
	t.Parallel()
	cluster := sharded.ForTest(t, sharded.Options{Options: lab.Options{Topology: "sharded:1x1"}})
	other := sharded.ForTest(t, sharded.Options{Options: lab.Options{Topology: "sharded:1x1"}})
	plain := lab.ForTest(t, lab.Options{})
	set := lab.ForTest(t, lab.Options{Topology: "rs:4"})
	primary, err := set.Primary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	secondary := set.DirectURI((primary + 1) % 4)
	rejected(t, newProgram(t, plain.URI(), secondary), [3]string{"target: ", "is a secondary", "directConnection"}, "sync")
	rejected(t, newProgram(t, secondary, plain.URI()), [3]string{"source: ", "is a secondary", "--read-preference"},
		"sync")
	rejected(t, newProgram(t, secondary, plain.URI()), [3]string{"source: ", "is a secondary", "--read-preference"},
		"verify")
	arbiter, recovering, removed := otherStates(t, set, primary)
	shard := cluster.Shards()[0]
	routers := []string{routerOf(t, cluster), routerOf(t, cluster), routerOf(t, other)}
	hosts := func(h ...string) string { return "mongodb://" + strings.Join(h, ",") + "/" }
	for _, c := range []struct{ name, uri, want, remedy string }{
		{"a shard", shard.URI(), "is the shard s0 of a sharded cluster", "--allow-shard"},
		{"a config server", cluster.Config().URI(), "is a config server", "routers"},
		{"an arbiter", arbiter, "is an arbiter of the replica set", "directConnection"},
		{"a recovering member", recovering, "neither primary nor secondary", "directConnection"},
		{"a removed member", removed, "without a valid replica set configuration", "directConnection"},
		{"a host of another set", hosts(plain.Hosts()[0], shard.Hosts()[0]), "hosts of several deployments",
			"one deployment"},
		{"a router of another cluster", hosts(routers[0], routers[2]), "is a router of another sharded cluster",
			"one deployment"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, side := range []string{"source", "target"} {
				p := newProgram(t, c.uri, plain.URI())
				if side == "target" {
					p = newProgram(t, plain.URI(), c.uri)
				}
				for _, command := range []string{"sync", "verify"} {
					rejected(t, p, [3]string{side + ": ", c.want, c.remedy}, command, "--include=partial")
				}
			}
		})
	}
	t.Run("allowed", func(t *testing.T) {
		insert(t, kit.Client(t, shard.URI()), "partial", 0, 10)
		p := newProgram(t, shard.URI(), plain.URI())
		p.env = append(p.env, "MILLRACE_ALLOW_SHARD=true")
		code, out, stderr := p.run("sync", "--include=partial", "--until=caught-up", "--verify")
		if code != cli.ExitOK || !strings.Contains(stderr, "one shard of a sharded cluster") {
			t.Errorf("%d\n%s%s", code, out, stderr)
		}
	})
	t.Run("complete", func(t *testing.T) {
		for _, uri := range []string{hosts(routers[:2]...), "mongodb://" + plain.Hosts()[0] + "/?directConnection=true",
			set.URI()} {
			if code, out,
				stderr := newProgram(t, uri, plain.URI()).run("sync", "--dry-run"); strings.Contains(out+stderr, "deployment") {
				t.Errorf("%s: %d\n%s%s", uri, code, out, stderr)
			}
		}
	})
}

func routerOf(t *testing.T, c *sharded.Cluster) string {
	r, err := c.StartRouter(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	return r.Host()
}

// rejected runs a command that has to be rejected, and to say of which side, its cause and a
// remedy.
func rejected(t *testing.T, p *program, said [3]string, args ...string) {
	t.Helper()
	began := time.Now()
	cmd, _, stderr := p.command(args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	hangs := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait()
	hangs.Stop()
	code, text := cmd.ProcessState.ExitCode(), stderr.String()
	for _, want := range said {
		if code != cli.ExitUsage || !strings.Contains(text, want) {
			t.Errorf("%s: exit code %d, want %q\n%s", args, code, want, text)
		}
	}
	if took := time.Since(began); took > 40*time.Second {
		t.Errorf("%s took %s", args, took)
	}
}

// otherStates makes an arbiter, a member in maintenance and a removed one of the members
// of a set, and returns their addresses.
func otherStates(t *testing.T, set *lab.Cluster, primary int) (arbiter, recovering, removed string) {
	admin := kit.Client(t, set.URI()).Database("admin")
	run := func(on *driver.Database, cmd bson.D) bson.Raw {
		t.Helper()
		raw, err := on.RunCommand(t.Context(), cmd).Raw()
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	run(admin, bson.D{{Key: "setDefaultRWConcern", Value: 1},
		{Key: "defaultWriteConcern", Value: bson.D{{Key: "w", Value: 1}}}})
	reconfigure := func(change func(members bson.A) bson.A) {
		t.Helper()
		var got struct{ Config bson.M }
		if err := bson.Unmarshal(run(admin, bson.D{{Key: "replSetGetConfig", Value: 1}}), &got); err != nil {
			t.Fatal(err)
		}
		got.Config["members"], got.Config["version"] = change(got.Config["members"].(bson.A)), got.Config["version"].(int32)+1
		run(admin, bson.D{{Key: "replSetReconfig", Value: got.Config}})
	}
	others := []int{(primary + 1) % 4, (primary + 2) % 4, (primary + 3) % 4}
	for _, i := range others[:2] { // one at a time, as servers want it
		reconfigure(func(members bson.A) bson.A {
			return slices.DeleteFunc(members, func(m any) bool {
				return slices.ContainsFunc(m.(bson.D), func(e bson.E) bool { return e.Value == set.Hosts()[i] })
			})
		})
	}
	empty := set.Members()[others[0]] // an arbiter has no data
	if err := errors.Join(empty.Kill(), os.RemoveAll(empty.DBPath)); err != nil {
		t.Fatal(err)
	}
	reconfigure(func(members bson.A) bson.A {
		return append(members, bson.D{{Key: "_id", Value: 9}, {Key: "host", Value: set.Hosts()[others[0]]},
			{Key: "arbiterOnly", Value: true}, {Key: "priority", Value: 0}})
	})
	arbiter, removed, recovering = set.DirectURI(others[0]), set.DirectURI(others[1]), set.DirectURI(others[2])
	run(kit.Client(t, recovering).Database("admin"), bson.D{{Key: "replSetMaintenance", Value: 1}})
	ctx, started := context.WithCancel(t.Context())
	var starting sync.WaitGroup
	starting.Go(func() { _ = empty.Start(ctx) }) // which waits for it to have data
	defer starting.Wait()
	defer started()
	waitState(t, arbiter, func(h bson.M) bool { return h["arbiterOnly"] == true })
	waitState(t, removed, func(h bson.M) bool { return h["isreplicaset"] == true })
	waitState(t, recovering, func(h bson.M) bool { return h["secondary"] == false })
	return arbiter, recovering, removed
}

func waitState(t *testing.T, uri string, ok func(bson.M) bool) {
	t.Helper()
	admin := kit.Client(t, uri).Database("admin")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		var h bson.M
		err := admin.RunCommand(t.Context(), bson.D{{Key: "hello", Value: 1}}).Decode(&h)
		if err == nil && ok(h) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not get there: %v %v", uri, h, err)
		}
	}
}
