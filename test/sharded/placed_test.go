package sharded_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// keys are how the target's collections of the database d are sharded, and which of
// them the balancer leaves alone.
func (b *bed) keys() string {
	b.Helper()
	cur, err := b.target.Database("config").Collection("collections").
		Find(b.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$regex", Value: "^d[.]"}}}},
			options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	b.ok(err)
	var all []struct {
		NS        string `bson:"_id"`
		Key       bson.D `bson:"key"`
		NoBalance bool   `bson:"noBalance"`
	}
	b.ok(cur.All(b.Context(), &all))
	var texts []string
	for _, c := range all {
		text := strings.TrimPrefix(c.NS, "d.")
		for _, e := range c.Key {
			text += fmt.Sprint(" ", e.Key, ":", e.Value)
		}
		if c.NoBalance {
			text += " off"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

func (b *bed) wants(when, want string) {
	b.Helper()
	if got := b.keys(); got != want {
		b.Errorf("%s: %s, want %s", when, got, want)
	}
}

// insert inserts documents {_id: i, x: i, y: -i} on the source.
func (b *bed) insert(name string, from, to int) {
	b.Helper()
	var docs []any
	for i := from; i < to; i++ {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "x", Value: i}, {Key: "y", Value: -i}})
	}
	_, err := b.source.Database("d").Collection(name).InsertMany(b.Context(), docs)
	b.ok(err)
}

func (b *bed) index(name string, field string, unique bool) {
	b.Helper()
	_, err := b.source.Database("d").Collection(name).Indexes().CreateOne(b.Context(),
		driver.IndexModel{Keys: bson.D{{Key: field, Value: 1}}, Options: options.Index().SetUnique(unique)})
	b.ok(err)
}

// same finalizes, and wants the documents of some collections to be the same, and no
// difference between the catalogs.
func (b *bed) same(j *job.Job, done <-chan error, names ...string) {
	b.Helper()
	b.finish(j, done, names...)
}

// TestKeysByRule: what rules name is sharded in the copy and in the changes, and the
// balancer treats it as before when the job is finalized.
func TestKeysByRule(t *testing.T) {
	b := outward(t, false)
	for _, name := range []string{"orders", "hashed", "plain"} {
		b.insert(name, 0, 2000)
	}
	b.index("orders", "x", true)
	b.index("orders", "y", false)
	spec := b.spec()
	spec.AllowMissing = true
	spec.Shard = []string{"d.orders=x:1", "d.hashed=_id:hashed", "d.late=y:1,_id:1"}
	j, done := b.start(spec)
	b.following(j, done)
	b.wants("following", "hashed _id:hashed off, orders x:1 off")
	db := b.source.Database("d")
	b.insert("late", 0, 100)
	b.ok(db.Collection("hashed").Drop(t.Context()))
	b.insert("hashed", 5000, 5100)
	b.ok(b.source.Database("admin").RunCommand(t.Context(),
		bson.D{{Key: "renameCollection", Value: "d.orders"}, {Key: "to", Value: "d.sales"}}).Err())
	b.insert("orders", 7000, 7100)
	b.insert("sales", 9000, 9100)
	b.index("late", "z", false)
	b.until(done, func() bool {
		return b.keys() == "hashed _id:hashed off, late y:1 _id:1 off, orders x:1 off, sales x:1 off"
	})
	b.same(j, done, "orders", "sales", "hashed", "late", "plain")
	b.wants("finalized", "hashed _id:hashed, late y:1 _id:1, orders x:1, sales x:1")
}

// TestKeysOfShards: collections get the keys that they have on the source, also those
// that are made later, and made again.
func TestKeysOfShards(t *testing.T) {
	lab.Nightly(t)
	b := outward(t, false)
	from := sharded.ForTest(t, sharded.Options{Options: lab.Options{Topology: "sharded:2x1"}, Routers: 1})
	b.sourceURI = from.URI()
	b.source = b.client(b.sourceURI)
	shard := func(name string, key bson.D) {
		t.Helper()
		b.ok(b.source.Database("admin").RunCommand(t.Context(),
			bson.D{{Key: "shardCollection", Value: "d." + name}, {Key: "key", Value: key}}).Err())
	}
	x := bson.D{{Key: "x", Value: 1}}
	zone := func(zone any, name, field string, from, to any) {
		t.Helper()
		b.ok(b.source.Database("admin").RunCommand(t.Context(),
			bson.D{{Key: "updateZoneKeyRange", Value: "d." + name}, {Key: "min", Value: bson.D{{Key: field, Value: from}}},
				{Key: "max", Value: bson.D{{Key: field, Value: to}}}, {Key: "zone", Value: zone}}).Err())
	}
	b.inZone(b.source, "addShardToZone", "s0", "EU")
	b.inZone(b.source, "addShardToZone", "s1", "US")
	for _, name := range []string{"orders", "again", "ruled", "resharded"} {
		shard(name, x)
		b.insert(name, 0, 500)
	}
	zone("EU", "orders", "x", bson.MinKey{}, 100)
	zone("US", "orders", "x", 100, 300)
	zone("US", "again", "x", 0, 10)
	zone("EU", "ruled", "x", 0, 10)
	b.insert("plain", 0, 500)
	b.insert("later", 0, 10)
	spec := b.spec()
	spec.Shard = []string{"d.ruled=none"}
	b.zonePlans(spec)
	spec.Zones = []string{"US=s1"}
	j, done := b.start(spec)
	b.following(j, done)
	b.sameZones("orders", "again")
	b.compliant("orders", "again")
	b.wants("following", "again x:1 off, orders x:1 off, resharded x:1 off")
	config := b.client(from.ConfigURI()).Database("admin")
	b.ok(config.RunCommand(t.Context(), bson.D{{Key: "setParameter", Value: 1},
		{Key: "reshardingMinimumOperationDurationMillis", Value: 0}}).Err())
	b.remembers()
	b.ok(b.source.Database("admin").RunCommand(t.Context(),
		bson.D{{Key: "reshardCollection", Value: "d.resharded"}, {Key: "key", Value: bson.D{{Key: "y", Value: 1}}},
			{Key: "unique", Value: false}, {Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}}}).Err())
	b.insert("resharded", 500, 600)
	zone("EU", "resharded", "y", 0, 10)
	zone(nil, "orders", "x", bson.MinKey{}, 100)
	zone("EU", "orders", "x", 50, 100)
	shard("made", bson.D{{Key: "_id", Value: "hashed"}})
	zone("US", "made", "_id", int64(0), bson.MaxKey{})
	b.insert("made", 0, 100)
	b.ok(b.source.Database("d").Collection("again").Drop(t.Context()))
	shard("again", bson.D{{Key: "y", Value: 1}, {Key: "x", Value: 1}})
	zone("US", "again", "y", 7, 9)
	b.insert("again", 0, 100)
	b.insert("unsharded", 0, 10)
	b.index("later", "x", false)
	shard("later", x) // has documents: nothing tells of it
	b.insert("later", 10, 20)
	b.until(done, func() bool {
		return b.keys() == "again y:1 x:1 off, made _id:hashed off, orders x:1 off, resharded y:1 off"
	})
	b.same(j, done, "orders", "again", "ruled", "plain", "made", "unsharded", "later", "resharded")
	b.wants("finalized", "again y:1 x:1, made _id:hashed, orders x:1, resharded y:1")
	b.sameZones("orders", "again", "made", "resharded")

	killed := b.killedAt(nil)
	for _, point := range []string{"zone.join", "zone.range:2"} {
		for _, name := range []string{"d", "millrace"} {
			b.ok(b.target.Database(name).Drop(t.Context()))
		}
		b.inZone(b.target, "removeShardFromZone", "s0", "EU")
		b.inZone(b.target, "removeShardFromZone", "s1", "US")
		killed(point)
		b.sameZones("orders", "again", "made", "resharded")
		b.compliant("orders", "again", "made", "resharded")
		b.sameDocuments("orders", "again", "made", "resharded")
	}
}

