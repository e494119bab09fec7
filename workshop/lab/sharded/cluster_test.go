package sharded

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/router"
)

// must fails the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// on is a collection of a shard, read past all routers.
func on(t *testing.T, c *Cluster, shard, ns string) *mongo.Collection {
	t.Helper()
	client, err := c.Direct(shard)
	must(t, err)
	db, coll, _ := strings.Cut(ns, ".")
	return client.Database(db).Collection(coll)
}

// count is how many documents a shard has, orphans included.
func count(t *testing.T, c *Cluster, shard, ns string, filter any) int64 {
	t.Helper()
	n, err := on(t, c, shard, ns).CountDocuments(t.Context(), filter)
	must(t, err)
	return n
}

// key makes {k: n}.
func key(n any) bson.D { return bson.D{{Key: "k", Value: n}} }

// fill inserts documents {_id: k, k: k} from one key to another.
func fill(t *testing.T, c *Cluster, ns string, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		must(t, c.Insert(t.Context(), ns, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}}))
	}
}

// pids are the ids of all processes.
func pids(c *Cluster) []int {
	var ids []int
	for _, s := range append(c.Shards(), c.Config()) {
		for _, m := range s.Members() {
			ids = append(ids, m.Pid())
		}
	}
	return ids
}

// ended reports whether no process has one of the ids: those that this one has
// started were waited for.
func ended(ids []int) bool {
	return !slices.ContainsFunc(ids, func(id int) bool { return !errors.Is(syscall.Kill(id, 0), syscall.ESRCH) })
}

