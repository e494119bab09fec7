// Package sharded_test has jobs replicate sharded clusters whose chunks move.
package sharded_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/load"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/router"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// bed is a sharded source with a router, and a replica set as the target.
type bed struct {
	*testing.T
	lab            *sharded.Cluster // nil where the source is a replica set
	to             *sharded.Cluster // nil where the target is one
	source, target *driver.Client
	sourceURI      string
	targetURI      string
	seed           uint64
	filters        map[string]string // by collection
	fields         map[string]string // how fields are mapped, by collection
}

// newBed has a source of two shards, of three in a soak: each server costs a second.
func newBed(t *testing.T) *bed {
	t.Helper()
	return newBedOf(t, times(2, 3), false)
}

func newBedOf(t *testing.T, shards int, auth bool) *bed {
	t.Helper()
	lab.NeedServers(t)
	b := &bed{T: t, seed: testseed.Of(t)}
	version := os.Getenv("MILLRACE_TEST_VERSION")
	parameters := map[string]string{"orphanCleanupDelaySecs": "0"}
	if version != "4.4" && b.seed%2 == 0 { // as if all had happened minutes ago; 4.4 has no such parameter
		parameters["minSnapshotHistoryWindowInSeconds"] = "0"
	}
	t.Logf("servers with %v", parameters)
	b.lab = sharded.ForTest(t,
		sharded.Options{Options: lab.Options{Auth: auth, Topology: fmt.Sprintf("sharded:%dx1", shards), Version: version,
			SetParameters: parameters}, RefuseDirect: routed()})
	r, err := router.Start(t.Context(), router.Options{ConfigURI: b.lab.ConfigURI()})
	b.ok(err)
	t.Cleanup(func() { b.ok(r.Close()) })
	b.sourceURI, b.targetURI = r.URI(), lab.ForTest(t, lab.Options{}).URI()
	if auth {
		b.sourceURI = b.lab.Config().RouterURI([]string{r.Host()})
	}
	b.source, b.target = b.client(b.sourceURI), b.client(b.targetURI)
	return b
}

// remembers has the shards serve reads of the past, by which they reshard.
func (b *bed) remembers() {
	b.Helper()
	for _, shard := range b.lab.Shards() {
		b.ok(b.client(shard.URI()).Database("admin").RunCommand(b.Context(),
			bson.D{{Key: "setParameter", Value: 1}, {Key: "minSnapshotHistoryWindowInSeconds", Value: 300}}).Err())
	}
}

// electing gives the bed a source of which all sets have several members.
func (b *bed) electing() {
	b.Helper()
	b.lab = sharded.ForTest(b.T, sharded.Options{Options: lab.Options{Topology: "sharded:2x3",
		SetParameters: map[string]string{"orphanCleanupDelaySecs": "0"}}, ConfigMembers: 3, Routers: 1,
		RefuseDirect: routed()})
	b.sourceURI, b.targetURI = b.lab.URI(), lab.ForTest(b.T, lab.Options{}).URI()
	b.source, b.target = b.client(b.sourceURI), b.client(b.targetURI)
}

// newCluster starts a sharded cluster of shards x members, with two routers. Its shards may refuse to be read directly.
func (b *bed) newCluster(shape string, refuse bool) (c *sharded.Cluster, uri string, routers []*routerProcess) {
	b.Helper()
	c = sharded.ForTest(b.T, sharded.Options{Options: lab.Options{Topology: "sharded:" + shape, TestCommands: true,
		SetParameters: map[string]string{"orphanCleanupDelaySecs": "0",
			"journalCommitInterval": "500"}}, RefuseDirect: refuse}) // a server that is killed forgets what nobody waited for
	var hosts []string
	for range 2 {
		r := &routerProcess{bed: b, config: c.ConfigURI()}
		r.start("")
		b.Cleanup(func() { b.ok(r.Close()) })
		routers, hosts = append(routers, r), append(hosts, r.Host())
	}
	return c, "mongodb://" + strings.Join(hosts, ",") + "/", routers
}

// routerProcess is a router that comes back at its address.
type routerProcess struct {
	*bed
	*router.Router
	config string
}

func (r *routerProcess) start(listen string) {
	r.Helper()
	var err error
	r.Router, err = router.Start(r.Context(), router.Options{ConfigURI: r.config, Listen: listen})
	r.ok(err)
}

func (b *bed) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("seed %d: %v", b.seed, err)
	}
}

func (b *bed) client(uri string) *driver.Client {
	b.Helper()
	c, err := driver.Connect(options.Client().ApplyURI(uri))
	b.ok(err)
	b.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return c
}

// collections makes those that load.Writer writes to.
func (b *bed) collections() {
	b.Helper()
	ctx, all := b.Context(), b.lab.ShardNames()
	b.ok(b.lab.CreateDatabase(ctx, "d", all[0]))
	b.ok(b.lab.ShardCollection(ctx, "d.ranged", sharded.Sharding{Key: bson.D{{Key: "k", Value: 1}}}))
	b.ok(b.lab.Split(ctx, "d.ranged", key(100), key(200), key(300), key(400), key(500)))
	b.ok(b.lab.ShardCollection(ctx, "d.hashed", sharded.Sharding{Key: bson.D{{Key: "_id", Value: "hashed"}}, Chunks: 6}))
	b.ok(b.source.Database("d").CreateCollection(ctx, "plain"))
}

func key(k int) bson.D { return bson.D{{Key: "k", Value: k}} }

// writing writes and moves chunks until it is told to end.
func (b *bed) writing() (end func()) {
	ctx, cancel := context.WithCancel(b.Context())
	g, gctx := errgroup.WithContext(b.Context())
	g.Go(func() error { return load.Run(ctx, b.source, "d", b.seed) })
	g.Go(func() error {
		if b.lab == nil {
			return nil
		}
		r := rand.New(rand.NewPCG(b.seed, 77))
		moves := 0
		for ctx.Err() == nil && gctx.Err() == nil {
			names := b.lab.ShardNames() // one may join
			// Servers were seen to begin moves that never end.
			moving, enough := context.WithTimeout(gctx, 30*time.Second)
			if err := b.lab.MoveChunk(moving, "d.ranged", key(r.IntN(load.Keys)), names[r.IntN(len(names))]); err == nil {
				moves++
			}
			enough()
		}
		b.Logf("%d chunks moved", moves)
		return nil
	})
	return func() {
		b.Helper()
		cancel()
		b.ok(g.Wait())
	}
}

