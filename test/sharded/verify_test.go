package sharded_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/verify"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/router"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// another is a bed of a second cluster, of two shards, and the target of the first.
func (b *bed) another() *bed {
	b.Helper()
	c := *b
	c.lab = sharded.ForTest(b.T, sharded.Options{Options: lab.Options{Version: os.Getenv("MILLRACE_TEST_VERSION"),
		Topology: "sharded:2x1", SetParameters: map[string]string{"orphanCleanupDelaySecs": "0"}}})
	r, err := router.Start(b.Context(), router.Options{ConfigURI: c.lab.ConfigURI()})
	b.ok(err)
	b.Cleanup(func() { b.ok(r.Close()) })
	c.sourceURI = r.URI()
	c.source = c.client(c.sourceURI)
	return &c
}

// compared are the collections of collections.
var compared = []string{"ranged", "hashed", "plain"}

// planted are differences by namespace and _id, as the one side finds them that has
// what is missing on the other.
type planted map[string]verify.Kind

func (p planted) turned() planted {
	out := planted{}
	for id, kind := range p {
		switch kind {
		case verify.Missing:
			kind = verify.Extra
		case verify.Extra:
			kind = verify.Missing
		}
		out[id] = kind
	}
	return out
}

// plant fills two sides with the same documents but for some: of each kind, in each of
// the ranges of keys.
func (b *bed) plant(one, other *driver.Client, docs int) planted {
	b.Helper()
	want := planted{}
	for _, name := range compared {
		var here, there []any
		for i := range docs {
			doc := bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i % 600}, {Key: "pad", Value: make([]byte, 1000)}}
			id := fmt.Sprintf("d.%s %d", name, i)
			switch at := i % 100; {
			case i < 600 && at == 10:
				here, want[id] = append(here, doc), verify.Missing
			case i < 600 && at == 20:
				there, want[id] = append(there, doc), verify.Extra
			case i < 600 && at == 30:
				here, there = append(here, doc), append(there, append(doc[:2:2], bson.E{Key: "pad", Value: 1}))
				want[id] = verify.Content
			default:
				here, there = append(here, doc), append(there, doc)
			}
		}
		for c, docs := range map[*driver.Client][]any{one: here, other: there} {
			_, err := c.Database("d").Collection(name).InsertMany(b.Context(), docs)
			b.ok(err)
		}
	}
	return want
}

// orphans has each shard hold documents that it does not own, and one shard a copy of
// the collection that is not sharded, as a move leaves it that broke off. The keys from
// 500 on stay where they are.
func (b *bed) orphans(docs ...bson.D) {
	b.Helper()
	owner, err := b.lab.OwnerOf(b.Context(), "d.ranged", key(550))
	b.ok(err)
	names := b.lab.ShardNames()
	for i, name := range names {
		direct, err := b.lab.Direct(name)
		b.ok(err)
		put := func(coll string, doc bson.D) {
			b.Helper()
			_, err := direct.Database("d").Collection(coll).InsertOne(b.Context(), doc)
			b.ok(err)
		}
		if name != owner {
			put("ranged", bson.D{{Key: "_id", Value: "orphan " + name}, {Key: "k", Value: 550}})
			for _, doc := range docs {
				put("ranged", doc)
			}
		}
		if i == len(names)-1 {
			put("plain", bson.D{{Key: "_id", Value: "left"}})
			put("plain", bson.D{{Key: "_id", Value: 20}, {Key: "k", Value: 20}})
		}
	}
}

