package shards_test

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// TestPrimaryAt: where a database was is known of each time, also by a process that
// begins later.
func TestPrimaryAt(t *testing.T) {
	lab.NeedServers(t)
	forgetful := map[string]string{"minSnapshotHistoryWindowInSeconds": "0"}
	for _, of := range []struct {
		version    string
		parameters map[string]string
	}{{"6.0", nil}, {"6.0", forgetful}, {"5.0", nil}, {"5.0", forgetful}, {"4.4", nil}} {
		t.Run(of.version, func(t *testing.T) {
			b := newBed(t, sharded.Options{Options: lab.Options{Topology: "sharded:2x1", Version: of.version,
				SetParameters: of.parameters}})
			c := b.open()
			names := b.lab.ShardNames()
			want := map[mongo.OpTime]string{}
			note := func(shard string) {
				t.Helper()
				pos, err := c.Start(t.Context())
				b.ok(err)
				if want[pos.At] = shard; len(want) < 3 { // and while it happens
					b.primaryAt(c.PrimaryAt, pos.At, shard)
				}
			}
			b.ok(b.lab.CreateDatabase(t.Context(), "other", names[0]))
			note("")
			b.ok(b.lab.CreateDatabase(t.Context(), "d", names[0]))
			note(names[0])
			b.ok(b.router.Client.Database("d").CreateCollection(t.Context(), "c"))
			b.ok(b.lab.MovePrimary(t.Context(), "d", names[1]))
			note(names[1])
			b.ok(b.lab.MovePrimary(t.Context(), "d", names[0]))
			note(names[0])
			b.ok(b.router.Client.Database("d").RunCommand(t.Context(), bson.D{{Key: "dropDatabase", Value: 1}}).Err())
			note("")
			b.ok(b.lab.CreateDatabase(t.Context(), "d", names[1]))
			note(names[1])
			later := b.open()
			for at, shard := range want {
				b.primaryAt(c.PrimaryAt, at, shard)
				b.primaryAt(later.PrimaryAt, at, shard)
			}
			if got, sure, err := later.PrimaryAt(t.Context(), "d",
				mongo.OpTime{TS: bson.Timestamp{T: 1}, Term: -1}); err == nil && sure {
				t.Errorf("before the cluster was made it was on %q for sure", got)
			}
		})
	}
}

func (b *bed) primaryAt(ask func(context.Context, string, mongo.OpTime) (string, bool, error), at mongo.OpTime,
	want string) {
	b.Helper()
	got, sure, err := ask(b.Context(), "d", at)
	b.ok(err)
	if got != want || !sure {
		b.Errorf("at %s it was on %q (%t), want %q", at, got, sure, want)
	}
	if other, sure, err := ask(b.Context(), "other", at); err != nil || other != b.lab.ShardNames()[0] || !sure {
		b.Errorf("at %s the other was on %q (%t): %v", at, other, sure, err)
	}
}