// sameDocuments compares what both sides hold.
func (b *bed) sameDocuments(names ...string) {
	b.Helper()
	var wrong []bson.Raw
	defer func() {
		if len(wrong) > 0 {
			b.historyOf(wrong[0].Lookup("_id"))
			b.changesOf()
		}
	}()
	for _, name := range names {
		want, got := b.documents(b.source, name, b.filters[name], b.fields[name]), b.documents(b.target, name, "", "")
		for id, doc := range want {
			if !bytes.Equal(got[id], doc) {
				b.Errorf("seed %d: %s %s is %s on the target, want %s", b.seed, name, id, got[id], doc)
				wrong = append(wrong, doc)
			}
		}
		for id, doc := range got {
			if want[id] == nil {
				b.Errorf("seed %d: %s has %s, which the source has not", b.seed, name, doc)
				wrong = append(wrong, doc)
			}
		}
		b.Logf("%s: %d documents", name, len(want))
	}
}

// documents are those that the server finds with a filter, as it maps their fields; ""
// are all, and as they are.
func (b *bed) documents(c *driver.Client, name, filter, fields string) map[string]bson.Raw {
	b.Helper()
	which := bson.D{}
	if filter != "" {
		b.ok(bson.UnmarshalExtJSON([]byte(filter), false, &which))
	}
	stages := bson.A{bson.D{{Key: "$match", Value: which}}}
	if fields != "" {
		stages = append(stages, test.Mappings([]string{"d." + name + "=" + fields})("d."+name)...)
	}
	cur, err := c.Database("d").Collection(name).Aggregate(b.Context(), stages)
	b.ok(err)
	var docs []bson.Raw
	b.ok(cur.All(b.Context(), &docs))
	all := map[string]bson.Raw{}
	for _, doc := range docs {
		id := doc.Lookup("_id").String()
		if all[id] != nil {
			b.Errorf("seed %d: %s has %s twice: %s and %s", b.seed, name, id, all[id], doc)
			b.history(fmt.Errorf("%s", id))
		}
		all[id] = doc
	}
	return all
}

// spec is a job from the cluster to the replica set.
func (b *bed) spec() job.Spec {
	level := slog.LevelInfo
	rules := transform.Config{Include: []string{"d.*"}}
	for name, filter := range b.filters {
		rules.Filter = append(rules.Filter, "d."+name+"="+filter)
	}
	for name, one := range b.fields {
		rules.Fields = append(rules.Fields, "d."+name+"="+one)
	}
	slices.Sort(rules.Filter) // the job's name comes from them
	slices.Sort(rules.Fields)
	spec := job.Spec{Source: b.sourceURI, Target: b.targetURI, Mode: job.ModeAll, Until: "never", Rules: rules,
		Capture: job.Capture(kit.Capture()),
		Deps:    job.Deps{Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))}}
	if b.lab != nil {
		spec.Via = job.Via(kit.Via())
	}
	return spec
}

// routed reports sources that are read through their routers alone: their shards refuse to be read.
func routed() bool { return job.Via(kit.Via()) == job.ViaRouters }

// TestSync: a cluster that is written to while its chunks move arrives whole.
func TestSync(t *testing.T) {
	b := newBedOf(t, 3, false)
	b.collections()
	b.fill(20)
	end := b.writing()
	j, done := b.start(b.spec())
	b.following(j, done)
	b.applies(j, done, 1000)
	end()
	b.finish(j, done)
}

// TestUser: a user of the routers and the shards with the roles that are documented
// replicates, and one without is told which shard refuses.
func TestUser(t *testing.T) {
	b := newBedOf(t, 2, true)
	b.collections()
	b.fill(100)
	roles := bson.A{"readAnyDatabase", "clusterMonitor"}
	create := bson.D{{Key: "createUser", Value: "mover"}, {Key: "pwd", Value: "secret"}, {Key: "roles", Value: roles}}
	for _, s := range append(b.lab.Shards(), b.lab.Config()) {
		b.ok(b.client(s.URI()).Database("admin").RunCommand(t.Context(), create).Err())
	}
	spec := b.spec()
	uri, err := url.Parse(b.sourceURI)
	b.ok(err)
	uri.User = url.UserPassword("mover", "secret")
	spec.Source = uri.String()
	end := b.writing()
	j, done := b.start(spec)
	b.following(j, done)
	b.applies(j, done, 200)
	end()
	b.finish(j, done)

	last := b.lab.Shards()[1]
	b.ok(b.client(last.URI()).Database("admin").RunCommand(t.Context(),
		bson.D{{Key: "updateUser", Value: "mover"}, {Key: "roles", Value: bson.A{"clusterMonitor"}}}).Err())
	spec.Job, spec.Capture = "limited", job.CaptureOplog
	limited, err := job.Open(t.Context(), spec)
	b.ok(err)
	plan, err := limited.Plan(t.Context())
	b.ok(err)
	limited.Close()
	if err := plan.Checks.Err(); err == nil ||
		!strings.Contains(err.Error(), "shard "+b.lab.ShardNames()[1]+" privileges") {
		t.Error(err)
	}
	b.ok(b.client(last.URI()).Database("admin").RunCommand(t.Context(), bson.D{{Key: "dropUser", Value: "mover"}}).Err())
	spec.Job = "another"
	if _, err := job.Open(t.Context(), spec); err == nil ||
		!strings.Contains(err.Error(), "shard "+b.lab.ShardNames()[1]) || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}

// TestServersDie: shards, config servers and routers are killed and come back while a
// job copies and follows.
func TestServersDie(t *testing.T) {
	b := newBed(t)
	b.collections()
	b.fill(times(500, 1500))
	end := b.writing()
	spec := b.spec()
	spec.Limits.Bytes = 1 << 20
	j, done := b.start(spec)
	r := rand.New(rand.NewPCG(b.seed, 4))
	sets := append(b.lab.Shards(), b.lab.Config())
	for range times(2, 5) {
		member := sets[r.IntN(len(sets))].Members()[0]
		b.ok(member.Kill())
		pause(r.IntN(1000))
		b.ok(member.Start(t.Context()))
		pause(r.IntN(2000))
	}
	b.following(j, done)
	j.SetLimits(t.Context(), pace.Rates{})
	b.applies(j, done, 1000)
	end()
	b.finish(j, done)
}