// inZone puts a shard into a zone, or takes it out.
func (b *bed) inZone(c *driver.Client, command, shard, zone string) {
	b.Helper()
	b.ok(c.Database("admin").RunCommand(b.Context(), bson.D{{Key: command, Value: shard}, {Key: "zone", Value: zone}}).
		Err())
}

// zonePlans: what stands in the way of zones is named before anything is written.
func (b *bed) zonePlans(spec job.Spec) {
	b.Helper()
	with := func(rules ...string) job.Spec {
		s := spec
		s.Zones = rules
		return s
	}
	b.says(spec, "ok zones: the target's shards are in these zones: EU has s0 (s0 is added for the name that the "+
		"source's shard has); US has s1 (s1 is",
		"warn zones: d.ruled has zones on the source that are not copied: its shard key on the target is none")
	b.says(with("EU=s1,s0", "US=none"), "zones: EU has s0, s1 (s0, s1 are added)")
	b.says(with("EU=s7"), "fail zones: --zone EU=s7: the target has no such shard s7, or it is being removed | did you "+
		"mean s0? the target has s0, s1")
	b.says(with("UZ=s0"), "fail zones: --zone UZ matches no zone of the source | did you mean")
	b.inZone(b.target, "addShardToZone", "s0", "other")
	b.says(spec, "fail zones: zone EU of d.orders has no shard on the target; on the source it has s0 | name shards of "+
		"the target with --zone EU=shard,shard, or leave the zone out with --zone EU=none")
	b.says(with("EU=s0"), "EU has s0 (s0 is added); US has s1")
	b.inZone(b.target, "removeShardFromZone", "s0", "other")
	set := with("EU=s0")
	set.Source = lab.ForTest(b.T, lab.Options{}).URI()
	set.Shard, set.AllowMissing = nil, true
	b.says(set, "fail zones: the source is not a sharded cluster")
	set.Source, set.Target = spec.Source, set.Source
	b.says(set, "fail zones: the target is not a sharded cluster")
}

