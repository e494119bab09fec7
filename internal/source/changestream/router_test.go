package changestream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/lookup"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// TestRouter: the events of several shards, read through a router, lead to the documents of the cluster, from
// any position. Some documents change their shard.
func TestRouter(t *testing.T) {
	for _, version := range lab.Versions("5.0") {
		t.Run(version, func(t *testing.T) {
			l := sharded.ForTest(t, sharded.Options{Options: lab.Options{Version: version}, Routers: 1})
			w := world{TB: t, c: dial.Cluster(t, l.URI(), mongo.Options{AppName: t.Name()})}
			var err error
			w.s, err = Probe(t.Context(), w.c)
			w.ok(err)
			if w.s.Copies {
				t.Error("chunk migrations are shown")
			}
			w.router(testseed.Of(t))
			w.twice()
			w.recreated()
		})
	}
}

func (w world) router(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 2))
	db := w.c.Client.Database("routed")
	w.run("admin", d("enableSharding", "routed"))
	w.run("admin", d("shardCollection", "routed.s", "key", d("_id", "hashed")))
	w.run("admin", d("shardCollection", "routed.m", "key", d("k", "hashed")))
	pos, err := Start(w.Context(), w.c)
	w.ok(err)
	for id := range 20 {
		_, err := db.Collection("m").InsertOne(w.Context(), d("_id", id, "k", 0))
		w.ok(err)
	}
	for i := range 300 {
		coll := db.Collection([]string{"s", "s", "u"}[r.IntN(3)])
		id := r.IntN(60)
		var err error
		switch r.IntN(6) {
		case 0, 1:
			_, err = coll.ReplaceOne(w.Context(), d("_id", id), d("n", i, "a", bson.A{1, 2}),
				options.Replace().SetUpsert(true))
		case 2:
			_, err = coll.UpdateOne(w.Context(), d("_id", id), d("$set", d("o.x", i, fmt.Sprint("a.", r.IntN(3)), i)))
		case 3:
			_, err = coll.DeleteOne(w.Context(), d("_id", id))
		case 4:
			x := w.begin()
			for n := range 4 {
				x.insert(db.Collection("s"), fmt.Sprintf("%d-%d", i, n))
			}
			x.commit()
		case 5:
			for range 2 {
				w.move(db.Collection("m"), id%20, i)
			}
		}
		w.ok(err)
	}
	end, err := w.c.ClusterTime(w.Context())
	w.ok(err)
	want := w.documents("routed.s", "routed.u", "routed.m")
	o := w.options("routed")
	o.BatchBytes = 500
	all := w.read(New(w.c, o), pos, end)
	w.sameDocuments(of(all, "routed"), want)
	txns := map[string]int{}
	for _, ev := range of(all, "routed") {
		if ev.Txn != nil && ev.NS == "routed.s" {
			txns[fmt.Sprintf("%s %d", ev.Txn.Session, ev.Txn.Number)]++
		}
	}
	for name, n := range txns {
		if n != 4 {
			w.Errorf("%d events of transaction %s", n, name)
		}
	}
	for range 10 {
		i := r.IntN(len(all))
		events := of(all[:i+1], "routed")
		events = append(events, of(w.read(New(w.c, o), all[i].Resume(), end), "routed")...)
		w.sameDocuments(events, want)
	}
}

