package router_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// moves writes at random through two routers while chunks are moved, and compares
// with what was acknowledged: nothing lost, nothing done twice.
func (w *world) moves(t *testing.T) {
	lab.Nightly(t)
	w.underWrites(t, "moves", true, func(ctx context.Context) int { return w.moveAtRandom(t, ctx, "moves.c") })
}

// elections has shards and config servers lose their primary under writes.
func (w *world) elections(t *testing.T) {
	lab.Nightly(t)
	w.underWrites(t, "elections", false, func(ctx context.Context) int {
		done := 0
		for _, s := range append(w.cluster.Shards(), w.cluster.Config()) {
			if err := s.StepDown(t.Context()); err != nil {
				t.Errorf("step down: %v", err)
			}
			done++
		}
		return done
	})
}

// underWrites writes at random while something else happens.
func (w *world) underWrites(t *testing.T, name string, keys bool, happen func(context.Context) int) {
	c := w.spread(t, name, 0)
	begin := now(t, w.client)
	_, second := start(t, w.cluster.ConfigURI())
	clients := []*mongo.Client{w.client, second}
	ctx, stop := context.WithTimeout(t.Context(), 15*time.Second)
	defer stop()
	var writers []*writer
	var wg sync.WaitGroup
	for i := range 4 {
		mine := clients[i%2].Database(name).Collection("c")
		one := &writer{c: mine, me: i, keys: keys, rnd: rand.New(rand.NewPCG(uint64(i), 1)), model: map[int]document{}}
		writers = append(writers, one)
		wg.Go(func() {
			if err := one.run(ctx, t.Context()); err != nil {
				t.Errorf("writer %d: %v", i, err)
			}
		})
	}
	cs, err := w.client.Watch(t.Context(), mongo.Pipeline{}, startAt(begin))
	next := follow(t, cs, err)
	happened := happen(ctx)
	wg.Wait()
	insert(t, c.Database().Collection("end"), k(1))
	want, ops := map[int]document{}, 0
	for _, one := range writers {
		maps.Copy(want, one.model)
		ops += one.ops
	}
	compare(t, after(t, clients), c, want)
	replay(t, untilEnd(next), want)
	if len(want) == 0 || happened == 0 {
		t.Errorf("%d documents, %d times", len(want), happened)
	}
	t.Logf("%d operations, %d documents, %d times", ops, len(want), happened)
}

// after is a session in which is seen all that was acknowledged through the clients:
// a transaction over shards is told to be committed when that is decided, and a read
// without a time does not wait for the shards to do it.
func after(t *testing.T, clients []*mongo.Client) context.Context {
	t.Helper()
	reader, err := clients[0].StartSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.EndSession(context.Background()) })
	for _, client := range clients {
		s, err := client.StartSession()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Database("marks").Collection("c").
			InsertOne(mongo.NewSessionContext(t.Context(), s), k(1)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(reader.AdvanceClusterTime(s.ClusterTime()),
			reader.AdvanceOperationTime(s.OperationTime())); err != nil {
			t.Fatal(err)
		}
		s.EndSession(t.Context())
	}
	return mongo.NewSessionContext(t.Context(), reader)
}

// compare finds differences between a collection and what it should hold.
func compare(t *testing.T, ctx context.Context, c *mongo.Collection, want map[int]document) {
	cur, err := c.Find(ctx, bson.D{}, options.Find().SetSort(k(1)))
	if err != nil {
		t.Fatal(err)
	}
	var docs []document
	if err := cur.All(ctx, &docs); err != nil {
		t.Fatal(err)
	}
	found := map[int]document{}
	for _, d := range docs {
		if _, twice := found[d.ID]; twice {
			t.Errorf("document %d is there twice", d.ID)
		}
		found[d.ID] = d
	}
	for id, d := range want {
		if found[id] != d {
			t.Errorf("document %d: %v, want %v", id, found[id], d)
		}
	}
	equal(t, "documents", len(found), len(want))
}

