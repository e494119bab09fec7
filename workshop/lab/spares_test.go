package lab

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestSpares: the next test gets the same servers without data, but other ones while they are in use, and after a
// parameter was changed or a member was killed.
func TestSpares(t *testing.T) {
	NeedServers(t)
	if !CanShare() {
		t.Skip("servers do not end with the process")
	}
	o := Options{OplogMB: 992} // as no other test has them
	get := func() (c *Cluster, pid int) {
		c, err := startShared(t.Context(), o)
		must(t, err)
		t.Cleanup(func() { must(t, c.Stop()) })
		return c, c.Members()[0].Pid()
	}
	first, pid := get()
	mustInsert(t, connect(t, first.URI()), "one")
	if _, other := get(); other == pid {
		t.Error("servers in use are given away")
	}
	must(t, first.putBack())
	again, got := get()
	if got != pid {
		t.Errorf("process %d, want %d", got, pid)
	}
	client := connect(t, again.URI())
	mustInsert(t, client, "one") // it is not there any more
	must(t, client.Database("admin").RunCommand(t.Context(),
		bson.D{{Key: "setParameter", Value: 1}, {Key: "ttlMonitorSleepSecs", Value: 7}}).Err())
	must(t, again.putBack())
	changed, got := get()
	if got == pid {
		t.Error("servers with another parameter are given away")
	}
	must(t, changed.Members()[0].Kill())
	must(t, changed.putBack())
	if _, last := get(); last == got || last == 0 {
		t.Errorf("process %d after it was killed", last)
	}
}