// twice reads a document that two shards have: the reader waits until it is on one of them only.
func (w world) twice() {
	w.Helper()
	w.run("admin", d("shardCollection", "routed.t", "key", d("k", "hashed")))
	coll := w.c.Client.Database("routed").Collection("t")
	kept, err := coll.InsertOne(w.Context(), d("_id", 1, "k", 0))
	w.ok(err)
	other := 1
	for ; ; other++ { // a shard takes no second one
		if _, err = coll.InsertOne(w.Context(), d("_id", 1, "k", other)); !driver.IsDuplicateKeyError(err) {
			break
		}
	}
	w.ok(err)
	at, err := w.c.ClusterTime(w.Context())
	w.ok(err)
	specs, err := w.c.Client.Database("routed").ListCollectionSpecifications(w.Context(), d("name", "t"))
	w.ok(err)
	of := lookup.Collection{DB: "routed", Name: "t", UUID: *specs[0].UUID}
	find := func(ctx context.Context) ([]bson.Raw, error) {
		docs, _, err := New(w.c, w.options("routed")).findThroughRouter(ctx, of, lookup.Question{
			IDs: []bson.RawValue{bsonraw.RawValue(bsonraw.IDOf(kit.Raw(d("_id", kept.InsertedID))))}, At: at})
		return docs, err
	}
	short, cancel := context.WithTimeout(w.Context(), 500*time.Millisecond)
	defer cancel()
	if docs, err := find(short); !errors.Is(err, context.DeadlineExceeded) {
		w.Errorf("of two shards: %v, %v", docs, err)
	}
	_, err = coll.DeleteOne(w.Context(), d("_id", 1, "k", other))
	w.ok(err)
	docs, err := find(w.Context())
	if want := kit.Raw(d("_id", 1, "k", 0)); err != nil || len(docs) != 1 || !bytes.Equal(docs[0], want) {
		w.Errorf("of one shard: %v, want %s, %v", docs, want, err)
	}
}

// recreated reads what transactions inserted into a sharded collection that users have dropped and made again.
func (w world) recreated() {
	w.Helper()
	shard := func() { w.run("admin", d("shardCollection", "routed.r", "key", d("k", "hashed"))) }
	shard()
	pos, err := Start(w.Context(), w.c)
	w.ok(err)
	coll := w.c.Client.Database("routed").Collection("r")
	for range 2 {
		x := w.begin()
		for id := range 3 {
			x.insert(coll, id, bson.E{Key: "k", Value: id})
		}
		x.commit()
		w.ok(coll.Drop(w.Context()))
		shard()
	}
	end, err := w.c.ClusterTime(w.Context())
	w.ok(err)
	inserted := 0
	for _, ev := range of(w.read(New(w.c, w.options("routed")), pos, end), "routed") {
		if ev.NS == "routed.r" && ev.Kind == stream.Insert && len(ev.Doc) > 0 {
			inserted++
		}
	}
	if inserted != 6 {
		w.Errorf("%d insertions, want 6", inserted)
	}
}

// move changes a document's shard key twice, as routers do it, and the document.
func (w world) move(coll *driver.Collection, id, k int) {
	w.Helper()
	for n := range 2 {
		x := w.begin()
		_, err := coll.DeleteOne(x.ctx, d("_id", id))
		w.ok(err)
		x.insert(coll, id, bson.E{Key: "k", Value: k + 1000*n})
		for m := range 2 { // so that each transaction of the test has four events
			x.insert(coll, bson.NewObjectID(), bson.E{Key: "k", Value: m})
		}
		x.commit()
		_, err = coll.UpdateOne(w.Context(), d("_id", id), d("$set", d("n", k)))
		w.ok(err)
	}
}

// documents reads collections, by their names and _ids.
func (w world) documents(namespaces ...string) map[string]bson.Raw {
	w.Helper()
	docs := map[string]bson.Raw{}
	for _, ns := range namespaces {
		db, coll := mongo.SplitNS(ns)
		cur, err := w.c.Client.Database(db).Collection(coll).Find(w.Context(), d())
		w.ok(err)
		var all []bson.Raw
		w.ok(cur.All(context.WithoutCancel(w.Context()), &all))
		for _, doc := range all {
			docs[ns+string(delta.AppendKey(nil, bsonraw.IDOf(doc)))] = doc
		}
	}
	return docs
}

// sameDocuments checks to which documents events lead.
func (w world) sameDocuments(events []stream.Event, want map[string]bson.Raw) {
	w.Helper()
	names := map[string]string{}
	for _, ev := range events {
		if ev.UUID != nil {
			names[string(ev.UUID[:])] = ev.NS
		}
	}
	got := map[string]bson.Raw{}
	for key, doc := range w.applied(events) {
		got[names[key[:uuidSize]]+key[uuidSize:]] = doc
	}
	for key, doc := range want {
		if string(got[key]) != string(doc) {
			w.Fatalf("%q: %s\nwant %s", key, got[key], doc)
		}
	}
	if len(got) != len(want) {
		w.Fatalf("%d documents, want %d", len(got), len(want))
	}
}