// replay makes the documents anew from what a change stream says of them. A document that goes to another shard is
// deleted there and inserted here in any order, so its key is more than its _id.
func replay(t *testing.T, events []event, want map[int]document) {
	t.Helper()
	there := map[string]document{}
	for _, e := range events {
		key := e.DocumentKey.String()
		d, known := there[key]
		if known != (e.Type != "insert") {
			t.Errorf("%s of %s", e.Type, key)
		}
		delete(there, key)
		var err error
		switch e.Type {
		case "insert", "replace":
			err = bson.Unmarshal(e.Document, &d)
		case "update":
			err = bson.Unmarshal(e.Update.Lookup("updatedFields").Document(), &d)
		case "delete":
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		there[kit.Raw(bson.D{{Key: "k", Value: int32(d.K)}, {Key: "_id", Value: int32(d.ID)}}).String()] = d
	}
	for key, d := range there {
		if want[d.ID] != d {
			t.Errorf("by its events document %s is %v, want %v", key, d, want[d.ID])
		}
	}
	equal(t, "documents by their events", len(there), len(want))
}

type document struct {
	ID int `bson:"_id"`
	K  int `bson:"k"`
	N  int `bson:"n"`
}

// writer changes documents of its own at random. The model holds what was
// acknowledged.
type writer struct {
	c     *mongo.Collection
	me    int
	keys  bool // change shard keys too
	rnd   *rand.Rand
	model map[int]document
	ids   []int
	next  int
	ops   int
}

// run writes until ctx ends; what is under way then is finished.
func (w *writer) run(ctx, whole context.Context) error {
	for ; ctx.Err() == nil; w.ops++ {
		do := w.insert
		if len(w.ids) > 10 {
			switch n := w.rnd.IntN(20); {
			case n < 2:
				do = w.delete
			case n < 4:
				do = w.transact
			case n < 6 && w.keys:
				do = w.changeKey
			case n < 14:
				do = w.increment
			}
		}
		if err := do(whole); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) document() document {
	w.next++
	return document{ID: w.next*10 + w.me, K: w.rnd.IntN(300), N: 1}
}

func (w *writer) took(docs ...document) {
	for _, d := range docs {
		if _, there := w.model[d.ID]; !there {
			w.ids = append(w.ids, d.ID)
		}
		w.model[d.ID] = d
	}
}

// some is a document of the model.
func (w *writer) some() document {
	for {
		at := w.rnd.IntN(len(w.ids))
		if d, ok := w.model[w.ids[at]]; ok {
			return d
		}
		w.ids = append(w.ids[:at], w.ids[at+1:]...)
	}
}

func filterOf(d document) bson.D { return bson.D{{Key: "_id", Value: d.ID}, {Key: "k", Value: d.K}} }

func (w *writer) insert(ctx context.Context) error {
	var docs []document
	for range 1 + w.rnd.IntN(5) {
		docs = append(docs, w.document())
	}
	_, err := w.c.InsertMany(ctx, docs, options.InsertMany().SetOrdered(w.rnd.IntN(2) == 0))
	if err == nil {
		w.took(docs...)
	}
	return err
}

func (w *writer) increment(ctx context.Context) error {
	d := w.some()
	r, err := w.c.UpdateOne(ctx, filterOf(d), bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
	if err == nil && r.MatchedCount != 1 {
		err = fmt.Errorf("document %v was not found", d)
	}
	d.N++
	w.took(d)
	return err
}

func (w *writer) delete(ctx context.Context) error {
	d := w.some()
	r, err := w.c.DeleteOne(ctx, filterOf(d))
	if err == nil && r.DeletedCount != 1 {
		err = fmt.Errorf("document %v was not found", d)
	}
	delete(w.model, d.ID)
	return err
}

func (w *writer) changeKey(ctx context.Context) error {
	d := w.some()
	to := w.rnd.IntN(300)
	_, err := w.c.UpdateOne(ctx, filterOf(d), set("k", to))
	if mongo.IsDuplicateKeyError(err) {
		return nil // its new owner has it as an orphan yet
	}
	d.K = to
	w.took(d)
	return err
}

// transact inserts one document and increments another.
func (w *writer) transact(ctx context.Context) error {
	d, fresh := w.some(), w.document()
	s, err := w.c.Database().Client().StartSession()
	if err != nil {
		return err
	}
	defer s.EndSession(ctx)
	_, err = s.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		if _, err := w.c.InsertOne(ctx, fresh); err != nil {
			return nil, err
		}
		r, err := w.c.UpdateOne(ctx, filterOf(d), bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
		if err == nil && r.MatchedCount != 1 {
			err = fmt.Errorf("document %v was not found", d)
		}
		return nil, err
	})
	d.N++
	w.took(d, fresh)
	return err
}

// moveAtRandom moves chunks until ctx ends.
func (w *world) moveAtRandom(t *testing.T, ctx context.Context, ns string) int {
	r := rand.New(rand.NewPCG(testseed.Of(t), 2))
	names, moved := w.cluster.ShardNames(), 0
	for ctx.Err() == nil {
		err := w.cluster.MoveChunk(t.Context(), ns, k(r.IntN(3)*100), names[r.IntN(len(names))])
		if err != nil { // a migration may be given up, which must do no harm
			t.Logf("move: %v", err)
			continue
		}
		moved++
	}
	return moved
}
