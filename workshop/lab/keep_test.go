package lab

import (
	"path/filepath"
	"testing"
)

// TestBorrow: the next test gets the same servers without data, but other ones
// while they are in use and after a member was killed.
func TestBorrow(t *testing.T) {
	NeedServers(t)
	t.Setenv("MILLRACE_LAB_KEEP", "10m")
	dir := t.TempDir()
	script(t, dir, "guard", "while :; do sleep 1; done")
	t.Setenv("MILLRACE_TEST_BENCH", filepath.Join(dir, "guard"))
	o := Options{OplogMB: 991, LeanJournal: true} // as no other test has them
	get := func() *Cluster {
		c, err := Start(t.Context(), o)
		must(t, err)
		t.Cleanup(func() {
			c.reuse.spent = true
			must(t, c.Stop())
		})
		return c
	}
	first := get()
	pid := first.Members()[0].Pid()
	mustInsert(t, connect(t, first.URI()), "one")
	other := get()
	if other.Members()[0].Pid() == pid {
		t.Error("a cluster in use is lent")
	}
	must(t, first.Stop())
	again := get()
	if got := again.Members()[0].Pid(); got != pid {
		t.Errorf("process %d, want %d", got, pid)
	}
	mustInsert(t, connect(t, again.URI()), "one") // it is not there any more
	must(t, again.Members()[0].Kill())
	must(t, again.Stop())
	if got := get().Members()[0].Pid(); got == pid || got == 0 {
		t.Errorf("process %d after it was killed", got)
	}
}