// pause lets things happen, for so many milliseconds.
func pause(ms int) { time.Sleep(time.Duration(ms) * time.Millisecond) }

// TestKinds: collections of every kind that a database's own shard holds, in the copy,
// after a job was broken off, and in the changes.
func TestKinds(t *testing.T) {
	b := newBed(t)
	b.ok(b.lab.CreateDatabase(t.Context(), "d", b.lab.ShardNames()[1]))
	db := b.source.Database("d")
	b.ok(db.CreateCollection(t.Context(), "capped", options.CreateCollection().SetCapped(true).SetSizeInBytes(8192)))
	if os.Getenv("MILLRACE_TEST_VERSION") != "4.4" { // there it is a plain one
		b.ok(db.CreateCollection(t.Context(), "series",
			options.CreateCollection().SetTimeSeriesOptions(options.TimeSeries().SetTimeField("at").SetMetaField("of"))))
	}
	b.ok(db.CreateCollection(t.Context(), "folded",
		options.CreateCollection().SetCollation(&options.Collation{Locale: "en", Strength: 1})))
	b.ok(db.CreateView(t.Context(), "view", "capped",
		driver.Pipeline{{{Key: "$match", Value: bson.D{{Key: "n", Value: bson.D{{Key: "$gt", Value: 5}}}}}}}))
	began, n := time.Now().UTC().Truncate(time.Second), 0
	fill := func() {
		t.Helper()
		for range 100 {
			n++
			_, err := db.Collection("capped").InsertOne(t.Context(), bson.D{{Key: "_id", Value: n}, {Key: "n", Value: n}})
			b.ok(err)
			_, err = db.Collection("series").InsertOne(t.Context(),
				bson.D{{Key: "_id", Value: n}, {Key: "at", Value: began.Add(time.Duration(n) * time.Second)},
					{Key: "of", Value: n % 3}})
			b.ok(err)
			_, err = db.Collection("folded").InsertOne(t.Context(), bson.D{{Key: "_id", Value: fmt.Sprintf("A%d", n)}})
			b.ok(err)
		}
	}
	fill()
	first, ended, breakOff := b.begin(b.spec())
	b.following(first, ended)
	fill()
	breakOff()
	fill()
	b.ok(b.lab.MovePrimary(t.Context(), "d", b.lab.ShardNames()[0]))
	fill()
	j, done := b.start(b.spec())
	b.following(j, done)
	b.finish(j, done, "capped", "series", "folded", "view")
	order := func(c *driver.Client) (ids []int32) {
		cur, err := c.Database("d").Collection("capped").
			Find(t.Context(), bson.D{}, options.Find().SetHint(bson.D{{Key: "$natural", Value: 1}}))
		b.ok(err)
		for cur.Next(t.Context()) {
			ids = append(ids, cur.Current.Lookup("_id").Int32())
		}
		return ids
	}
	if want, got := order(b.source), order(b.target); !slices.Equal(want, got) || len(want) == 0 {
		t.Errorf("capped: %v, want %v", got, want)
	}
}

// TestShardJoins: a job goes on with what a new shard does, one that joined while it
// copied, one while it followed, and one while it was stopped.
func TestShardJoins(t *testing.T) {
	lab.Nightly(t)
	b := newBed(t)
	b.collections()
	b.fill(times(300, 1500))
	end := b.writing()
	add := func() string {
		t.Helper()
		name, err := b.lab.AddShard(t.Context())
		b.ok(err)
		b.ok(b.lab.MovePrimary(t.Context(), "d", name))
		return name
	}
	spec := b.spec()
	spec.Limits.Bytes = 200 << 10
	j, ended, breakOff := b.begin(spec)
	b.until(ended, func() bool { return j.Status().Copy.Docs > 10 })
	add()
	j.SetLimits(t.Context(), pace.Rates{})
	b.following(j, ended)
	add()
	n := j.Status().Follow.Operations
	b.applies(j, ended, n+500)
	breakOff()
	last := add()
	j, done := b.start(b.spec())
	b.following(j, done)
	b.applies(j, done, 500)
	end()
	b.ok(b.lab.MoveChunk(t.Context(), "d.ranged", key(250), last))
	_, err := b.source.Database("d").Collection("ranged").
		InsertOne(t.Context(), bson.D{{Key: "_id", Value: "there"}, {Key: "k", Value: 250}})
	b.ok(err)
	b.finish(j, done)
}

// TestShardLeaves: a job goes on after a shard was emptied, removed and stopped.
func TestShardLeaves(t *testing.T) {
	lab.Nightly(t)
	b := newBedOf(t, 3, false)
	b.collections()
	b.fill(100)
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return load.Run(ctx, b.source, "d", b.seed) })
	j, done := b.start(b.spec())
	b.following(j, done)
	last, name := b.lab.Shards()[2], b.lab.ShardNames()[2]
	if !b.reads(name) {
		t.Errorf("the position does not name %s", name)
	}
	b.emptied(name)
	removed := j.Status().Follow.Operations
	b.applies(j, done, removed+300)
	b.until(done, func() bool { return !b.reads(name) })
	b.ok(last.Members()[0].Kill())
	b.applies(j, done, removed+1000)
	cancel()
	b.ok(g.Wait())
	b.finish(j, done)
}

// reads reports that the job's stored position says where a shard goes on.
func (b *bed) reads(shard string) bool {
	b.Helper()
	raw, err := b.target.Database(mongo.StateDB).Collection("jobs").FindOne(b.Context(), bson.D{}).Raw()
	b.ok(err)
	return strings.Contains(raw.Lookup("mark").StringValue(), fmt.Sprintf(`"name":%q`, shard))
}

