package seed

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// TestPartsOfClusters: no replica set of its own is made of a shard or of a config server,
// running or stopped. A new member of a shard is started as a shard.
func TestPartsOfClusters(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	c := sharded.ForTest(t, sharded.Options{Options: lab.Options{Topology: "sharded:1x1"}})
	for what, set := range map[string]*lab.Cluster{"a shard": c.Shards()[0], "a config server": c.Config()} {
		m := set.Members()[0]
		newSet := func() Options {
			return Options{Pull: PullOptions{DBPath: filepath.Join(t.TempDir(), "to")},
				Member: MemberOptions{NewSet: "clone", Mongod: mongod(t, "6.0"), Guardian: privateCommand()}}
		}
		plan, err := Inspect(t.Context(),
			SourceOptions{URI: set.SystemURI(), DBPath: m.DBPath, AllowPrimary: true, YesBlockAllWrites: true})
		must(t, err)
		plan.Checks = nil // of a primary
		asNew := *plan
		CheckMember(t.Context(), &asNew, newSet())
		if err := asNew.Checks.Err(); err == nil || !strings.Contains(err.Error(), what) || mongo.HintOf(err) == "" {
			t.Errorf("a new set of a running member of %s: %v", what, err)
		}
		to := filepath.Join(t.TempDir(), "member")
		command := memberCommand(t, "6.0", plan.Origin.SetName, to, freePort(t))
		for _, flags := range [][]string{nil, {"--" + plan.Origin.ClusterRole}} {
			as := *plan
			CheckMember(t.Context(), &as,
				Options{Pull: PullOptions{DBPath: to}, Member: MemberOptions{Command: append(command, flags...)}})
			if failed := as.Checks.Failed(); failed != (flags == nil) {
				t.Errorf("a member of %s, started with %v: %+v", what, flags, as.Checks)
			}
		}
		must(t, m.Stop())
		_, err = Run(t.Context(), openAgent(t, ServeOptions{SourceOptions: SourceOptions{DBPath: m.DBPath}}), newSet())
		if err == nil || !strings.Contains(err.Error(), what) || mongo.HintOf(err) == "" {
			t.Errorf("a new set of a stopped member of %s: %v", what, err)
		}
	}
}