func TestTopology(t *testing.T) {
	for text, want := range map[string]topology{"sharded:2x1": {2, 1}, "sharded:3x3": {3, 3}} {
		if got, err := parseTopology(text); err != nil || got != want {
			t.Errorf("%s is %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "rs:3", "sharded", "sharded:", "sharded:2", "sharded:0x1", "sharded:1x0",
		"sharded:99x1", "sharded:2x1x1", "sharded:axb"} {
		if got, err := parseTopology(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

// What a cluster does, on each version.
func TestCluster(t *testing.T) {
	lab.Nightly(t)
	for _, server := range lab.Versions("4.2", "4.4", "5.0") {
		t.Run(server, func(t *testing.T) {
			// A chunk does not return to a shard that has its orphans still.
			c := ForTest(t, Options{Options: lab.Options{
				Version: server, SetParameters: map[string]string{"orphanCleanupDelaySecs": "0"},
			}})
			must(t, c.Balancer(t.Context(), false))
			must(t, c.CreateDatabase(t.Context(), "db", "s0"))
			t.Run("range", func(t *testing.T) { testRange(t, c) })
			t.Run("hashed", func(t *testing.T) { testHashed(t, c) })
			t.Run("compound", func(t *testing.T) { testCompound(t, c) })
			t.Run("stale", func(t *testing.T) { testStale(t, c) })
			t.Run("primary", func(t *testing.T) { testPrimary(t, c) })
			t.Run("balancer", func(t *testing.T) { testBalancer(t, c) })
			t.Run("shards", func(t *testing.T) { testShards(t, c) })
			ids := pids(c)
			must(t, c.Stop())
			if !ended(ids) {
				t.Errorf("one of %v runs still", ids)
			}
			must(t, c.Stop()) // once more does no harm
		})
	}
}

// Chunks are cut, moved with their documents and joined again.
func testRange(t *testing.T, c *Cluster) {
	const ns = "db.range"
	must(t, c.ShardCollection(t.Context(), ns, Sharding{Key: key(1), Unique: true}))
	must(t, c.Split(t.Context(), ns, key(0), key(10), key(0)))
	fill(t, c, ns, -5, 15)
	if n := count(t, c, "s0", ns, bson.D{}); n != 20 {
		t.Errorf("the primary shard has %d documents", n)
	}
	must(t, c.MoveChunk(t.Context(), ns, key(0), "s1"))
	if n := count(t, c, "s1", ns, bson.D{}); n != 10 {
		t.Errorf("the recipient has %d documents", n)
	}
	must(t, c.MoveRange(t.Context(), ns, key(12), key(bson.MaxKey{}), "s1"))
	if n := count(t, c, "s1", ns, bson.D{}); n != 13 {
		t.Errorf("the recipient has %d documents then", n)
	}
	chunks, err := c.Chunks(t.Context(), ns)
	must(t, err)
	var owners []string
	for _, chunk := range chunks {
		owners = append(owners, chunk.Shard)
	}
	if !slices.Equal(owners, []string{"s0", "s1", "s0", "s1"}) {
		t.Fatalf("the chunks are %+v", chunks)
	}
	if h := chunks[1].History; len(h) != 2 || h[0].Shard != "s1" || h[1].Shard != "s0" || !h[0].Since.After(h[1].Since) {
		t.Errorf("the history of a chunk is %+v", h)
	}
	for k, want := range map[int]string{-1: "s0", 0: "s1", 10: "s0", 12: "s1"} {
		owner, err := c.OwnerOf(t.Context(), ns, key(k))
		if must(t, err); owner != want {
			t.Errorf("%d is owned by %s", k, owner)
		}
	}
	must(t, c.MoveRange(t.Context(), ns, key(10), key(12), "s1"))
	must(t, c.Merge(t.Context(), ns, key(0), key(bson.MaxKey{})))
	if chunks, err = c.Chunks(t.Context(), ns); err != nil || len(chunks) != 2 {
		t.Errorf("after the merge the chunks are %+v, %v", chunks, err)
	}
}

// Documents of a hashed collection are owned by whom the chunk map says: a shard
// takes a versioned write of any, and a versioned read finds only what it owns.
func testHashed(t *testing.T, c *Cluster) {
	const ns = "db.hashed"
	must(t, c.ShardCollection(t.Context(), ns, Sharding{Key: bson.D{{Key: "_id", Value: "hashed"}}, Chunks: 4}))
	chunks, err := c.Chunks(t.Context(), ns)
	if must(t, err); len(chunks) != 4 {
		t.Errorf("it begins with %d chunks", len(chunks))
	}
	ids := bson.A{1, 2.5, "text", bson.NewObjectID(), true, bson.D{{Key: "a", Value: 1}}, int64(1 << 40),
		bson.NewDateTimeFromTime(time.Now())}
	for i := range 40 {
		ids = append(ids, fmt.Sprint("user", i))
	}
	for _, id := range ids {
		must(t, c.Insert(t.Context(), ns, bson.D{{Key: "_id", Value: id}}))
	}
	total := 0
	for _, name := range c.ShardNames() {
		n := owned(t, c, name, ns)
		if total += n; n == 0 {
			t.Errorf("%s owns nothing", name)
		}
	}
	if total != len(ids) {
		t.Errorf("of %d documents %d are owned where they are", len(ids), total)
	}
}

// A key of several fields, one of them hashed and inside another: 4.2 has none.
func testCompound(t *testing.T, c *Cluster) {
	if c.server == (router.Version{4, 2}) {
		t.Skip("4.2 hashes only a key of one field")
	}
	const ns = "db.compound"
	doc := func(region, id any) bson.D {
		return bson.D{{Key: "region", Value: region}, {Key: "user", Value: bson.D{{Key: "id", Value: id}}}}
	}
	must(t, c.ShardCollection(t.Context(), ns,
		Sharding{Key: bson.D{{Key: "region", Value: 1}, {Key: "user.id", Value: "hashed"}}}))
	middle := bson.D{{Key: "region", Value: 5}, {Key: "user.id", Value: int64(0)}}
	must(t, c.Split(t.Context(), ns, middle))
	must(t, c.MoveChunk(t.Context(), ns, middle, "s1"))
	for i := range 40 {
		must(t, c.Insert(t.Context(), ns, doc(5, i)))
	}
	must(t, c.Insert(t.Context(), ns, doc(4, "a")))
	must(t, c.Insert(t.Context(), ns, doc(6, "a")))
	must(t, c.Insert(t.Context(), ns, bson.D{{Key: "_id", Value: "no key"}})) // null is below all numbers
	a, b := owned(t, c, "s0", ns), owned(t, c, "s1", ns)
	if a+b != 43 || a < 10 || b < 10 {
		t.Errorf("the shards own %d and %d documents", a, b)
	}
}

// owned counts what a shard owns of what it has.
func owned(t *testing.T, c *Cluster, shard, ns string) int {
	t.Helper()
	at, err := c.ShardVersion(t.Context(), ns, shard)
	must(t, err)
	_, name, _ := strings.Cut(ns, ".")
	var reply struct {
		Cursor struct {
			Batch []bson.Raw `bson:"firstBatch"`
		} `bson:"cursor"`
	}
	db := on(t, c, shard, ns).Database()
	kit.Until(t, "the shard knows its chunks", func() bool {
		err := db.RunCommand(t.Context(), bson.D{
			{Key: "find", Value: name}, {Key: "batchSize", Value: 10000}, {Key: "shardVersion", Value: at},
		}).Decode(&reply)
		if err != nil && !passes(err) {
			t.Fatal(err)
		}
		return err == nil
	})
	return len(reply.Cursor.Batch)
}

// A shard refuses a write with the version from before a move.
func testStale(t *testing.T, c *Cluster) {
	const ns = "db.stale"
	must(t, c.ShardCollection(t.Context(), ns, Sharding{Key: key(1)}))
	must(t, c.Split(t.Context(), ns, key(0)))
	before, err := c.ShardVersion(t.Context(), ns, "s0")
	must(t, err)
	must(t, c.MoveChunk(t.Context(), ns, key(0), "s1"))
	err = on(t, c, "s0", ns).Database().RunCommand(t.Context(), bson.D{
		{Key: "insert", Value: "stale"}, {Key: "documents", Value: bson.A{key(1)}}, {Key: "shardVersion", Value: before},
	}).Err()
	if !stale(err) {
		t.Errorf("the old owner says %v", err)
	}
}

// A database moves to another primary shard, with its unsharded collections.
func testPrimary(t *testing.T, c *Cluster) {
	must(t, c.CreateDatabase(t.Context(), "moves", "s0"))
	for i := range 5 {
		must(t, c.Insert(t.Context(), "moves.c", key(i)))
	}
	must(t, c.MovePrimary(t.Context(), "moves", "s1"))
	primary, err := c.Primary(t.Context(), "moves")
	if err != nil || primary != "s1" {
		t.Errorf("the primary shard is %s, %v", primary, err)
	}
	if before, after := count(t, c, "s0", "moves.c", bson.D{}), count(t, c, "s1", "moves.c", bson.D{}); before != 0 ||
		after != 5 {
		t.Errorf("%d documents are where they were, %d where they should be", before, after)
	}
	must(t, c.Insert(t.Context(), "moves.c", key(5)))
}

// The balancer, once on, moves chunks by itself.
func testBalancer(t *testing.T, c *Cluster) {
	const ns = "db.balanced"
	must(t, c.ChunkSize(t.Context(), 1))
	must(t, c.ShardCollection(t.Context(), ns, Sharding{Key: key(1)}))
	pad := strings.Repeat("x", 200_000)
	for i := range 40 {
		must(t, c.Split(t.Context(), ns, key(i)))
		must(t, c.Insert(t.Context(), ns, bson.D{{Key: "k", Value: i}, {Key: "pad", Value: pad}}))
	}
	state, err := c.BalancerState(t.Context())
	if must(t, err); state.Mode != "off" {
		t.Errorf("the balancer is %+v", state)
	}
	must(t, c.Balancer(t.Context(), true))
	if state, err = c.BalancerState(t.Context()); err != nil || state.Mode != "full" {
		t.Errorf("the balancer, turned on, is %+v, %v", state, err)
	}
	kit.Until(t, "the other shard owns a chunk", func() bool {
		chunks, err := c.Chunks(t.Context(), ns)
		must(t, err)
		return slices.ContainsFunc(chunks, func(chunk Chunk) bool { return chunk.Shard == "s1" })
	})
}

// A shard joins, gets chunks, and leaves without anything getting lost.
func testShards(t *testing.T, c *Cluster) {
	name, err := c.AddShard(t.Context())
	must(t, err)
	if name != "s2" || len(c.Shards()) != 3 {
		t.Errorf("the new shard is %s of %q", name, c.ShardNames())
	}
	must(t, c.CreateDatabase(t.Context(), "new", name))
	must(t, c.Insert(t.Context(), "new.c", key(1)))
	must(t, c.MoveChunk(t.Context(), "db.range", key(0), name))
	if n := owned(t, c, name, "db.range"); n != 15 {
		t.Errorf("the new shard owns %d documents", n)
	}
	servers := c.Shard(name)
	must(t, c.RemoveShard(t.Context(), name))
	if c.Shard(name) != nil || servers.Members()[0].Pid() == 0 {
		t.Errorf("%s is still a shard, or its servers have ended", name)
	}
	total := 0
	for _, s := range c.ShardNames() {
		total += owned(t, c, s, "db.range")
	}
	if primary, err := c.Primary(t.Context(), "new"); total != 20 || err != nil || primary == name {
		t.Errorf("%d documents are left; the database is on %s, %v", total, primary, err)
	}
}

// Sets of several members, with users: all trust each other by one key file, and
// the root user is known to the config servers and to each shard. What was kept
// starts again, with the shards that joined.
func TestKeptWithUsers(t *testing.T) {
	lab.Nightly(t)
	lab.NeedServers(t)
	o := Options{Options: lab.Options{Topology: "sharded:1x2", Auth: true, Dir: t.TempDir(), CacheGB: 0.25,
		LeanJournal: true}}
	c, err := Start(t.Context(), o)
	must(t, err)
	t.Cleanup(func() { _ = c.Stop() })
	must(t, c.CreateDatabase(t.Context(), "db", "s0"))
	must(t, c.ShardCollection(t.Context(), "db.c", Sharding{Key: key(1)}))
	fill(t, c, "db.c", 0, 5)
	name, err := c.AddShard(t.Context())
	must(t, err)
	must(t, c.MoveRange(t.Context(), "db.c", key(0), key(3), name))
	uri := c.Config().URI()
	must(t, c.Stop())

	o.Name = "another"
	if _, err := Start(t.Context(), o); err == nil || !strings.Contains(err.Error(), "another cluster") {
		t.Errorf("another name in the same directory: %v", err)
	}
	o.Name = ""
	c = ForTest(t, o)
	if !slices.Equal(c.ShardNames(), []string{"s0", name}) || c.Config().URI() != uri {
		t.Errorf("the shards are %q, the config servers %s, were %s", c.ShardNames(), c.Config().URI(), uri)
	}
	if n := owned(t, c, "s0", "db.c") + owned(t, c, name, "db.c"); n != 5 {
		t.Errorf("the shards own %d documents", n)
	}
	root, err := c.Shard(name).Connect()
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), goodbye)
		defer cancel()
		_ = root.Disconnect(ctx)
	})
	if n, err := root.Database("db").Collection("c").CountDocuments(t.Context(), bson.D{}); err != nil || n != 3 {
		t.Errorf("the root user finds %d documents on %s, %v", n, name, err)
	}
}

// Documents written while chunks move to and fro, and while primaries step down,
// are owned where they are.
func TestMovesUnderWrites(t *testing.T) {
	lab.Nightly(t)
	for _, server := range lab.Versions("4.2", "4.4", "5.0") {
		t.Run(server, func(t *testing.T) {
			c := ForTest(t, Options{Options: lab.Options{
				Version: server, SetParameters: map[string]string{"orphanCleanupDelaySecs": "0"},
			}})
			const ns, chunks, documents, moves = "db.c", 8, 400, 24
			must(t, c.Balancer(t.Context(), false))
			must(t, c.CreateDatabase(t.Context(), "db", "s0"))
			must(t, c.ShardCollection(t.Context(), ns, Sharding{Key: key(1)}))
			for i := 1; i < chunks; i++ {
				must(t, c.Split(t.Context(), ns, key(i*documents/chunks)))
			}
			writing := make(chan error, 1)
			go func() {
				var err error
				for i := 0; i < documents && err == nil; i++ {
					k := i * 7 % documents // coprime, so each key once
					err = c.Insert(t.Context(), ns, bson.D{{Key: "_id", Value: k}, {Key: "k", Value: k}})
				}
				writing <- err
			}()
			for i := range moves {
				to := c.ShardNames()[i/chunks%2^1]
				must(t, c.MoveChunk(t.Context(), ns, key(i%chunks*documents/chunks), to))
				switch i {
				case moves / 4:
					must(t, c.Config().StepDown(t.Context()))
				case moves / 2:
					must(t, c.Shards()[0].StepDown(t.Context()))
				case moves * 3 / 4:
					must(t, c.Shards()[1].Members()[0].Kill())
					must(t, c.Shards()[1].Members()[0].Start(t.Context()))
				}
			}
			must(t, <-writing)
			if a, b := owned(t, c, "s0", ns), owned(t, c, "s1", ns); a+b != documents {
				t.Errorf("of %d documents the shards own %d and %d", documents, a, b)
			}
		})
	}
}

// Each server may have a fault proxy: the others and the cluster reach it through
// that.
func TestProxies(t *testing.T) {
	c := ForTest(t, Options{Options: lab.Options{Topology: "sharded:2x1", Proxy: true}})
	must(t, c.CreateDatabase(t.Context(), "db", "s0"))
	must(t, c.ShardCollection(t.Context(), "db.c", Sharding{Key: key(1)}))
	fill(t, c, "db.c", 0, 3)
	proxy := c.Shards()[1].Members()[0].Proxy()
	proxy.Cut()
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := c.MoveChunk(short, "db.c", key(0), "s1"); err == nil {
		t.Error("a chunk has moved to a shard that nobody reaches")
	}
	proxy.Restore()
	must(t, c.MoveChunk(t.Context(), "db.c", key(0), "s1"))
	if n := owned(t, c, "s1", "db.c"); n != 3 {
		t.Errorf("the new owner has %d documents", n)
	}
}