// TestShardBringsData: what a shard had when it joined arrives when it can be told in
// full. Else the job does not go on without it, nor when such a shard has left again.
func TestShardBringsData(t *testing.T) {
	lab.Nightly(t)
	b := newBed(t)
	b.collections()
	spec := b.spec()
	spec.Rules.Include = []string{"d.*", "brought*.*"}
	spec.AllowMissing = true
	j, done := b.start(spec)
	b.following(j, done)
	bring := func(db string, then func()) string {
		name, err := b.lab.AddShardWith(t.Context(), func(set *lab.Cluster) error {
			_, err := b.client(set.SystemURI()).Database(db).Collection("c").
				InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}})
			then()
			return err
		})
		b.ok(err)
		return name
	}
	until := func(holds func() bool) {
		t.Helper()
		b.until(done, func() bool { // idle shards move on every ten seconds only
			_, err := b.source.Database("d").Collection("plain").InsertOne(t.Context(), bson.D{})
			b.ok(err)
			return holds()
		})
	}
	// Whoever has nothing from after the shard's beginning can tell it in full: the job stands
	// still, in a second before that.
	b.ok(j.Pause(t.Context()))
	applied := func() (at uint32) {
		_, err := fmt.Sscanf(j.Status().Follow.Applied, "%d:", &at)
		b.ok(err)
		return at
	}
	for int64(applied()) >= time.Now().Unix() {
		time.Sleep(10 * time.Millisecond)
	}
	bring("brought1", func() {})
	b.ok(j.Resume(t.Context()))
	arrived := b.target.Database("brought1").Collection("c")
	until(func() bool {
		n, err := arrived.CountDocuments(t.Context(), bson.D{})
		b.ok(err)
		return n == 1
	})
	name := bring("brought2", func() {
		now := uint32(time.Now().Unix()) // of a cluster's time the seconds
		until(func() bool { return applied() > now })
	})
	if err := <-done; err == nil || !strings.Contains(err.Error(), name+" has joined") ||
		!strings.Contains(err.Error(), "brought2") || mongo.HintOf(err) == "" {
		t.Errorf("%v, %s", err, mongo.HintOf(err))
	}
	// Gone again, it has been there all the same.
	b.ok(b.lab.RemoveShard(t.Context(), name))
	_, done = b.start(spec)
	if err := <-done; err == nil || !strings.Contains(err.Error(), "joined the source and left it again") ||
		mongo.HintOf(err) == "" {
		t.Errorf("%v, %s", err, mongo.HintOf(err))
	}
}

// TestReshard: a collection that gets another shard key, and with it another UUID and
// other documents' places, is copied again by itself.
func TestReshard(t *testing.T) {
	b := newBed(t)
	b.collections()
	b.fill(300)
	end := b.writing()
	j, done := b.start(b.spec())
	b.following(j, done)
	end()
	config := b.client(b.lab.ConfigURI()).Database("admin")
	reshards := os.Getenv("MILLRACE_TEST_VERSION") != "4.4" // else the key is refined alone
	if reshards {
		b.ok(config.RunCommand(t.Context(), bson.D{{Key: "setParameter", Value: 1},
			{Key: "reshardingMinimumOperationDurationMillis", Value: 0}}).Err())
		b.remembers()
	}
	stop := b.writing()
	b.ok(b.source.Database("d").RunCommand(t.Context(),
		bson.D{{Key: "createIndexes", Value: "ranged"}, {Key: "indexes", Value: bson.A{
			bson.D{{Key: "key", Value: bson.D{{Key: "k", Value: 1}, {Key: "_id", Value: 1}}}, {Key: "name", Value: "both"}}}}}).
		Err())
	b.ok(b.source.Database("admin").RunCommand(t.Context(), bson.D{{Key: "refineCollectionShardKey", Value: "d.ranged"},
		{Key: "key", Value: bson.D{{Key: "k", Value: 1}, {Key: "_id", Value: 1}}}}).Err())
	if reshards {
		b.ok(config.RunCommand(t.Context(), bson.D{{Key: "_configsvrReshardCollection", Value: "d.hashed"},
			{Key: "key", Value: bson.D{{Key: "k", Value: 1}}},
			{Key: "unique", Value: false}, {Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}},
			{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}}).Err())
	}
	stop()
	if !routed() {
		b.finish(j, done)
		return
	}
	b.ok(j.Finalize(t.Context(), true))
	b.ok(<-done)
	// Change streams report it from 6.1 on.
	if all := j.Status().Differences; len(all) != 1 || !strings.HasPrefix(all[0], "d.hashed: index k_1: ") {
		t.Errorf("finalize names %q, want the index of the new shard key", all)
	}
	b.sameDocuments("ranged", "hashed", "plain")
}

// TestCameBrokenOff: a collection comes among those that are kept, and the job is broken
// off while that is copied.
func TestCameBrokenOff(t *testing.T) {
	lab.Nightly(t)
	b := newBed(t)
	b.ok(b.lab.CreateDatabase(t.Context(), "d", b.lab.ShardNames()[0]))
	const all = 400
	docs := make([]any, all)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}, {Key: "pad", Value: make([]byte, 50_000)}}
	}
	outside := b.source.Database("d").Collection("outside")
	_, err := outside.InsertMany(t.Context(), docs)
	b.ok(err)
	_, err = outside.Indexes().CreateOne(t.Context(), driver.IndexModel{Keys: bson.D{{Key: "k", Value: 1}}})
	b.ok(err)
	spec := b.spec()
	spec.Rules.Exclude, spec.AllowMissing = []string{"d.outside"}, true
	first, ended, breakOff := b.begin(spec)
	b.following(first, ended)
	b.ok(first.SetLimits(t.Context(), pace.Rates{Bytes: 2 << 20}))
	b.ok(b.source.Database("admin").RunCommand(t.Context(),
		bson.D{{Key: "renameCollection", Value: "d.outside"}, {Key: "to", Value: "d.inside"}}).Err())
	inside := b.target.Database("d").Collection("inside")
	var there int64
	b.until(ended, func() bool {
		there, err = inside.EstimatedDocumentCount(t.Context())
		b.ok(err)
		return there > 0
	})
	breakOff()
	if there, err = inside.EstimatedDocumentCount(t.Context()); err != nil || there >= all {
		t.Fatalf("%d documents are copied already, %v", there, err)
	}
	j, done := b.start(spec)
	b.finish(j, done, "inside")
}