// sameZones wants collections to have the same zones on both sides.
func (b *bed) sameZones(names ...string) {
	b.Helper()
	zones := func(c *driver.Client) (texts []string) {
		for _, name := range names {
			cur, err := c.Database("config").Collection("tags").Find(b.Context(), bson.D{{Key: "ns", Value: "d." + name}},
				options.Find().SetSort(bson.D{{Key: "min", Value: 1}}).SetProjection(bson.D{{Key: "_id", Value: 0}}))
			b.ok(err)
			for cur.Next(b.Context()) {
				texts = append(texts, cur.Current.String())
			}
		}
		return texts
	}
	if want, got := zones(b.source), zones(b.target); fmt.Sprint(want) != fmt.Sprint(got) || len(want) < len(names) {
		b.Errorf("zones %s, want %s", got, want)
	}
}

// compliant wants the balancer of the target to have nothing to move.
func (b *bed) compliant(names ...string) {
	b.Helper()
	for _, name := range names {
		raw, err := b.target.Database("admin").
			RunCommand(b.Context(), bson.D{{Key: "balancerCollectionStatus", Value: "d." + name}}).Raw()
		b.ok(err)
		if ok, _ := raw.Lookup("balancerCompliant").BooleanOK(); !ok {
			b.Errorf("%s: %s", name, raw)
		}
	}
}

// TestBalancerComesBack: a job that is broken off leaves the balancer as it was when it
// is dropped, and when it begins anew.
func TestBalancerComesBack(t *testing.T) {
	b := outward(t, false)
	b.insert("orders", 0, 100)
	b.insert("mail", 0, 100)
	spec := b.spec()
	spec.Job, spec.Shard = "moving", []string{"d.orders=x:1", "d.mail=x:1"}
	broken := func(spec job.Spec) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		j, err := job.Open(ctx, spec)
		b.ok(err)
		done := make(chan error, 1)
		go func() { done <- j.Run(ctx) }()
		b.following(j, done)
		cancel()
		<-done
		j.Close()
	}
	broken(spec)
	b.wants("broken off", "mail x:1 off, orders x:1 off")
	anew := spec
	anew.Restart, anew.OnExisting, anew.Shard = true, job.ExistingMerge, nil
	broken(anew)
	b.wants("begun anew", "mail x:1, orders x:1")
	anew.OnExisting, anew.Shard = job.ExistingDrop, []string{"d.orders=_id:hashed"}
	anew.Restart = true
	b.ok(b.target.Database("millrace").Collection("jobs").
		FindOneAndUpdate(t.Context(), bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "shared", Value: false}}}}).Err())
	broken(anew)
	b.wants("dropped and begun anew", "orders _id:hashed off")
	c, err := mongo.Connect(t.Context(), b.targetURI, mongo.Options{AppName: mongo.TargetApp})
	b.ok(err)
	defer c.Close()
	b.ok(job.Hold(t.Context(), c, "moving", slog.New(slog.DiscardHandler),
		func(ctx context.Context, held *job.Stopped) error { return held.Drop(ctx) }))
	b.wants("job dropped", "orders _id:hashed")
	if n, err := b.target.Database("millrace").Collection("placed").CountDocuments(t.Context(), bson.D{}); err != nil ||
		n != 0 {
		t.Errorf("%d notes stay: %v", n, err)
	}
}

