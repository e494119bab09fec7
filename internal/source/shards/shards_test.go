package shards_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/merge"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/load"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/router"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// versions are the servers' to try: one, or in the matrix all.
func versions() []string {
	return lab.Versions("4.4", "5.0")
}

// bed is a sharded cluster with a router.
type bed struct {
	*testing.T
	lab    *sharded.Cluster
	router *mongo.Cluster
	uri    string
	seed   uint64
}

func newBed(t *testing.T, o sharded.Options) *bed {
	t.Helper()
	b := &bed{T: t, lab: sharded.ForTest(t, o), seed: testseed.Of(t)}
	r, err := router.Start(t.Context(), router.Options{ConfigURI: b.lab.ConfigURI()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.ok(r.Close()) })
	b.uri = r.URI()
	b.router, err = mongo.Connect(t.Context(), b.uri, mongo.Options{AppName: "test"})
	b.ok(err)
	t.Cleanup(b.router.Close)
	return b
}

func (b *bed) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("seed %d: %v", b.seed, err)
	}
}

func (b *bed) open() *shards.Cluster {
	b.Helper()
	c, err := shards.Open(b.Context(), b.router, shards.Options{URI: b.uri,
		Mongo: mongo.Options{AppName: "millrace-source"}})
	b.ok(err)
	b.Cleanup(c.Close)
	return c
}

// model applies events as they come, and fails on what cannot be.
type model struct {
	docs map[string]bson.Raw // by namespace and _id
	seen int
	last mongo.OpTime
}

func (m *model) apply(ev *stream.Event) error {
	m.seen++
	if ev.At.Before(m.last) {
		return fmt.Errorf("%s after %s", ev.At, m.last)
	}
	m.last = ev.At
	key := ev.NS + " " + ev.Key.ID.String()
	was, there := m.docs[key]
	switch ev.Kind {
	case stream.SchemaChange:
		return nil
	case stream.Insert:
		// A changed shard key is an insert and a delete at one time, in any order.
		if there && ev.Txn == nil {
			return fmt.Errorf("%s: insert of %s, which is there: %s", ev.At, key, was)
		}
		m.docs[key] = ev.Doc
	case stream.Delete:
		if !there {
			return fmt.Errorf("%s: delete of %s, which is not there", ev.At, key)
		}
		if k, err := ev.Key.Shard.LookupErr("k"); err == nil && !bytes.Equal(k.Value, was.Lookup("k").Value) {
			return nil // of the document as it was before it moved
		}
		delete(m.docs, key)
	case stream.Replace:
		if !there {
			return fmt.Errorf("%s: replacement of %s, which is not there", ev.At, key)
		}
		m.docs[key] = ev.Doc
	case stream.Put:
		m.docs[key] = ev.Doc
	case stream.Update:
		if !there {
			return fmt.Errorf("%s: update of %s, which is not there", ev.At, key)
		}
		d, err := delta.ParseAs(ev.Form, ev.Doc)
		if err != nil {
			return err
		}
		doc, _, err := delta.Apply(nil, was, d)
		if err != nil {
			return err
		}
		m.docs[key] = doc
	}
	return nil
}

var errReached = errors.New("reached")

// read applies the stream from a position up to another. It begins again now and
// then, and calls at with positions up to which all is applied.
func (b *bed) read(c *shards.Cluster, m *model, from stream.Position, until mongo.OpTime, each oplog.Options,
	at func(mongo.OpTime)) {
	b.Helper()
	r := rand.New(rand.NewPCG(b.seed, 9))
	for from.At.Before(until) {
		batches := 2 + r.IntN(20)
		var pending []stream.Event
		err := c.Source(each, merge.Options{}).Run(b.Context(), from, func(_ context.Context, batch *stream.Batch) error {
			pending = append(pending, batch.Events...)
			for len(pending) > 0 && !batch.End.Before(pending[0].At) {
				if err := m.apply(&pending[0]); err != nil {
					return err
				}
				pending = pending[1:]
			}
			from = batch.Resume()
			if len(batch.Events) > 0 && r.IntN(6) == 0 {
				at(batch.End)
			}
			if batches--; batches < 0 || !batch.End.Before(until) {
				return errReached
			}
			return nil
		})
		if !errors.Is(err, errReached) {
			b.Fatalf("seed %d, after %d events, %d documents: %v", b.seed, m.seen, len(m.docs), err)
		}
	}
}

// compare compares the model with what the cluster held at a time. It is false
// where that is not to be had: a shard got a collection after it.
func (b *bed) compare(m *model, client *driver.Client, at mongo.OpTime, snapshot bool, namespaces ...string) bool {
	b.Helper()
	concern := bson.D{{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: at.TS}}
	if !snapshot {
		concern = bson.D{{Key: "level", Value: "majority"}, {Key: "afterClusterTime", Value: at.TS}}
	}
	found := 0
	for _, ns := range namespaces {
		db, coll, _ := strings.Cut(ns, ".")
		cur, err := client.Database(db).RunCommandCursor(b.Context(), bson.D{{Key: "find", Value: coll},
			{Key: "readConcern", Value: concern}})
		if mongo.IsCode(err, 246) { // SnapshotUnavailable
			return false
		}
		b.ok(err)
		var docs []bson.Raw
		b.ok(cur.All(b.Context(), &docs))
		for _, doc := range docs {
			found++
			if key := ns + " " + doc.Lookup("_id").String(); !bytes.Equal(m.docs[key], doc) {
				b.Errorf("seed %d: at %s %s was %s, the stream says %s", b.seed, at, key, doc, m.docs[key])
			}
		}
	}
	if found != len(m.docs) {
		b.Errorf("seed %d: %d documents at %s, the stream has %d", b.seed, found, at, len(m.docs))
	}
	return true
}