// outside makes a collection that rules do not include, with one document on the first shard and
// those of k from 1 to n on the second.
func (b *bed) outside(n int) {
	b.Helper()
	shards := b.lab.ShardNames()
	b.ok(b.lab.CreateDatabase(b.Context(), "d", shards[0]))
	docs := []any{bson.D{{Key: "_id", Value: "first"}, {Key: "k", Value: 0}}}
	for i := range n {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i + 1},
			{Key: "pad", Value: make([]byte, 50_000)}})
	}
	c := b.source.Database("d").Collection("outside")
	_, err := c.InsertMany(b.Context(), docs)
	b.ok(err)
	_, err = c.Indexes().CreateOne(b.Context(), driver.IndexModel{Keys: key(1)})
	b.ok(err)
	b.ok(b.lab.ShardCollection(b.Context(), "d.outside", sharded.Sharding{Key: key(1)}))
	b.ok(b.lab.Split(b.Context(), "d.outside", key(1)))
	b.ok(b.lab.MoveChunk(b.Context(), "d.outside", key(1), shards[1]))
}

// renameIn gives the collection outside a name that rules include.
func (b *bed) renameIn() {
	b.Helper()
	b.ok(b.source.Database("admin").RunCommand(b.Context(),
		bson.D{{Key: "renameCollection", Value: "d.outside"}, {Key: "to", Value: "d.inside"}}).Err())
}

// TestMovedWhileItCame: a collection comes among those whose inserts are left out, and a document
// moves to a shard of it that is copied already. An update moves it, so it is not left out.
func TestMovedWhileItCame(t *testing.T) {
	const docs = 200
	b := newBed(t)
	b.outside(docs)
	spec := b.spec()
	spec.Rules.Exclude, spec.Rules.Skip, spec.AllowMissing = []string{"d.outside"}, []string{"d.*=insert"}, true
	j, done := b.start(spec)
	b.following(j, done)
	b.ok(j.SetLimits(t.Context(), pace.Rates{Bytes: 1 << 20}))
	b.renameIn()
	there := b.target.Database("d").Collection("inside")
	b.until(done, func() bool {
		n, err := there.CountDocuments(t.Context(), bson.D{{Key: "_id", Value: "first"}})
		b.ok(err)
		return n == 1
	})
	n, err := there.CountDocuments(t.Context(), bson.D{})
	if b.ok(err); n > docs {
		t.Fatal("all is copied already")
	}
	_, err = b.source.Database("d").Collection("inside").UpdateOne(t.Context(),
		bson.D{{Key: "_id", Value: docs - 1}, {Key: "k", Value: docs}}, bson.D{{Key: "$set", Value: key(-1)}})
	b.ok(err)
	b.ok(j.SetLimits(t.Context(), pace.Rates{}))
	b.finish(j, done, "inside")
}

// TestKeyChangesWhileCopied: updates are left out, and one of them moves a document to a shard
// that is still being copied, after the copy has read it. The target has it once.
func TestKeyChangesWhileCopied(t *testing.T) {
	const docs = 200
	b := newBedTo(t, "2x1", true)
	b.outside(docs)
	spec := b.spec()
	spec.Rules.Include, spec.Rules.Skip, spec.Limits.Bytes = []string{"d.outside"}, []string{"d.outside=update"}, 1<<20
	j, done := b.start(spec)
	there := b.target.Database("d").Collection("outside")
	b.until(done, func() bool {
		n, err := there.CountDocuments(t.Context(), bson.D{{Key: "_id", Value: "first"}})
		b.ok(err)
		return n == 1
	})
	n, err := there.CountDocuments(t.Context(), bson.D{})
	if b.ok(err); n > docs {
		t.Fatal("all is copied already")
	}
	_, err = b.source.Database("d").Collection("outside").UpdateOne(t.Context(),
		bson.D{{Key: "_id", Value: "first"}, {Key: "k", Value: 0}}, bson.D{{Key: "$set", Value: key(docs + 1)}})
	b.ok(err)
	b.ok(j.SetLimits(t.Context(), pace.Rates{}))
	b.following(j, done)
	b.finish(j, done, "outside")
	if n, err = there.CountDocuments(t.Context(), bson.D{}); err != nil || n != docs+1 {
		t.Errorf("the target has %d documents of %d, %v", n, docs+1, err)
	}
}

// TestMovedDuringCopy: collections that are not sharded change their shard and their UUIDs
// during the copy, and are renamed, replaced, sharded and dropped.
func TestMovedDuringCopy(t *testing.T) {
	b := newBedOf(t, 3, false)
	names := b.lab.ShardNames()
	b.ok(b.lab.CreateDatabase(t.Context(), "d", names[0]))
	db := b.source.Database("d")
	all := []string{"stays", "renamed", "replaced", "sharded", "dropped", "swapped"}
	fill := func(name, mark string) {
		t.Helper()
		var docs []any
		for i := range 100 {
			docs = append(docs, bson.D{{Key: "_id", Value: fmt.Sprint(mark, i)}, {Key: "k", Value: i},
				{Key: "pad", Value: make([]byte, 1000)}})
		}
		_, err := db.Collection(name).InsertMany(t.Context(), docs)
		b.ok(err)
	}
	rename := func(from, to string) {
		t.Helper()
		b.ok(b.source.Database("admin").RunCommand(t.Context(), bson.D{{Key: "renameCollection", Value: "d." + from},
			{Key: "to", Value: "d." + to}, {Key: "dropTarget", Value: true}}).Err())
	}
	for _, name := range all {
		fill(name, "old")
	}
	spec := b.spec()
	spec.Limits.Bytes = 50 << 10
	j, done := b.start(spec)
	b.until(done, func() bool { return j.Status().Copy.Docs > 10 })
	rename("swapped", "target") // has not moved, though there is another one of its name
	fill("swapped", "new")
	b.ok(b.lab.MovePrimary(t.Context(), "d", names[1]))
	rename("renamed", "other")
	rename("replaced", "gone")
	fill("replaced", "new")
	b.ok(db.RunCommand(t.Context(), bson.D{{Key: "createIndexes", Value: "sharded"},
		{Key: "indexes",
			Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "k", Value: 1}}}, {Key: "name", Value: "k"}}}}}).Err())
	b.ok(b.lab.ShardCollection(t.Context(), "d.sharded", sharded.Sharding{Key: bson.D{{Key: "k", Value: 1}}}))
	b.ok(b.lab.Split(t.Context(), "d.sharded", key(50)))
	b.ok(b.lab.MoveChunk(t.Context(), "d.sharded", key(70), names[2]))
	b.ok(db.Collection("dropped").Drop(t.Context()))
	fill("dropped", "new")
	b.ok(b.lab.MovePrimary(t.Context(), "d", names[2]))
	j.SetLimits(t.Context(), pace.Rates{})
	b.following(j, done)
	b.finish(j, done, append(all, "target", "other", "gone")...)
}

