package shards_test

import (
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// TestLook: what one shard has just written is told, though another has not heard of
// that time yet, and would refuse to look up to it.
func TestLook(t *testing.T) {
	lab.NeedServers(t)
	for _, version := range versions() {
		t.Run(version, func(t *testing.T) {
			b := newBed(t, sharded.Options{Options: lab.Options{Topology: "sharded:2x1", Version: version}})
			own := b.lab.ShardNames()[0]
			b.ok(b.lab.CreateDatabase(t.Context(), "d", own))
			c := b.open()
			start, err := c.Start(t.Context())
			b.ok(err)
			shard := c.Shards[slices.IndexFunc(c.Shards, func(s shards.Shard) bool { return s.Name == own })]
			_, err = shard.Client.Database("d").Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}})
			b.ok(err)
			now, err := shard.Positions(t.Context())
			b.ok(err)
			all, err := c.Look(t.Context(), []string{"d.c"}, oplog.Span{After: start.At, Until: now.Last})
			b.ok(err)
			if !slices.ContainsFunc(all, func(ev stream.Event) bool { return ev.Kind == stream.Insert && ev.NS == "d.c" }) {
				t.Errorf("the insert is missing: %+v", all)
			}
		})
	}
}