// moving moves chunks, and the database between all shards but the last, until it is
// told to end.
func (b *bed) moving() (moves *atomic.Int32, end func()) {
	ctx, cancel := context.WithCancel(b.Context())
	var g errgroup.Group
	moves = new(atomic.Int32)
	names := b.lab.ShardNames()
	done := func(err error) {
		if err == nil {
			moves.Add(1)
		}
	}
	for n := range 2 {
		g.Go(func() error {
			r := rand.New(rand.NewPCG(b.seed, uint64(n)))
			on := map[int]int{}
			for i := 1; ctx.Err() == nil; i++ {
				k := 2*r.IntN(2) + n
				on[k] = (on[k] + 1 + r.IntN(len(names)-1)) % len(names)
				done(b.lab.MoveChunk(ctx, "d.ranged", key(100*k), names[on[k]]))
				if n == 0 && i%6 == 0 {
					done(b.lab.MovePrimary(ctx, "d", names[i/6%(len(names)-1)]))
				}
			}
			return nil
		})
	}
	return moves, func() {
		cancel()
		b.ok(g.Wait())
	}
}

func (b *bed) verify(spec verify.Spec) *verify.Report {
	b.Helper()
	if len(spec.Rules.Include) == 0 {
		spec.Rules = transform.Config{Include: []string{"d.*"}}
	}
	spec.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	r, err := verify.Clusters(b.Context(), spec)
	b.ok(err)
	return r
}

// finds fails unless a comparison finds what was planted and nothing else.
func (b *bed) finds(r *verify.Report, want planted) {
	b.Helper()
	got := planted{}
	for _, d := range r.Differences {
		got[d.NS+" "+fmt.Sprint(d.ID.Int32())] = d.Kind
	}
	if !maps.Equal(got, want) {
		for id, kind := range want {
			if got[id] != kind {
				b.Errorf("seed %d: %s is %q, want %q", b.seed, id, got[id], kind)
			}
		}
		for id, kind := range got {
			if want[id] == "" {
				b.Errorf("seed %d: %s is %q, and there is no difference", b.seed, id, kind)
			}
		}
	}
	if int(r.Count) != len(r.Differences) || len(r.Schema) > 0 || r.Same != (len(want) == 0) {
		b.Errorf("seed %d: %d differences, same %t, of catalogs: %+v", b.seed, r.Count, r.Same, r.Schema)
	}
}

// keyIndexes makes the indexes of the shard keys on a replica set.
func (b *bed) keyIndexes(c *driver.Client) {
	b.Helper()
	for name, index := range map[string]bson.D{"ranged": {{Key: "k", Value: 1}},
		"hashed": {{Key: "_id", Value: "hashed"}}} {
		_, err := c.Database("d").Collection(name).Indexes().CreateOne(b.Context(), driver.IndexModel{Keys: index})
		b.ok(err)
	}
}