// TestMovedBeforeItCame: a collection that a rename has brought inside the filter has
// moved by the time that the job learns of it.
func TestMovedBeforeItCame(t *testing.T) {
	b := newBedOf(t, 3, false)
	names := b.lab.ShardNames()
	b.ok(b.lab.CreateDatabase(t.Context(), "d", names[0]))
	var docs []any
	for i := range 100 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}})
	}
	_, err := b.source.Database("d").Collection("outside").InsertMany(t.Context(), docs)
	b.ok(err)
	spec := b.spec()
	spec.Rules.Exclude, spec.AllowMissing = []string{"d.outside"}, true
	first, ended, breakOff := b.begin(spec)
	b.following(first, ended)
	breakOff()
	b.ok(b.source.Database("admin").RunCommand(t.Context(),
		bson.D{{Key: "renameCollection", Value: "d.outside"}, {Key: "to", Value: "d.inside"}}).Err())
	b.ok(b.lab.MovePrimary(t.Context(), "d", names[1]))
	b.ok(b.lab.MovePrimary(t.Context(), "d", names[2]))
	j, done := b.start(spec)
	b.finish(j, done, "inside")
}

// TestSameIDTwice: two documents of one _id, on different shards, are no one document.
func TestSameIDTwice(t *testing.T) {
	b := newBed(t)
	b.collections()
	b.fill(10)
	for _, k := range []int{150, 250} {
		_, err := b.source.Database("d").Collection("ranged").
			InsertOne(t.Context(), bson.D{{Key: "_id", Value: "twin"}, {Key: "k", Value: k}})
		b.ok(err)
	}
	_, done := b.start(b.spec())
	if err := <-done; err == nil || !strings.Contains(err.Error(), `d.ranged, _id "twin"`) || mongo.HintOf(err) == "" {
		t.Errorf("%v, %s", err, mongo.HintOf(err))
	}
}

// TestTwoKeyIndexes: chunks move during the copy of a collection that has two indexes with
// the pattern of its shard key.
func TestTwoKeyIndexes(t *testing.T) {
	b := newBed(t)
	b.collections()
	b.ok(b.source.Database("d").RunCommand(t.Context(),
		bson.D{{Key: "createIndexes", Value: "ranged"}, {Key: "indexes", Value: bson.A{
			bson.D{{Key: "key", Value: key(1)}, {Key: "name", Value: "folded"},
				{Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}}}}}}}).Err())
	b.fill(300)
	spec := b.spec()
	spec.Limits.Bytes = 100 << 10
	j, done := b.start(spec)
	b.until(done, func() bool { return j.Status().Copy.Docs > 10 })
	names := b.lab.ShardNames()
	for _, k := range []int{50, 150, 250, 350, 450, 550} {
		chunk, err := b.lab.ChunkAt(t.Context(), "d.ranged", key(k))
		b.ok(err)
		b.ok(b.lab.MoveChunk(t.Context(), "d.ranged", key(k), names[(slices.Index(names, chunk.Shard)+1)%len(names)]))
	}
	b.ok(j.SetLimits(t.Context(), pace.Rates{}))
	b.following(j, done)
	b.finish(j, done)
}

// TestCopyWhileChunksMove: chunks move all through a slow copy, which is broken off
// and begun again. What moves is neither missed nor there twice, and what shards hold
// but do not own is left out.
func TestCopyWhileChunksMove(t *testing.T) {
	b := newBed(t)
	b.collections()
	b.fill(times(1200, 4000))
	end := b.writing()
	spec := b.spec()
	spec.Limits.Bytes = 2 << 20
	for _, docs := range []int{times(1000, 3000), times(2000, 6000)} {
		j, ended, breakOff := b.begin(spec)
		b.until(ended, func() bool { return j.Status().Copy.Docs >= int64(docs) })
		breakOff()
	}
	j, done := b.start(spec)
	b.following(j, done)
	b.applies(j, done, 1000)
	end()
	b.finish(j, done)
}

// TestOlderSource: the same from a cluster of which the shards write to documents that
// they do not own, and do not mark that.
func TestOlderSource(t *testing.T) {
	lab.Nightly(t)
	if os.Getenv("MILLRACE_TEST_VERSION") != "" {
		t.Skip("all tests run with older servers")
	}
	for _, version := range []string{"4.4", "5.0"} {
		t.Run(version, func(t *testing.T) {
			t.Setenv("MILLRACE_TEST_VERSION", version)
			TestCopyWhileChunksMove(t)
		})
	}
}

// TestRewritten: collections are converted to capped ones, and renamed into another
// database, for which servers mark all their documents as a migration does.
func TestRewritten(t *testing.T) {
	if os.Getenv("MILLRACE_TEST_VERSION") != "" {
		t.Skip("it is played with all versions")
	}
	for _, version := range []string{"4.4", "5.0", ""} {
		t.Run(cmp.Or(version, "newest"), func(t *testing.T) {
			if version != "" {
				lab.Nightly(t)
			}
			t.Setenv("MILLRACE_TEST_VERSION", version)
			testRewritten(newBed(t))
		})
	}
}