// TestStream: what comes of the merged oplogs is what the cluster holds, while chunks
// move all the time, documents change their shard, transactions span shards, and writes
// go to all shards.
func TestStream(t *testing.T) {
	lab.NeedServers(t)
	for _, version := range versions() {
		t.Run(version, func(t *testing.T) { streamed(t, version) })
	}
}

func streamed(t *testing.T, version string) {
	b := newBed(t, sharded.Options{Options: lab.Options{Topology: "sharded:3x1", Version: version,
		SetParameters: map[string]string{"orphanCleanupDelaySecs": "0"}}})
	all := b.lab.ShardNames()
	b.ok(b.lab.CreateDatabase(t.Context(), "d", all[0]))
	b.ok(b.lab.ShardCollection(t.Context(), "d.ranged", sharded.Sharding{Key: bson.D{{Key: "k", Value: 1}}}))
	b.ok(b.lab.Split(t.Context(), "d.ranged", key(100), key(200), key(300), key(400), key(500), key(600), key(700),
		key(800)))
	// Each shard keeps a chunk: reads as of a time go to those alone that have some now.
	b.ok(b.lab.MoveChunk(t.Context(), "d.ranged", key(700), all[1]))
	b.ok(b.lab.MoveChunk(t.Context(), "d.ranged", key(800), all[2]))
	b.ok(b.lab.ShardCollection(t.Context(), "d.hashed", sharded.Sharding{Key: bson.D{{Key: "_id", Value: "hashed"}},
		Chunks: 6}))
	b.ok(b.router.Client.Database("d").CreateCollection(t.Context(), "plain")) // no transaction makes it
	c := b.open()
	start, err := c.Start(t.Context())
	b.ok(err)
	client, err := driver.Connect(options.Client().ApplyURI(b.uri))
	b.ok(err)
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	b.load(client, 6)
	until, err := c.Start(t.Context())
	b.ok(err)
	m := &model{docs: map[string]bson.Raw{}}
	compared := 0
	// Before 5.0 there are no reads as of a time but in transactions: what there is at the end.
	check := func(at mongo.OpTime) {
		if (version != "4.4" || at == until.At) && b.compare(m, client, at, version != "4.4", "d.ranged", "d.hashed",
			"d.plain") {
			compared++
		}
	}
	b.read(c, m, start, until.At, oplog.Options{Keep: func(ns string) bool { return strings.HasPrefix(ns, "d.") },
		BatchBytes: 10_000}, check)
	check(until.At)
	if t.Logf("%d events, %d documents, compared at %d times", m.seen, len(m.docs), compared); len(m.docs) == 0 ||
		compared == 0 {
		t.Error("hardly anything was compared")
	}
}

func key(k int) bson.D { return bson.D{{Key: "k", Value: k}} }

// load writes from several clients while a number of chunks move.
func (b *bed) load(client *driver.Client, moves int) {
	b.Helper()
	ctx, enough := context.WithCancel(b.Context())
	defer enough()
	g, gctx := errgroup.WithContext(b.Context())
	g.Go(func() error { return load.Run(ctx, client, "d", b.seed) })
	g.Go(func() error {
		r := rand.New(rand.NewPCG(b.seed, 77))
		names := b.lab.ShardNames()
		defer enough()
		for moves > 0 && gctx.Err() == nil { // one that is aborted is as good, but for the number
			err := b.lab.MoveChunk(gctx, "d.ranged", key(r.IntN(600)), names[r.IntN(len(names))])
			if err != nil {
				b.Log(err)
				continue
			}
			moves--
		}
		return nil
	})
	b.ok(g.Wait())
}

// TestOpen: the shards are found, one that is named wrongly is told.
func TestOpen(t *testing.T) {
	lab.NeedServers(t)
	b := newBed(t, sharded.Options{})
	c := b.open()
	var got []string
	for _, s := range c.Shards {
		got = append(got, s.Name)
	}
	if !slices.Equal(got, b.lab.ShardNames()) {
		t.Errorf("%v, want %v", got, b.lab.ShardNames())
	}
	_, err := shards.Open(t.Context(), b.router,
		shards.Options{URI: b.uri, Shards: map[string]string{"none": "mongodb://127.0.0.1:1/"}})
	if err == nil || !strings.Contains(mongo.HintOf(err), got[0]) {
		t.Error(err, mongo.HintOf(err))
	}
	_, err = shards.Open(t.Context(), b.router, shards.Options{URI: b.uri,
		Shards: map[string]string{got[0]: b.lab.Shards()[1].URI()}})
	if err == nil || !strings.Contains(err.Error(), "is the replica set") {
		t.Error(err)
	}
}