// TestVerify: of each pairing every difference is found and nothing else, while chunks
// and databases move. Orphans count nowhere, and hide nothing.
func TestVerify(t *testing.T) {
	b := newBedOf(t, 3, false)
	c := b.another()
	const docs = 1500
	for _, one := range []*bed{b, c} {
		one.collections()
		names := one.lab.ShardNames()
		for i, k := range []int{150, 250, 350, 450} {
			one.ok(one.lab.MoveChunk(t.Context(), "d.ranged", key(k), names[(i+1)%len(names)]))
		}
	}
	b.keyIndexes(b.target)
	want := b.plant(b.source, b.target, docs)
	// The second cluster has what the replica set has.
	for _, name := range compared {
		cur, err := b.target.Database("d").Collection(name).Find(t.Context(), bson.D{})
		b.ok(err)
		var all []bson.Raw
		b.ok(cur.All(t.Context(), &all))
		_, err = c.source.Database("d").Collection(name).InsertMany(t.Context(), all)
		b.ok(err)
	}
	// What one side lacks, its shards have as orphans; so their copies must not count.
	lacks := func(i int) bson.D {
		return bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}, {Key: "pad", Value: make([]byte, 1000)}}
	}
	b.orphans(lacks(520))
	c.orphans(lacks(510))

	for _, p := range []struct {
		name           string
		source, target string
		want           planted
		of             [2]int          // documents on each side
		always         []verify.Method // the others in the matrix
	}{
		{"sharded to replica set", b.sourceURI, b.targetURI, want, [2]int{docs - 6, docs - 6}, nil},
		{"replica set to sharded", b.targetURI, b.sourceURI, want.turned(), [2]int{docs - 6, docs - 6},
			[]verify.Method{verify.Digest}},
		{"three shards to two", b.sourceURI, c.sourceURI, want, [2]int{docs - 6, docs - 6},
			[]verify.Method{verify.Digest, verify.Ranges}},
		{"two shards to three", c.sourceURI, b.sourceURI, want.turned(), [2]int{docs - 6, docs - 6}, nil},
	} {
		if lab.InMatrix() {
			p.always = []verify.Method{verify.Digest, verify.Ranges}
		}
		for _, method := range p.always {
			t.Run(p.name+" by "+string(method), func(t *testing.T) {
				moves, end := b.moving()
				others, endOthers := c.moving()
				runs := 0
				for began := time.Now(); !t.Failed() && (runs < 2 || moves.Load() < 5 && time.Since(began) < time.Minute); runs++ {
					r := b.verify(verify.Spec{Source: p.source, Target: p.target,
						Options: verify.Options{Method: method, RangeBytes: 200_000, Workers: 4, MaxBufferedBytes: 4 << 20}})
					b.finds(r, p.want)
					for _, one := range r.Collections {
						if one.SourceDocs != int64(p.of[0]) || one.TargetDocs != int64(p.of[1]) || one.Method != method {
							t.Errorf("%s has %d documents and %d, by %s", one.NS, one.SourceDocs, one.TargetDocs, one.Method)
						}
					}
					if len(r.Notes) > 0 {
						t.Error(r.Notes)
					}
					if b.Failed() {
						t.Fail()
					}
				}
				end()
				endOthers()
				t.Logf("%d runs, %d moves, and %d of the other cluster", runs, moves.Load(), others.Load())
			})
		}
	}
	t.Run("catalogs", func(t *testing.T) { b.catalogs(c) })
}

// catalogs has shard keys and zones differ. Those of a replica set and a sharded cluster
// cannot.
func (b *bed) catalogs(c *bed) {
	b.Helper()
	ctx := b.Context()
	zone := func(one *bed, from, to int) {
		b.Helper()
		admin := one.source.Database("admin")
		b.ok(admin.RunCommand(ctx, bson.D{{Key: "addShardToZone", Value: one.lab.ShardNames()[0]},
			{Key: "zone", Value: "east"}}).Err())
		b.ok(admin.RunCommand(ctx, bson.D{{Key: "updateZoneKeyRange", Value: "d.zoned"}, {Key: "min", Value: key(from)},
			{Key: "max", Value: key(to)}, {Key: "zone", Value: "east"}}).Err())
	}
	shard := func(one *bed, name string, s sharded.Sharding) {
		b.Helper()
		b.ok(one.lab.ShardCollection(ctx, "d."+name, s))
	}
	byK := sharded.Sharding{Key: key(1)}
	byLong := sharded.Sharding{Key: bson.D{{Key: "k", Value: int64(1)}}}
	unique := sharded.Sharding{Key: key(1), Unique: true}
	hashed := sharded.Sharding{Key: bson.D{{Key: "_id", Value: "hashed"}}}
	for _, name := range []string{"alike", "keys", "unique", "zoned", "alone"} {
		b.ok(b.target.Database("d").CreateCollection(ctx, name))
	}
	shard(b, "alike", byK)
	shard(c, "alike", byLong)
	shard(b, "keys", byK)
	shard(c, "keys", hashed)
	shard(b, "unique", unique)
	shard(c, "unique", byK)
	shard(b, "zoned", byK)
	shard(c, "zoned", byK)
	zone(b, 10, 20)
	zone(c, 10, 30)
	shard(b, "alone", byK)
	b.ok(c.source.Database("d").CreateCollection(ctx, "alone"))
	expect := func(r *verify.Report, want ...string) {
		b.Helper()
		var got []string
		for _, d := range r.Schema {
			got = append(got, d.NS+" "+d.What)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			b.Errorf("%+v, want %q", r.Schema, want)
		}
	}
	expect(b.verify(verify.Spec{Source: b.sourceURI, Target: c.sourceURI}),
		"d.alone index k_1", "d.alone shard key", "d.keys index k_1", "d.keys shard key", "d.unique index k_1, unique",
		"d.unique shard key", "d.zoned zones")
	// The index of a shard key is no difference, but one that refuses documents is.
	expect(b.verify(verify.Spec{Source: b.targetURI, Target: b.sourceURI}), "d.unique index k_1")
	expect(b.verify(verify.Spec{Source: b.targetURI, Target: c.sourceURI}))
}

