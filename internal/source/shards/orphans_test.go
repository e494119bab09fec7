package shards_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/merge"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// TestOrphans: before 6.0 servers write to documents whose chunk is gone, or still on
// its way, and do not mark it. What the owner says counts, and what was written to a
// document on its way and stays with it.
func TestOrphans(t *testing.T) {
	lab.NeedServers(t)
	for _, version := range []string{"5.0", "4.4"} {
		t.Run(version, func(t *testing.T) { orphans(t, version) })
	}
}

func orphans(t *testing.T, version string) {
	b := newBed(t, sharded.Options{Options: lab.Options{Topology: "sharded:2x1", Version: version,
		SetParameters: map[string]string{"orphanCleanupDelaySecs": "900", "enableTestCommands": "1",
			"ttlMonitorSleepSecs": "1"}}})
	all := b.lab.ShardNames()
	b.ok(b.lab.CreateDatabase(t.Context(), "d", all[0]))
	b.ok(b.lab.ShardCollection(t.Context(), "d.c", sharded.Sharding{Key: bson.D{{Key: "k.v", Value: 1},
		{Key: "h", Value: 1}}}))
	k := func(n int) bson.D { return bson.D{{Key: "k.v", Value: n}, {Key: "h", Value: bson.MinKey{}}} }
	b.ok(b.lab.Split(t.Context(), "d.c", k(100), k(200)))
	move := func(n int, to string) error {
		return b.lab.MoveChunk(context.WithoutCancel(t.Context()), "d.c", k(n), to)
	}
	b.ok(move(250, all[1])) // so that writes go to both
	coll := b.router.Client.Database("d").Collection("c")
	_, err := coll.Indexes().CreateOne(t.Context(), driver.IndexModel{Keys: bson.D{{Key: "e", Value: 1}},
		Options: options.Index().SetExpireAfterSeconds(0)})
	b.ok(err)
	c := b.open()
	start, err := c.Start(t.Context())
	b.ok(err)
	for _, id := range []int{20, 21, 150, 151, 152, 153, 154, 155, 156, 157, 158, 159, 160} {
		_, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: id},
			{Key: "k", Value: bson.D{{Key: "v", Value: id}}}, {Key: "n", Value: 0}})
		b.ok(err)
	}
	direct, err := driver.Connect(options.Client().ApplyURI(b.lab.Shards()[1].URI()))
	b.ok(err)
	t.Cleanup(func() { _ = direct.Disconnect(context.Background()) })
	hang := func(mode string) {
		b.ok(direct.Database("admin").RunCommand(context.WithoutCancel(t.Context()),
			bson.D{{Key: "configureFailPoint", Value: "migrateThreadHangAtStep4"}, {Key: "mode", Value: mode}}).Err())
	}
	inc := bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}
	ids := func(from, until int) bson.D {
		return bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: from}, {Key: "$lt", Value: until}}}}
	}
	there := direct.Database("d")

	// As routers send what goes to all shards: no shard refuses it.
	version0 := bson.A{bson.Timestamp{}, bson.ObjectID{4: 0xff, 5: 0xff, 6: 0xff, 7: 0xff, 8: 0xff, 9: 0xff, 10: 0xff,
		11: 0xff}}
	if version != "4.4" {
		version0 = append(version0, bson.Timestamp{T: math.MaxUint32, I: math.MaxUint32})
	}
	ignored := bson.D{{Key: "shardVersion", Value: version0},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}}

	// Orphans that no server knows of: they are there before the chunk comes.
	for id := 170; id < 172; id++ {
		_, err := there.Collection("c").InsertOne(t.Context(),
			bson.D{{Key: "_id", Value: id}, {Key: "k", Value: bson.D{{Key: "v", Value: id}}}, {Key: "n", Value: 0}})
		b.ok(err)
	}

	hang("alwaysOn")
	defer hang("off")
	moved := make(chan error, 1)
	go func() { moved <- move(150, all[1]) }()
	b.until(func() bool {
		n, err := there.Collection("c").CountDocuments(t.Context(), bson.D{})
		return err == nil && n == 13
	})
	// The recipient's half of a write whose other half is done: it stays.
	b.ok(there.RunCommand(t.Context(), append(bson.D{{Key: "update", Value: "c"},
		{Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: ids(150, 152)}, {Key: "u", Value: inc},
			{Key: "multi", Value: true}}}}}, ignored...)).Err())
	b.ok(there.RunCommand(t.Context(), append(bson.D{{Key: "delete", Value: "c"},
		{Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: ids(152, 153)}, {Key: "limit", Value: 0}}}}},
		ignored...)).Err())
	// Here the recipient is first, and the donor's state comes after it.
	b.ok(there.RunCommand(t.Context(), append(bson.D{{Key: "update", Value: "c"},
		{Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: ids(153, 154)}, {Key: "u", Value: inc},
			{Key: "multi", Value: true}}}}}, ignored...)).Err())
	_, err = coll.UpdateMany(t.Context(), ids(153, 156), inc)
	b.ok(err)
	_, err = coll.DeleteMany(t.Context(), ids(155, 156)) // the donor's delete finds nothing on the recipient
	b.ok(err)
	// The recipient has it no longer when the donor gives it another shard key.
	b.ok(there.RunCommand(t.Context(), append(bson.D{{Key: "delete", Value: "c"},
		{Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: ids(160, 161)}, {Key: "limit", Value: 0}}}}},
		ignored...)).Err())
	_, err = coll.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 160}, {Key: "k.v", Value: 160},
		{Key: "h", Value: nil}}, bson.D{{Key: "$set", Value: bson.D{{Key: "k.v", Value: 260}}}})
	b.ok(err)
	b.ok(there.RunCommand(t.Context(), append(bson.D{{Key: "update", Value: "c"},
		{Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: ids(170, 172)}, {Key: "u", Value: inc},
			{Key: "multi", Value: true}}}}}, ignored...)).Err())
	b.ok(there.RunCommand(t.Context(), append(bson.D{{Key: "delete", Value: "c"},
		{Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: ids(171, 172)}, {Key: "limit", Value: 0}}}}},
		ignored...)).Err())
	middle, err := c.Start(t.Context())
	b.ok(err)
	hang("off")
	b.ok(<-moved)
	_, err = coll.UpdateMany(t.Context(), ids(150, 158), inc) // on the donor's orphans, too
	b.ok(err)
	_, err = coll.DeleteMany(t.Context(), ids(158, 159))
	b.ok(err)
	// What a TTL index deletes: an orphan, and a document by its owner.
	past := bson.D{{Key: "$set", Value: bson.D{{Key: "e", Value: time.Now().Add(-time.Hour)}}}}
	donor, err := driver.Connect(options.Client().ApplyURI(b.lab.Shards()[0].URI()))
	b.ok(err)
	t.Cleanup(func() { _ = donor.Disconnect(context.Background()) })
	b.ok(donor.Database("d").RunCommand(t.Context(), append(bson.D{{Key: "update", Value: "c"},
		{Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: ids(159, 160)}, {Key: "u", Value: past},
			{Key: "multi", Value: true}}}}}, ignored...)).Err())
	_, err = coll.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 157}, {Key: "k.v", Value: 157},
		{Key: "h", Value: nil}}, past)
	b.ok(err)
	b.until(func() bool {
		orphan, err1 := donor.Database("d").Collection("c").CountDocuments(t.Context(), ids(159, 160))
		owned, err2 := there.Collection("c").CountDocuments(t.Context(), ids(157, 158))
		return err1 == nil && err2 == nil && orphan == 0 && owned == 0
	})

	// What the donor deletes when the recipient no longer hears of it is there again.
	expires := func(c *driver.Client, on bool) {
		b.ok(c.Database("admin").RunCommand(t.Context(), bson.D{{Key: "setParameter", Value: 1},
			{Key: "ttlMonitorEnabled", Value: on}}).Err())
	}
	expires(donor, false)
	expires(direct, false)
	_, err = coll.UpdateMany(t.Context(), ids(21, 22), past)
	b.ok(err)
	late := func(mode string) {
		b.ok(donor.Database("admin").RunCommand(context.WithoutCancel(t.Context()),
			bson.D{{Key: "configureFailPoint", Value: "moveChunkHangAtStep5"}, {Key: "mode", Value: mode}}).Err())
	}
	late("alwaysOn")
	defer late("off")
	go func() { moved <- move(20, all[1]) }()
	b.ok(donor.Database("admin").RunCommand(t.Context(), bson.D{{Key: "waitForFailPoint", Value: "moveChunkHangAtStep5"},
		{Key: "timesEntered", Value: 1}, {Key: "maxTimeMS", Value: 30_000}}).Err())
	expires(donor, true)
	b.until(func() bool {
		n, err := donor.Database("d").Collection("c").CountDocuments(t.Context(), ids(21, 22))
		return err == nil && n == 0
	})
	late("off")
	b.ok(<-moved)
	_, err = coll.UpdateMany(t.Context(), ids(20, 22), bson.D{{Key: "$unset", Value: bson.D{{Key: "e", Value: 1}}}})
	b.ok(err)
	until, err := c.Start(t.Context())
	b.ok(err)

	each := oplog.Options{Keep: func(ns string) bool { return ns == "d.c" }}
	m := &model{docs: map[string]bson.Raw{}}
	b.ok(b.span(c, m, start, until.At, each))
	b.compare(m, b.router.Client, until.At, false, "d.c")
	m = &model{docs: map[string]bson.Raw{}}
	b.ok(b.span(c, m, start, middle.At, each))
	again, err := shards.Open(t.Context(), b.router, shards.Options{URI: b.uri,
		Shards: map[string]string{"config": b.lab.ConfigURI()}})
	b.ok(err)
	t.Cleanup(again.Close)
	b.ok(b.span(again, m, middle, until.At, each)) // as after a restart
	b.compare(m, b.router.Client, until.At, false, "d.c")

	naive := b.open()
	naive.TrustAll()
	m = &model{docs: map[string]bson.Raw{}}
	err = b.span(naive, m, start, until.At, each)
	if err == nil {
		err = b.differs(m, "d.c")
	}
	if t.Log(err); err == nil {
		t.Error("nothing is wrong with what all shards tell")
	}
}