func testRewritten(b *bed) {
	for _, db := range []string{"d", "e"} {
		b.ok(b.lab.CreateDatabase(b.Context(), db, b.lab.ShardNames()[1]))
	}
	docs := make([]any, 200)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}}
	}
	for _, ns := range []string{"d.c", "e.moves"} {
		db, coll := mongo.SplitNS(ns)
		c := b.source.Database(db).Collection(coll)
		_, err := c.InsertMany(b.Context(), docs)
		b.ok(err)
		_, err = c.Indexes().CreateOne(b.Context(), driver.IndexModel{Keys: bson.D{{Key: "k", Value: 1}}})
		b.ok(err)
	}
	spec := b.spec()
	spec.Rules.Include = []string{"d.*", "e.*"}
	j, done := b.start(spec)
	b.following(j, done)
	b.ok(b.source.Database("d").RunCommand(b.Context(),
		bson.D{{Key: "convertToCapped", Value: "c"}, {Key: "size", Value: 1 << 20}}).Err())
	b.ok(b.source.Database("admin").RunCommand(b.Context(),
		bson.D{{Key: "renameCollection", Value: "e.moves"}, {Key: "to", Value: "d.moved"}}).Err())
	_, err := b.source.Database("d").Collection("c").InsertOne(b.Context(), bson.D{{Key: "_id", Value: "last"}})
	b.ok(err)
	b.finish(j, done, "c", "moved")
}

// TestSchemaWhileAllMoves: users make, change, rename and drop collections while chunks
// and the database itself move, and the job is broken off and begun again.
func TestSchemaWhileAllMoves(t *testing.T) {
	b := newBedOf(t, 3, false)
	b.collections()
	b.fill(times(700, 1500))
	end := b.writing()
	enough, stop := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return b.changing(enough) })
	spec := b.spec()
	spec.Limits.Bytes = 2 << 20
	b.brokenOff(spec, times(3, 6))
	j, done := b.start(spec)
	b.following(j, done)
	stop()
	b.ok(g.Wait())
	end()
	b.finish(j, done)
	names, err := b.source.Database("d").ListCollectionNames(t.Context(), bson.D{})
	b.ok(err)
	b.sameDocuments(names...)
}

// changing changes the schema, and moves the database, until it is told to end.
func (b *bed) changing(ctx context.Context) error {
	r := rand.New(rand.NewPCG(b.seed, 99))
	db := b.source.Database("d")
	run := func(cmd ...bson.E) error { return db.RunCommand(b.Context(), bson.D(cmd)).Err() }
	names := b.lab.ShardNames()
	done := map[int]int{}
	for ctx.Err() == nil {
		what, name := r.IntN(8), fmt.Sprintf("x%d", r.IntN(3))
		on := []string{"ranged", "hashed", "plain", name}[r.IntN(4)]
		// A shard without chunks would not hear of it, and differ from the others. A server that
		// movePrimary has copy an index to a collection with documents ends by an invariant.
		if what <= 2 && on == "ranged" {
			on = "hashed"
		}
		var err error
		switch what {
		case 0:
			err = run(bson.E{Key: "createIndexes", Value: on},
				bson.E{Key: "indexes",
					Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "n", Value: 1}}}, {Key: "name", Value: "n"}}}})
		case 1:
			err = run(bson.E{Key: "dropIndexes", Value: on}, bson.E{Key: "index", Value: "n"})
		case 2:
			err = run(bson.E{Key: "collMod", Value: on},
				bson.E{Key: "validationLevel", Value: []string{"off", "strict", "moderate"}[r.IntN(3)]})
		case 3:
			err = run(bson.E{Key: "create", Value: name})
		case 4:
			_ = run(bson.E{Key: "drop", Value: name})
			err = b.lab.ShardCollection(b.Context(), "d."+name,
				sharded.Sharding{Key: bson.D{{Key: "_id", Value: "hashed"}}, Chunks: 3})
		case 5:
			err = run(bson.E{Key: "drop", Value: name})
		case 6:
			err = b.source.Database("admin").RunCommand(b.Context(), bson.D{{Key: "renameCollection", Value: "d." + name},
				{Key: "to", Value: "d.y"}, {Key: "dropTarget", Value: true}}).Err()
		case 7:
			err = b.lab.MovePrimary(b.Context(), "d", names[r.IntN(len(names))])
		}
		if err == nil {
			done[what]++
		}
		_, _ = db.Collection(name).InsertOne(b.Context(), bson.D{{Key: "n", Value: r.IntN(100)}})
	}
	b.Logf("changes by kind: %v", done)
	return nil
}

// TestSoak repeats what is drawn from seeds for MILLRACE_SOAK.
func TestSoak(t *testing.T) {
	d, err := time.ParseDuration(os.Getenv("MILLRACE_SOAK"))
	if err != nil {
		t.Skip("set MILLRACE_SOAK to a duration")
	}
	rounds, seed := 0, testseed.Of(t)
	for began := time.Now(); time.Since(began) < d && !t.Failed(); rounds++ {
		testseed.Set(t, seed+uint64(rounds))
		t.Run("schema", TestSchemaWhileAllMoves)
		t.Run("copy", TestCopyWhileChunksMove)
		t.Run("dying", TestServersDie)
		t.Run("shards join", TestShardJoins)
		t.Run("to shards", TestToShards)
		t.Run("target", TestTargetDies)
	}
	t.Logf("%d rounds", rounds)
}

// times is how much is done: less where nobody asked for a soak.
func times(few, many int) int {
	if os.Getenv("MILLRACE_SOAK") == "" {
		return few
	}
	return many
}

// fill writes documents of a kilobyte to each shard: so many to each collection
// and writer, beside what writers write.
func (b *bed) fill(n int) {
	b.Helper()
	if b.lab != nil {
		names := b.lab.ShardNames()
		for i, k := range []int{150, 250, 350, 450} {
			b.ok(b.lab.MoveChunk(b.Context(), "d.ranged", key(k), names[(i+1)%len(names)]))
		}
	}
	r := rand.New(rand.NewPCG(b.seed, 5))
	for _, name := range []string{"ranged", "hashed", "plain"} {
		var docs []any
		for i := range n {
			docs = append(docs, bson.D{{Key: "_id", Value: 100_000 + i}, {Key: "k", Value: r.IntN(load.Keys)},
				{Key: "pad", Value: make([]byte, 1000)}})
		}
		_, err := b.source.Database("d").Collection(name).InsertMany(b.Context(), docs)
		b.ok(err)
	}
	for i := range 3 {
		w := load.New(b.source, "d", b.seed+1, i)
		for range 50 {
			b.ok(w.Step(b.Context()))
		}
	}
}