// TestVerifySeveral: two documents of one _id, on different shards, are not what a
// replica set has that has one of them.
func TestVerifySeveral(t *testing.T) {
	b := newBedOf(t, 3, false)
	b.collections()
	b.keyIndexes(b.target)
	b.ok(b.target.Database("d").CreateCollection(t.Context(), "plain"))
	for i, k := range []int{150, 250, 350} {
		b.ok(b.lab.MoveChunk(t.Context(), "d.ranged", key(k), b.lab.ShardNames()[i]))
	}
	coll := b.source.Database("d").Collection("ranged")
	put := func(on *driver.Collection, id, k int) {
		t.Helper()
		_, err := on.InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}, {Key: "k", Value: k}})
		b.ok(err)
	}
	want := planted{}
	for i := range 40 {
		put(coll, i, 150)
		switch i % 10 {
		case 1, 2, 3: // one more, before and behind it in the order of shards
			put(coll, i, 250)
			put(b.target.Database("d").Collection("ranged"), i, []int{0, 150, 250, 350}[i%10])
			want[fmt.Sprintf("d.ranged %d", i)] = verify.Content
		default:
			put(b.target.Database("d").Collection("ranged"), i, 150)
		}
	}
	for _, method := range []verify.Method{verify.Digest, verify.Ranges} {
		for _, online := range []bool{false, true} {
			o := verify.Options{Method: method, Online: online,
				Recheck: verify.RecheckOptions{Quiet: 100 * time.Millisecond, Every: 20 * time.Millisecond}}
			for _, uris := range [][2]string{{b.sourceURI, b.targetURI}, {b.targetURI, b.sourceURI}} {
				r := b.verify(verify.Spec{Source: uris[0], Target: uris[1], Options: o})
				b.finds(r, want)
				if len(r.Differences) == 0 || !strings.Contains(r.Differences[0].Detail, "on different shards") {
					t.Errorf("%+v", r.Differences)
				}
			}
		}
	}

	// Both come before the target's document, which has another place in its order.
	b.ok(b.lab.ShardCollection(t.Context(), "d.order", sharded.Sharding{Key: key(1)}))
	b.ok(b.lab.Split(t.Context(), "d.order", key(200)))
	b.ok(b.lab.MoveChunk(t.Context(), "d.order", key(250), b.lab.ShardNames()[1]))
	b.ok(b.target.Database("d").CreateCollection(t.Context(), "order",
		options.CreateCollection().SetCollation(&options.Collation{Locale: "en", NumericOrdering: true})))
	for _, d := range []struct {
		on *driver.Client
		id string
		k  int
	}{
		{b.source, "10", 150}, {b.source, "10", 250}, {b.source, "11", 150}, {b.source, "11", 250}, {b.source, "9", 250},
		{b.target, "9", 250}, {b.target, "10", 250}, {b.target, "11", 150},
	} {
		_, err := d.on.Database("d").Collection("order").
			InsertOne(t.Context(), bson.D{{Key: "_id", Value: d.id}, {Key: "k", Value: d.k}})
		b.ok(err)
	}
	r := b.verify(verify.Spec{Source: b.sourceURI, Target: b.targetURI, Options: verify.Options{Method: verify.Ranges}})
	found := 0
	for _, d := range r.Differences {
		if d.NS == "d.order" && d.Kind == verify.Content {
			found++
		}
	}
	if found != 2 {
		t.Errorf("%+v", r.Differences)
	}
}

