package failover

import (
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// TestReadPreferenceUnsuited: a read preference that no member suits is refused before
// anything is written. A job that has begun waits for a member, names what it waits for,
// and ends by --give-up-after.
func TestReadPreferenceUnsuited(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	lab.NeedServers(t)
	source, target := lab.ForTest(t, lab.Options{Topology: "rs:3"}), lab.ForTest(t, lab.Options{})
	bin := test.BuildMillrace(t)
	run := func(source string, more ...string) *test.Process {
		t.Helper()
		return test.Start(t, bin, append([]string{"sync", "--source", source, "--target", target.URI(), "--include", "d.*",
			"--allow-missing"}, more...)...)
	}
	ends := func(p *test.Process, code int, wants ...string) {
		t.Helper()
		_ = p.Wait(4 * time.Minute)
		if p.ExitCode() != code {
			t.Errorf("exit code %d, want %d\n%s", p.ExitCode(), code, p.Output())
		}
		// without a table's breaks
		text := strings.Join(strings.FieldsFunc(p.Output(), func(r rune) bool { return strings.ContainsRune(" │\n", r) }),
			" ")
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("it does not say %q\n%s", want, p.Output())
			}
		}
	}
	t.Run("single member", func(t *testing.T) {
		single := lab.ForTest(t, lab.Options{})
		ends(run(single.URI(), "--dry-run", "--read-preference", "secondary"), 2, "secondary", "--read-preference")
	})
	t.Run("misspelt tag", func(t *testing.T) {
		for _, more := range [][]string{{"--dry-run"}, nil} {
			ends(run(source.URI(), append(more, "--read-preference", "nearest", "--read-tags", "dc:est")...), 2, "nearest",
				"dc:est", "--read-tags")
		}
	})

	east := tagSecondary(t, source, "dc", "east")
	client := kit.Client(t, source.URI())
	insert := func() {
		t.Helper()
		if _, err := client.Database("d").Collection("c").InsertOne(t.Context(), bson.D{}); err != nil {
			t.Fatal(err)
		}
	}
	insert()
	args := []string{"--until", "never", "--read-preference", "nearest", "--read-tags", "dc:east"}
	await := func(p *test.Process, what string, ok func(job.Status) bool) {
		t.Helper()
		for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
			st := p.Status(t.Context())
			if ok(st) {
				return
			}
			if time.Since(began) > 4*time.Minute {
				t.Fatalf("no %s: in phase %s the job waits for %q\n%s", what, st.Phase, st.Waiting, p.Output())
			}
		}
	}
	p := run(source.URI(), append(args, "--give-up-after", "10s")...)
	await(p, "following", func(st job.Status) bool { return st.Phase == job.PhaseFollowing && st.Waiting == "" })
	if err := east.Kill(); err != nil {
		t.Fatal(err)
	}
	await(p, "wait for the tagged member",
		func(st job.Status) bool { return strings.Contains(st.Waiting, "nearest with tags dc:east") })
	ends(p, 1, "gave up after 10s", "nearest with tags dc:east", "--read-tags")

	ends(run(source.URI(), "--dry-run", "--restart", "--read-preference", "nearest", "--read-tags", "dc:east"), 2,
		"dc:east", "--read-tags")
	// of the job that has begun
	ends(run(source.URI(), "--dry-run", "--read-preference", "nearest", "--read-tags", "dc:est"), 2, "dc:est",
		"--read-tags")
	p = run(source.URI(), args...)
	await(p, "wait for the tagged member at the start",
		func(st job.Status) bool { return strings.Contains(st.Waiting, "nearest with tags dc:east") })
	insert()
	if err := east.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(p, "change applied", func(st job.Status) bool { return st.Follow.Operations > 0 && st.Waiting == "" })
}

// tagSecondary gives a secondary of a set a tag.
func tagSecondary(t *testing.T, c *lab.Cluster, name, value string) *lab.Member {
	t.Helper()
	primary, err := c.Primary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := c.Members()[(primary+1)%len(c.Members())]
	admin := kit.Client(t, c.URI()).Database("admin")
	var reply struct{ Config bson.M }
	if err := admin.RunCommand(t.Context(), bson.D{{Key: "replSetGetConfig", Value: 1}}).Decode(&reply); err != nil {
		t.Fatal(err)
	}
	reply.Config["version"] = reply.Config["version"].(int32) + 1
	delete(reply.Config, "term")
	for _, one := range reply.Config["members"].(bson.A) {
		for i, f := range one.(bson.D) {
			if f.Key == "tags" && hostOf(one.(bson.D)) == m.Host() {
				one.(bson.D)[i].Value = bson.D{{Key: name, Value: value}}
			}
		}
	}
	if err := admin.RunCommand(t.Context(), bson.D{{Key: "replSetReconfig", Value: reply.Config}}).Err(); err != nil {
		t.Fatal(err)
	}
	return m
}

func hostOf(member bson.D) string {
	for _, f := range member {
		if f.Key == "host" {
			return f.Value.(string)
		}
	}
	return ""
}
