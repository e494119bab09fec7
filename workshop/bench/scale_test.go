package bench

import (
	"testing"

	"github.com/millrace/millrace/workshop/lab"
)

// TestShare: the caches of all servers together leave room for their files, and are
// left as they are where they do.
func TestShare(t *testing.T) {
	for _, c := range []struct {
		dir            string
		source, target float64
		most           float64 // of all, GB
	}{{t.TempDir(), 1, 1, 4}, {t.TempDir(), 4, 8, 12}, {"/dev/shm", 4, 8, 6}} {
		t.Setenv("MILLRACE_LAB_DIR", c.dir)
		if c.dir == "/dev/shm" && !lab.FilesInMemory() {
			t.Log(c.dir, "is not in memory here")
			continue
		}
		b := &bench{report: &Report{Machine: Machine{MemoryMB: 24 << 10}}}
		b.o.Servers = Servers{SourceTopology: "rs:1", TargetTopology: "rs:3"}
		n := b.share(needs{sourceCacheGB: c.source, targetCacheGB: c.target})
		if all := n.sourceCacheGB + 3*n.targetCacheGB; all > c.most*1.001 || all < c.most*0.999 {
			t.Errorf("in %s: %.2f and 3 x %.2f GB, want %.2f in all", c.dir, n.sourceCacheGB, n.targetCacheGB, c.most)
		}
	}
}
