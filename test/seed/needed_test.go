package seed

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// TestMigrationByFilesOfParts: neither a sharded cluster behind its router, nor a part of one, nor a member alone is
// copied by files.
func TestMigrationByFilesOfParts(t *testing.T) {
	t.Parallel()
	m := newMigration(t, "6.0", "rs:2", 1)
	m.startAgent(m.hosts[0])
	c := sharded.ForTest(t, sharded.Options{Options: lab.Options{Topology: "sharded:1x1"}, Routers: 1})
	for _, one := range []struct{ uri, what, hint string }{
		{c.URI(), "the source is a sharded cluster", "--copy documents"},
		{c.Shards()[0].URI(), "the source is a shard", "connect to the cluster's routers"},
		{c.Config().URI(), "the source is a config server", "connect to the cluster's routers"},
		{m.uri(), "is a secondary of the", "leave out directConnection"},
	} {
		m.options = []string{"--source", one.uri, "--dry-run"}
		p := test.Start(t, m.bin, m.args()...)
		if err := p.Wait(time.Minute); err == nil || p.ExitCode() != 2 || !strings.Contains(p.Output(), one.what) ||
			!strings.Contains(p.Output(), one.hint) {
			t.Errorf("%s: exit code %d\n%s", one.what, p.ExitCode(), p.Output())
		}
	}
}
