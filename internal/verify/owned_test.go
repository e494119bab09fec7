package verify

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/router"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// shardedBed is a sharded source of three shards. The collection d.c has the shard key
// {k: 1}, six chunks and documents of the _ids and keys 0 to 599.
type shardedBed struct {
	*testing.T
	lab    *sharded.Cluster
	router *mongo.Cluster
	of     *origin.Sharded
}

const shardedDocs = 600

func newShardedBed(t *testing.T) *shardedBed {
	t.Helper()
	lab.NeedServers(t)
	b := &shardedBed{T: t}
	// Chunks come back to shards that they have left.
	b.lab = sharded.ForTest(t, sharded.Options{Options: lab.Options{Version: os.Getenv("MILLRACE_TEST_VERSION"),
		Topology: "sharded:3x1", SetParameters: map[string]string{"orphanCleanupDelaySecs": "0"}}})
	r, err := router.Start(t.Context(), router.Options{ConfigURI: b.lab.ConfigURI()})
	b.ok(err)
	t.Cleanup(func() { b.ok(r.Close()) })
	b.router = connect(t, r.URI(), nil)
	found, err := shards.Open(t.Context(), b.router, shards.Options{URI: r.URI(), Data: true})
	b.ok(err)
	t.Cleanup(found.Close)
	b.of = origin.NewSharded(found)
	b.ok(b.lab.CreateDatabase(t.Context(), "d", "s0"))
	b.ok(b.lab.ShardCollection(t.Context(), "d.c", sharded.Sharding{Key: bson.D{{Key: "k", Value: 1}}}))
	b.ok(b.lab.Split(t.Context(), "d.c", atKey(100), atKey(200), atKey(300), atKey(400), atKey(500)))
	for i := range 6 {
		b.move(100*i, i%3)
	}
	var docs []bson.Raw
	for i := range shardedDocs {
		docs = append(docs, kit.Raw(bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i},
			{Key: "pad", Value: make([]byte, 500)}}))
	}
	insert(t, b.router, "d.c", docs...)
	return b
}

func atKey(k int) bson.D { return bson.D{{Key: "k", Value: k}} }

func (b *shardedBed) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *shardedBed) move(key, shard int) {
	b.Helper()
	b.ok(b.lab.MoveChunk(b.Context(), "d.c", atKey(key), fmt.Sprintf("s%d", shard)))
}

// side is the collection, as a comparison reads it.
func (b *shardedBed) side(coll string, online ...bool) *side {
	b.Helper()
	e := New(b.router, b.router, Options{RangeBytes: 50_000, Workers: 6, MaxBufferedBytes: 1 << 20,
		Online: len(online) > 0})
	e.shards[source].Store(b.of)
	b.ok(e.advance(b.Context()))
	s, err := e.describe(b.Context(), source, "d."+coll)
	b.ok(err)
	return &s
}

func (b *shardedBed) owned(online ...bool) *owned {
	b.Helper()
	l, err := b.side("c", online...).layout(b.Context(), 6)
	b.ok(err)
	o, ok := l.(*owned)
	if !ok {
		b.Fatalf("the layout is %T", l)
	}
	return o
}

// counts are how often documents came.
type counts struct {
	mu sync.Mutex
	of map[string]int
}

func (c *counts) reading() reading {
	return reading{each: func(doc, _ []byte) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.of[bson.Raw(bytes.Clone(doc)).Lookup("_id").String()]++
		return nil
	}}
}

// each fails unless each document came once.
func (b *shardedBed) each(c *counts) {
	b.Helper()
	for i := range shardedDocs {
		id := kit.Raw(bson.D{{Key: "_id", Value: i}}).Lookup("_id").String()
		if c.of[id] != 1 {
			b.Errorf("document %s came %d times", id, c.of[id])
		}
		delete(c.of, id)
	}
	if len(c.of) > 0 {
		b.Errorf("and others: %v", c.of)
	}
}