// begin runs a job that is to be broken off.
func (b *bed) begin(spec job.Spec) (j *job.Job, ended <-chan error, breakOff func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	j, err := job.Open(ctx, spec)
	b.ok(err)
	done, over := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(over)
		done <- j.Run(ctx)
	}()
	breakOff = sync.OnceFunc(func() {
		cancel()
		<-over
		j.Close()
	})
	b.Cleanup(breakOff)
	return j, done, breakOff
}

// start runs a job.
func (b *bed) start(spec job.Spec) (*job.Job, <-chan error) {
	b.Helper()
	j, err := job.Open(b.Context(), spec)
	b.ok(err)
	b.Cleanup(j.Close)
	done := make(chan error, 1)
	go func() { done <- j.Run(b.Context()) }()
	return j, done
}

// applies waits until the job has applied so many operations.
func (b *bed) applies(j *job.Job, done <-chan error, n int64) {
	b.Helper()
	b.until(done, func() bool { return j.Status().Follow.Operations >= n })
}

// finish finalizes, and compares what both sides have of some collections, by default of
// those that fill has filled.
func (b *bed) finish(j *job.Job, done <-chan error, names ...string) {
	b.Helper()
	b.ok(j.Finalize(b.Context(), true))
	b.ok(<-done)
	if st := j.Status(); len(st.Differences) > 0 {
		b.Error(st.Differences)
		b.changesOf()
	}
	if len(names) == 0 {
		names = []string{"ranged", "hashed", "plain"}
	}
	b.sameDocuments(names...)
}

// until waits for a condition, or fails when the job ends before, when a server has
// crashed, or when it does not come in a time that is enough on a busy machine, too.
func (b *bed) until(done <-chan error, holds func() bool) {
	b.Helper()
	late := time.After(5 * time.Minute)
	for !holds() {
		select {
		case err := <-done:
			b.history(err)
			b.Fatalf("seed %d: the job ended: %v", b.seed, err)
		case <-late:
			b.Fatalf("seed %d: what is waited for does not come", b.seed)
		case <-time.After(20 * time.Millisecond):
			b.noneCrashed()
		}
	}
}

// noneCrashed fails where a server has ended that nobody has ended.
func (b *bed) noneCrashed() {
	b.Helper()
	for _, c := range []*sharded.Cluster{b.lab, b.to} {
		if c == nil {
			continue
		}
		for _, s := range append(c.Shards(), c.Config()) {
			for _, m := range s.Members() {
				if m.Crashed() {
					b.Fatalf("seed %d: member %d of %s has crashed by itself", b.seed, m.Index, s.Name())
				}
			}
		}
	}
}

// following waits until the job follows.
func (b *bed) following(j *job.Job, done <-chan error) {
	b.Helper()
	b.until(done, func() bool { return j.Status().Phase == job.PhaseFollowing })
}

// histories are where oplogs are: of the source, then of a sharded target.
func (b *bed) histories() (all []string) {
	if b.lab == nil {
		all = append(all, b.sourceURI)
	} else {
		for _, s := range b.lab.Shards() {
			all = append(all, s.URI())
		}
	}
	if b.to != nil {
		for _, s := range b.to.Shards() {
			all = append(all, s.URI())
		}
	}
	return all
}

// history logs what the shards' oplogs tell of the document that an error names, or else
// of changes of the schema.
func (b *bed) history(err error) {
	b.Helper()
	named := regexp.MustCompile(`numberInt":"(\d+)`).FindStringSubmatch(fmt.Sprint(err))
	if named == nil {
		b.changesOf()
		return
	}
	id, _ := strconv.Atoi(named[1])
	b.historyOf(id)
}

// historyOf logs what the shards' oplogs tell of a document.
func (b *bed) historyOf(id any) {
	b.Helper()
	type line struct {
		at   bson.Timestamp
		text string
	}
	var all []line
	for i, uri := range b.histories() {
		c := b.client(uri)
		oplog := c.Database("local").Collection("oplog.rs")
		var or bson.A
		for _, f := range []string{"o._id", "o2._id", "o.applyOps.o._id", "o.applyOps.o2._id"} {
			or = append(or, bson.D{{Key: f, Value: id}})
		}
		find := func(filter bson.D) (docs []bson.Raw) {
			cur, err := oplog.Find(b.Context(), filter)
			b.ok(err)
			b.ok(cur.All(b.Context(), &docs))
			for _, d := range docs {
				t, n := d.Lookup("ts").Timestamp()
				all = append(all, line{bson.Timestamp{T: t, I: n}, fmt.Sprintf("s%d %d:%d %.700s", i, t, n, d)})
			}
			return docs
		}
		for _, d := range find(bson.D{{Key: "$or", Value: or}}) {
			if n := d.Lookup("txnNumber"); n.Type != 0 && d.Lookup("op").StringValue() == "c" {
				find(bson.D{{Key: "txnNumber", Value: n}, {Key: "lsid", Value: d.Lookup("lsid")},
					{Key: "o.applyOps", Value: bson.D{{Key: "$exists", Value: false}}}, {Key: "op", Value: "c"}})
			}
		}
	}
	slices.SortFunc(all, func(a, b line) int { return a.at.Compare(b.at) })
	for _, l := range all {
		b.Log(l.text)
	}
}

// changesOf logs what the shards' oplogs tell of changes of the schema.
func (b *bed) changesOf() {
	b.Helper()
	if b.lab == nil {
		return
	}
	var all []string
	for i, s := range append(b.lab.Shards(), b.lab.Config()) {
		cur, err := b.client(s.URI()).Database("local").Collection("oplog.rs").
			Find(b.Context(), bson.D{{Key: "$or", Value: bson.A{
				bson.D{{Key: "op", Value: "c"}, {Key: "ns", Value: "d.$cmd"},
					{Key: "o.applyOps", Value: bson.D{{Key: "$exists", Value: false}}}},
				bson.D{{Key: "ns", Value: "config.databases"}},
			}}})
		b.ok(err)
		var docs []bson.Raw
		b.ok(cur.All(b.Context(), &docs))
		for _, d := range docs {
			t, n := d.Lookup("ts").Timestamp()
			all = append(all, fmt.Sprintf("%d.%06d s%d %.600s", t, n, i, d))
		}
	}
	slices.Sort(all)
	for _, l := range all {
		b.Log(l)
	}
}