// TestKilledWhileSharding: a job that is killed at any step goes on, and the target is
// the same in the end.
func TestKilledWhileSharding(t *testing.T) {
	lab.Nightly(t)
	b := outward(t, false)
	b.insert("orders", 0, 1000)
	b.index("orders", "x", true)
	killed := b.killedAt(nil)
	for _, point := range []string{"shard.before", "shard.made", "shard.noted", "shard.held", "shard.split:2",
		"shard.moved", "shard.placed", "release.before"} {
		killed(point)
		b.wants(point, "orders x:1")
		b.sameDocuments("orders")
		var orders struct{ UUID bson.Binary }
		b.ok(b.target.Database("config").Collection("collections").
			FindOne(t.Context(), bson.D{{Key: "_id", Value: "d.orders"}}).Decode(&orders))
		n, err := b.target.Database("config").Collection("chunks").
			CountDocuments(t.Context(), bson.D{{Key: "uuid", Value: orders.UUID}})
		if b.ok(err); n != 4 {
			t.Errorf("%s: %d chunks", point, n)
		}
		for _, name := range []string{"d", "millrace"} {
			b.ok(b.target.Database(name).Drop(t.Context()))
		}
	}
}

// program gives a function that starts jobs which shard d.orders, with failpoints.
func (b *bed) program() func(until, points string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	b.Helper()
	program := test.BuildMillrace(b.T, "-tags", "failpoint")
	return func(until, points string, args ...string) (*exec.Cmd, *bytes.Buffer) {
		b.Helper()
		cmd := exec.CommandContext(b.Context(), program,
			append([]string{"sync", "--source", b.sourceURI, "--target", b.targetURI, "--include", "d.*", "--shard",
				"d.orders=x:1",
				"--until", until, "--spool-dir", b.TempDir(), "--log-level", "warn"}, args...)...)
		cmd.Env = append(os.Environ(), "MILLRACE_FAILPOINTS="+points)
		out := new(bytes.Buffer)
		cmd.Stdout, cmd.Stderr = out, out
		b.ok(cmd.Start())
		return cmd, out
	}
}

// killedAt gives a function that runs a job which shards d.orders, with a program that is
// killed at a failpoint, and then to its end. What meanwhile does happens once it follows.
func (b *bed) killedAt(meanwhile func()) func(point string) {
	b.Helper()
	sync := b.program()
	return func(point string) {
		b.Helper()
		until := "caught-up"
		if meanwhile != nil {
			until = "never"
		}
		cmd, out := sync(until, point+"=kill")
		if meanwhile != nil {
			b.until(nil, func() bool {
				n, err := b.target.Database(mongo.StateDB).Collection("jobs").
					CountDocuments(b.Context(), bson.D{{Key: "phase", Value: job.PhaseFollowing}})
				return err == nil && n == 1
			})
			meanwhile()
		}
		if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			b.Errorf("%s: %v\n%s", point, err, out)
		}
		cmd, out = sync("caught-up", "")
		if err := cmd.Wait(); err != nil {
			b.Errorf("after %s: %v\n%s", point, err, out)
		}
	}
}

// TestKilledBetweenShards: a document whose shard key changes is on no shard of the target
// for a moment. A job that is killed then makes it good.
func TestKilledBetweenShards(t *testing.T) {
	b := outward(t, false)
	b.insert("orders", 0, 1000)
	b.index("orders", "x", false)
	killed := b.killedAt(func() {
		for id := 0; id < 1000; id += 40 {
			change := bson.A{bson.D{{Key: "$set",
				Value: bson.D{{Key: "x", Value: bson.D{{Key: "$subtract", Value: bson.A{999, "$x"}}}}}}}}
			_, err := b.source.Database("d").Collection("orders").UpdateByID(t.Context(), id, change)
			b.ok(err)
		}
	})
	for _, point := range []string{"send.after/delete:1", "send.after/update:1"} {
		killed(point)
		b.sameDocuments("orders")
		for _, name := range []string{"d", "millrace"} {
			b.ok(b.target.Database(name).Drop(t.Context()))
		}
	}
}

// TestKeysChangeBeforeCopiedAgain: updates are left out, a job is killed while it copies, and all
// keys change before it copies the same documents again. The target has each document once.
func TestKeysChangeBeforeCopiedAgain(t *testing.T) {
	const docs = 1000
	b := outward(t, false)
	b.insert("orders", 0, docs)
	b.index("orders", "x", false)
	sync := b.program()
	cmd, out := sync("caught-up", "copy.after=kill", "--skip", "d.orders=update")
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("%v\n%s", err, out)
	}
	var changes []driver.WriteModel
	for i := range docs {
		changes = append(changes, driver.NewUpdateOneModel().SetFilter(bson.D{{Key: "_id", Value: i}}).
			SetUpdate(bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: docs - 1 - i}}}}))
	}
	_, err := b.source.Database("d").Collection("orders").BulkWrite(t.Context(), changes)
	b.ok(err)
	cmd, out = sync("caught-up", "", "--skip", "d.orders=update")
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	n, err := b.target.Database("d").Collection("orders").CountDocuments(t.Context(), bson.D{})
	if b.ok(err); n != docs {
		t.Errorf("the target has %d documents of %d", n, docs)
	}
}