// TestOwnedScan: each document of a sharded collection is read once, and no orphan,
// whatever moves.
func TestOwnedScan(t *testing.T) {
	b := newShardedBed(t)
	direct, err := b.lab.Direct("s1")
	b.ok(err)
	_, err = direct.Database("d").Collection("c").InsertOne(t.Context(),
		bson.D{{Key: "_id", Value: "orphan"}, {Key: "k", Value: 510}})
	b.ok(err)
	read := func(l *owned, all []*open) {
		t.Helper()
		c := counts{of: map[string]int{}}
		for _, o := range all {
			b.ok(o.handOver(t.Context(), o.walk, o.scanned(c.reading())))
			o.close(t.Context())
		}
		b.each(&c)
	}
	begin := func() reading { return reading{} }
	history := b.of.Cluster().Shards[0].Info.Version.AtLeast(5, 0)
	t.Run("an open cursor keeps what was owned", func(t *testing.T) {
		l := b.owned()
		table, err := b.of.Table(t.Context(), l.uuid)
		b.ok(err)
		all, err := l.openAll(t.Context(), table, bson.Timestamp{}, begin)
		b.ok(err)
		if len(all) < 6 {
			t.Errorf("%d cursors", len(all))
		}
		for i := range 5 {
			b.move(100*i, (i+1)%3)
		}
		read(l, all)
	})
	t.Run("what moves before all are open", func(t *testing.T) {
		l := b.owned()
		for i := range 5 {
			table, err := b.of.Table(t.Context(), l.uuid)
			b.ok(err)
			b.move(100*i, i%3)
			all, err := l.openAll(t.Context(), table, bson.Timestamp{}, begin)
			if !ownership.Stale(err) || all != nil {
				t.Fatalf("%d cursors were opened with an old table: %v", len(all), err)
			}
		}
	})
	t.Run("a document gets another shard key", func(t *testing.T) {
		if !history {
			t.Skip("there are no reads as of a time")
		}
		for i := range 5 {
			b.move(100*i, i%3)
		}
		l := b.owned(true)
		table, err := b.of.Table(t.Context(), l.uuid)
		b.ok(err)
		at, err := l.time(t.Context())
		b.ok(err)
		all, err := l.openAll(t.Context(), table, at, begin)
		b.ok(err)
		c := counts{of: map[string]int{}}
		for i, o := range all {
			if i == len(all)/2 { // from the last shard to the first
				for k := 210; k < 220; k++ {
					_, err := b.router.Client.Database("d").Collection("c").UpdateOne(t.Context(),
						bson.D{{Key: "_id", Value: k}, {Key: "k", Value: k}}, bson.D{{Key: "$set",
							Value: bson.D{{Key: "k", Value: k - 200}}}})
					b.ok(err)
				}
			}
			b.ok(o.handOver(t.Context(), o.walk, o.scanned(c.reading())))
			o.close(t.Context())
		}
		b.each(&c)
	})
	// A walk that has lost its cursor goes on after the last _id that it gave.
	t.Run("through a router", func(t *testing.T) {
		s := b.side("c")
		last, n := int32(-1), 0
		err := s.walk(t.Context(), scan.Slice{Strategy: scan.ByID}, s.want(16<<10, false), func(p *scan.Part) error {
			return p.Each(func(doc []byte) error {
				id := bson.Raw(doc).Lookup("_id").Int32()
				if id <= last {
					t.Errorf("_id %d comes after %d", id, last)
				}
				last = id
				n++
				return nil
			})
		})
		if err != nil || n != shardedDocs {
			t.Errorf("%d documents, %v", n, err)
		}
	})
	t.Run("history is short", func(t *testing.T) {
		if !history {
			t.Skip("there are no reads as of a time")
		}
		for _, name := range b.lab.ShardNames() {
			direct, err := b.lab.Direct(name)
			b.ok(err)
			b.ok(direct.Database("admin").RunCommand(t.Context(),
				bson.D{{Key: "setParameter", Value: 1}, {Key: "minSnapshotHistoryWindowInSeconds", Value: 0}}).Err())
			defer direct.Database("admin").RunCommand(t.Context(),
				bson.D{{Key: "setParameter", Value: 1}, {Key: "minSnapshotHistoryWindowInSeconds", Value: 300}})
		}
		l := b.owned(true)
		var written sync.Once
		err := l.scan(t.Context(), 6, func() reading {
			return reading{each: func(_, _ []byte) error {
				written.Do(func() {
					for k := range shardedDocs / 5 {
						_, err := b.router.Client.Database("d").Collection("c").UpdateOne(t.Context(),
							bson.D{{Key: "k", Value: 5 * k}, {Key: "_id", Value: 5 * k}}, bson.D{{Key: "$set",
								Value: bson.D{{Key: "n", Value: 1}}}})
						if err != nil {
							t.Error(err)
						}
					}
				})
				return nil
			}}
		})
		if mongo.Classify(err) != mongo.ClassRetry || !l.e.live[source].Load() || len(l.e.findings.notes) != 1 {
			t.Errorf("%v, notes: %q", err, l.e.findings.notes)
		}
		c := counts{of: map[string]int{}}
		b.ok(l.scan(t.Context(), 6, c.reading))
		b.each(&c)
	})
	t.Run("chunks move all the time", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var moved atomic.Int32
		var g errgroup.Group
		seed := testseed.Of(t)
		for n := range 2 {
			g.Go(func() error {
				r, on := rand.New(rand.NewPCG(seed, uint64(n))), map[int]int{}
				for ctx.Err() == nil {
					chunk := 2*r.IntN(2) + n
					on[chunk] = (on[chunk] + 1 + r.IntN(2)) % 3
					if b.lab.MoveChunk(ctx, "d.c", atKey(100*chunk), fmt.Sprintf("s%d", on[chunk])) == nil {
						moved.Add(1)
					}
				}
				return nil
			})
		}
		l := []*owned{b.owned(), b.owned(true)}
		scans := 0
		for ; !t.Failed() && (scans < 50 || moved.Load() < 30); scans++ {
			c := counts{of: map[string]int{}}
			b.ok(l[scans%2].scan(t.Context(), 6, c.reading))
			b.each(&c)
		}
		cancel()
		b.ok(g.Wait())
		if l[1].e.live[source].Load() == history {
			t.Errorf("shards are read as of one time: %t", !history)
		}
		t.Logf("%d scans, %d chunks moved", scans, moved.Load())
	})
}

