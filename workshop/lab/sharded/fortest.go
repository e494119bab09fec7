package sharded

import (
	"github.com/millrace/millrace/workshop/lab"
)

// ForTest starts a cluster as lab.ForTest does, with small caches unless the
// options say otherwise, and stops it at the end of the test.
func ForTest(t lab.TB, o Options) *Cluster {
	t.Helper()
	lab.NeedServers(t)
	o.LeanJournal = true
	if o.CacheGB == 0 {
		o.CacheGB = 0.25
	}
	c, err := Start(t.Context(), o)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, s := range append(c.Shards(), c.Config()) {
				s.LogTails(t)
			}
		}
		if err := c.Stop(); err != nil {
			t.Logf("%v", err)
		}
	})
	return c
}