// TestVerifyWhileWritten: while users write and a job follows, and while chunks move,
// nothing is called a difference that is none, and what is one is found.
func TestVerifyWhileWritten(t *testing.T) {
	lab.Nightly(t)
	b := newBed(t)
	b.collections()
	b.fill(1500)
	end := b.writing()
	j, done := b.start(b.spec())
	b.following(j, done)
	o := verify.Options{Method: verify.Digest, Online: true, RangeBytes: 200_000, Workers: 4,
		Recheck: verify.RecheckOptions{For: 2 * time.Minute, Quiet: 10 * time.Second, Every: 100 * time.Millisecond}}
	want := planted{}
	for _, name := range compared {
		coll := b.target.Database("d").Collection(name)
		for i := range 5 {
			id := 100_000 + 100*i
			_, err := coll.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: id}})
			b.ok(err)
			want[fmt.Sprintf("d.%s %d", name, id)] = verify.Missing
			_, err = coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: -id}})
			b.ok(err)
			want[fmt.Sprintf("d.%s %d", name, -id)] = verify.Extra
		}
	}
	b.finds(b.verify(verify.Spec{Source: b.sourceURI, Target: b.targetURI, Options: o}), want)
	end()
	b.ok(j.Finalize(t.Context(), true))
	b.ok(<-done)
}

// TestVerifyThroughRouters: where shards cannot be read, their routers are, and that is
// said. An address that was given has to be right.
func TestVerifyThroughRouters(t *testing.T) {
	lab.Nightly(t)
	b := newBedOf(t, 2, true)
	b.collections()
	b.keyIndexes(b.target)
	want := b.plant(b.source, b.target, 1200)
	b.orphans(bson.D{{Key: "_id", Value: 520}, {Key: "k", Value: 520}})
	user := func(on *lab.Cluster, cmd, name string, roles ...any) {
		t.Helper()
		c := bson.D{{Key: cmd, Value: name}, {Key: "roles", Value: bson.A(roles)}}
		if cmd == "createUser" {
			c = append(c, bson.E{Key: "pwd", Value: "secret"})
		}
		b.ok(b.client(on.URI()).Database("admin").RunCommand(t.Context(), c).Err())
	}
	user(b.lab.Config(), "createUser", "reader", "readAnyDatabase", "clusterMonitor")
	uri, err := url.Parse(b.sourceURI)
	b.ok(err)
	uri.User = url.UserPassword("reader", "secret")
	spec := verify.Spec{Source: uri.String(), Target: b.targetURI, Options: verify.Options{Method: verify.Digest}}
	find := func(note string) {
		t.Helper()
		r := b.verify(spec)
		b.finds(r, want)
		if all := strings.Join(r.Notes, "\n"); note == "" && all != "" || !strings.Contains(all, note) ||
			strings.Contains(all, "secret") {
			t.Errorf("notes: %q, want %q", r.Notes, note)
		}
	}
	find("the source was read through its routers: shard s") // shards do not know the user
	for _, s := range b.lab.Shards() {
		user(s, "createUser", "reader", "clusterMonitor")
	}
	find("the source was read through its routers") // he may not read there
	for _, s := range b.lab.Shards() {
		user(s, "updateUser", "reader", "readAnyDatabase", "clusterMonitor")
	}
	find("")
	for name, given := range map[string]map[string]string{
		`no shard "s9"`: {"s9": b.lab.Shards()[0].URI()},
		"shard s0":      {"s0": b.lab.Shards()[1].URI()},
		"has no shards": nil,
	} {
		wrong := spec
		if wrong.SourceShards = given; given == nil {
			wrong.TargetShards = map[string]string{"s0": b.targetURI}
		}
		if _, err := verify.Clusters(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %q", err, name)
		}
	}
	spec.SourceShards = map[string]string{"s1": b.lab.Shards()[1].URI()}
	find("")
}