// TestUnshardedScan: a collection that is not sharded is read on its database's own
// shard, and anew when it has moved, or was sharded meanwhile.
func TestUnshardedScan(t *testing.T) {
	b := newShardedBed(t)
	var docs []bson.Raw
	for i := range shardedDocs {
		docs = append(docs, kit.Raw(bson.D{{Key: "_id", Value: i}, {Key: "pad", Value: make([]byte, 500)}}))
	}
	insert(t, b.router, "d.plain", docs...)
	read := func(during func()) error {
		t.Helper()
		l, err := b.side("plain").layout(t.Context(), 2)
		b.ok(err)
		c := counts{of: map[string]int{}}
		during()
		if err = l.scan(t.Context(), 2, c.reading); err == nil {
			b.each(&c)
		}
		return err
	}
	b.ok(read(func() {}))
	if err := read(func() { b.ok(b.lab.MovePrimary(t.Context(), "d", "s1")) }); mongo.Classify(err) != mongo.ClassRetry {
		t.Errorf("moved: %v", err)
	}
	b.ok(read(func() {}))
	if err := read(func() {
		b.ok(b.lab.ShardCollection(t.Context(), "d.plain", sharded.Sharding{Key: bson.D{{Key: "_id", Value: 1}}}))
	}); mongo.Classify(err) != mongo.ClassRetry {
		t.Errorf("sharded: %v", err)
	}
	b.ok(read(func() {}))
	err := read(func() { b.ok(b.router.Client.Database("d").Collection("plain").Drop(t.Context())) })
	if mongo.Classify(err) != mongo.ClassRetry {
		t.Errorf("dropped: %v", err)
	}
	e := New(b.router, b.router, Options{Method: Digest})
	e.shards[source].Store(b.of)
	e.shards[target].Store(b.of)
	if r, err := e.Run(t.Context(), []Pair{pairOfNames("d.plain", "d.c")}); err != nil || r.Count != shardedDocs {
		t.Errorf("%v, %+v", err, r)
	}
}

// TestShardsSeeWhatWasAcknowledged: what a shard has acknowledged before the comparison
// began is read there, although it is not majority-committed yet.
func TestShardsSeeWhatWasAcknowledged(t *testing.T) {
	lab.NeedServers(t)
	c := sharded.ForTest(t, sharded.Options{Options: lab.Options{Topology: "sharded:1x1",
		Args: []string{"--journalCommitInterval", "300"}}})
	r, err := router.Start(t.Context(), router.Options{ConfigURI: c.ConfigURI()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	b := &shardedBed{T: t, lab: c, router: connect(t, r.URI(), nil)}
	found, err := shards.Open(t.Context(), b.router, shards.Options{URI: r.URI(), Data: true})
	b.ok(err)
	t.Cleanup(found.Close)
	b.of = origin.NewSharded(found)
	b.ok(c.CreateDatabase(t.Context(), "d", "s0"))
	b.ok(c.ShardCollection(t.Context(), "d.c", sharded.Sharding{Key: bson.D{{Key: "_id", Value: 1}}}))
	for i := range 4 {
		writeOne(t, b.router, "d.c", i, 1)
		s := b.side("c")
		l, err := s.layout(t.Context(), 1)
		b.ok(err)
		n := counts{of: map[string]int{}}
		b.ok(l.scan(t.Context(), 1, n.reading))
		if len(n.of) != i+1 {
			t.Errorf("%d documents, want %d", len(n.of), i+1)
		}
	}
}
