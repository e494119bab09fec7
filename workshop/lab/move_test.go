package lab

import (
	"context"
	"net"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestMoveAndDisk moves all members of a set and then lets their disks be full:
// a member ends by that, and goes on when there is room again.
func TestMoveAndDisk(t *testing.T) {
	Nightly(t)
	NeedServers(t)
	t.Parallel()
	o := Options{Topology: "rs:3", Proxy: true, DiskMB: 512}
	c, err := Start(t.Context(), o)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { must(t, c.Stop()) })
	client := connect(t, c.URI())
	mustInsert(t, client, "before")
	for i, m := range c.Members() {
		was := []string{m.Host(), m.Proxy().Addr()}
		must(t, c.Move(t.Context(), i))
		for _, addr := range was {
			if conn, err := net.Dial("tcp", addr); err == nil {
				t.Errorf("member %d still listens on %s", i, addr)
				_ = conn.Close()
			}
		}
		mustInsert(t, client, i) // found without being told
	}

	for _, m := range c.Members() {
		must(t, m.Disk().Fill(t.Context()))
	}
	for i := 10; running(c) > 1; i++ {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, _ = client.Database("test").Collection("c").
			InsertOne(ctx, bson.D{{Key: "_id", Value: i}, {Key: "pad", Value: make([]byte, 1<<20)}})
		cancel()
	}
	for _, m := range c.Members() {
		must(t, m.Disk().Free())
	}
	for _, m := range c.Members() {
		must(t, m.launch(t.Context()))
	}
	_, err = c.Primary(t.Context())
	must(t, err)
	mustInsert(t, client, "after")
	for _, id := range []any{"before", 0, 1, 2, "after"} {
		if err := client.Database("test").Collection("c").FindOne(t.Context(), bson.D{{Key: "_id", Value: id}}).
			Err(); err != nil {
			t.Errorf("document %v: %v", id, err)
		}
	}
}

// running counts the members that run.
func running(c *Cluster) (n int) {
	for _, m := range c.Members() {
		if m.Pid() != 0 {
			n++
		}
	}
	return n
}
