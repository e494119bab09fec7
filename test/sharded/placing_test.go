package sharded_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// outward is a bed with a replica set as the source and a cluster with a router as the
// target.
func outward(t *testing.T, auth bool) *bed {
	t.Helper()
	lab.NeedServers(t)
	b := &bed{T: t}
	b.lab = sharded.ForTest(t, sharded.Options{Options: lab.Options{Auth: auth, Topology: "sharded:2x1"}, Routers: 1})
	b.sourceURI, b.targetURI = lab.ForTest(t, lab.Options{}).URI(), b.lab.URI()
	b.source, b.target = b.client(b.sourceURI), b.client(b.targetURI)
	return b
}

// checks are those of a plan that are about sharding, or not in order.
func (b *bed) checks(spec job.Spec) string {
	b.Helper()
	j, err := job.Open(b.Context(), spec)
	b.ok(err)
	defer j.Close()
	plan, err := j.Plan(b.Context())
	b.ok(err)
	var lines []string
	for _, c := range plan.Checks {
		if c.Level != precheck.OK || c.Name == "sharding" || c.Name == "zones" {
			lines = append(lines, string(c.Level)+" "+c.Name+": "+c.Message+" | "+c.Hint)
		}
	}
	return strings.Join(lines, "\n")
}

// says wants each of the texts in the checks of a plan.
func (b *bed) says(spec job.Spec, texts ...string) {
	b.Helper()
	got := b.checks(spec)
	for _, text := range texts {
		if !strings.Contains(got, text) {
			b.Errorf("no %q in\n%s", text, got)
		}
	}
}

// TestShardedTargetPrecheck: what cannot be on a sharded target is named before
// anything is written.
func TestShardedTargetPrecheck(t *testing.T) {
	b := outward(t, false)
	db := b.source.Database("d")
	for _, name := range []string{"orders", "mail", "there", "other"} {
		_, err := db.Collection(name).InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}, {Key: "x", Value: 1}})
		b.ok(err)
	}
	_, err := db.Collection("mail").Indexes().CreateMany(t.Context(), []driver.IndexModel{
		{Keys: bson.D{{Key: "address", Value: 1}}, Options: options.Index().SetUnique(true)},
		{Keys: bson.D{{Key: "x", Value: 1}, {Key: "n", Value: -1}}, Options: options.Index().SetUnique(true)},
		{Keys: bson.D{{Key: "y", Value: 1}}},
	})
	b.ok(err)
	b.ok(db.CreateCollection(t.Context(), "log", options.CreateCollection().SetCapped(true).SetSizeInBytes(4096)))
	b.ok(db.CreateCollection(t.Context(), "series",
		options.CreateCollection().SetTimeSeriesOptions(options.TimeSeries().SetTimeField("at"))))
	b.ok(db.CreateCollection(t.Context(), "folded",
		options.CreateCollection().SetCollation(&options.Collation{Locale: "en"})))
	b.ok(db.CreateView(t.Context(), "seen", "orders", driver.Pipeline{}))
	spec := b.spec()
	with := func(rules ...string) job.Spec {
		s := spec
		s.Shard = rules
		return s
	}
	b.says(spec, "ok sharding: no collection is to be sharded on the target (2 shards)")
	b.says(with("d.orders=x:1", "d.mail=none"),
		"ok sharding: 1 collections are to be sharded over 2 shards, the others are not: d.orders by x:1")
	b.says(with("d.mail=x:1"), "fail sharding: d.mail cannot have its unique indexes when it is sharded by x:1, with "+
		"which a unique index has to begin: address_1 | drop it on the source, or choose another key with --shard d.mail=key")
	b.says(with("d.mail=x:hashed"), "begin: address_1, x_1_n_-1 |")
	b.says(with("d.order=x:1"), "fail sharding: --shard d.order matches nothing on the source | did you mean d.orders?")
	missing := with("d.late=x:1")
	missing.AllowMissing = true
	b.says(missing, "warn sharding: --shard d.late matches nothing on the source")
	b.says(with("d.log=x:1", "d.series=at:1", "d.seen=x:1"),
		"fail sharding: --shard d.log=x:1: d.log is capped and cannot be sharded",
		"d.series is a time-series collection, which millrace does not shard", "d.seen is a view and cannot")
	b.says(with("d.folded=_id:1"), "fail sharding: d.folded has a collation")
	left := with("d.orders=x:1")
	left.Rules = transform.Config{Include: []string{"d.mail"}}
	b.says(left, "warn sharding: --shard d.orders names a collection that the other rules leave out")

	b.ok(b.target.Database("admin").RunCommand(t.Context(),
		bson.D{{Key: "shardCollection", Value: "d.there"}, {Key: "key", Value: bson.D{{Key: "y", Value: 1}}}}).Err())
	b.ok(b.target.Database("d").CreateCollection(t.Context(), "other"))
	merge := with("d.there=x:1", "d.other=x:1")
	merge.OnExisting = job.ExistingMerge
	b.says(merge, "warn sharding: d.there exists on the target and stays as it is: its shard key is y:1, not x:1",
		"warn sharding: d.other exists on the target and stays as it is: its shard key is none, not x:1")
	drop := merge
	drop.OnExisting = job.ExistingDrop
	b.says(drop, "d.other by x:1; d.there by x:1")

	back := with("d.orders=x:1")
	back.Target = lab.ForTest(t, lab.Options{}).URI()
	b.says(back, "fail sharding: the target is not a sharded cluster")
	shard := spec
	shard.Source = b.lab.Shards()[0].URI()
	b.says(shard, "fail deployment: source: ", "is the shard s0 of a sharded cluster")
	shard.AllowShard = true
	b.says(shard, "warn deployment: source: ", "fail identity: the source is a shard of the target, s0")
	elsewhere := sharded.ForTest(t, sharded.Options{Options: lab.Options{Topology: "sharded:1x1"}, Routers: 1})
	hosts := []string{b.lab.Routers()[0].Host(), elsewhere.Routers()[0].Host()}
	mixed := spec
	mixed.Target = "mongodb://" + strings.Join(hosts, ",") + "/"
	b.says(mixed, "fail deployment: target: ", "is a router of another sharded cluster")
}

// TestShardedTargetRights: who may not shard is told so before anything is written.
func TestShardedTargetRights(t *testing.T) {
	b := outward(t, true)
	_, err := b.source.Database("d").Collection("orders").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}})
	b.ok(err)
	admin := b.client(b.lab.Config().URI()).Database("admin")
	roles := bson.A{"readWriteAnyDatabase", "restore", "clusterMonitor"}
	b.ok(admin.RunCommand(t.Context(), bson.D{{Key: "createUser", Value: "mover"}, {Key: "pwd", Value: "secret"},
		{Key: "roles", Value: roles}}).Err())
	spec := b.spec()
	spec.Target = "mongodb://mover:secret@" + b.lab.Routers()[0].Host() + "/"
	b.says(spec, "no collection is to be sharded")
	if got := b.checks(spec); strings.Contains(got, "privileges") {
		t.Error(got)
	}
	spec.Shard = []string{"d.orders=_id:hashed"}
	b.says(spec, "fail target privileges: the user lacks enableSharding, splitChunk, moveChunk on d.orders; update on "+
		"config.collections", "clusterManager")
	b.ok(admin.RunCommand(t.Context(), bson.D{{Key: "grantRolesToUser", Value: "mover"},
		{Key: "roles", Value: bson.A{"clusterManager"}}}).Err())
	if got := b.checks(spec); strings.Contains(got, "privileges") {
		t.Error(got)
	}
}