// until waits for something.
func (b *bed) until(done func() bool) {
	b.Helper()
	for range 600 {
		if done() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	b.Fatal("it does not happen")
}

// span applies the stream from a position up to another.
func (b *bed) span(c *shards.Cluster, m *model, from stream.Position, until mongo.OpTime, each oplog.Options) error {
	b.Helper()
	err := c.Source(each, merge.Options{}).Run(b.Context(), from, func(_ context.Context, batch *stream.Batch) error {
		for i := range batch.Events {
			if until.Before(batch.Events[i].At) {
				break
			}
			if err := m.apply(&batch.Events[i]); err != nil {
				return err
			}
		}
		if batch.End.Before(until) {
			return nil
		}
		return errReached
	})
	if errors.Is(err, errReached) {
		return nil
	}
	return err
}

// differs tells of a document that is not as the model has it.
func (b *bed) differs(m *model, ns string) error {
	db, name := mongo.SplitNS(ns)
	cur, err := b.router.Client.Database(db).Collection(name).Find(b.Context(), bson.D{})
	b.ok(err)
	var docs []bson.Raw
	b.ok(cur.All(b.Context(), &docs))
	for _, doc := range docs {
		if got := m.docs[ns+" "+doc.Lookup("_id").String()]; !bytes.Equal(got, doc) {
			return fmt.Errorf("%s is %s by the stream", doc, got)
		}
	}
	return nil
}
