package router_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// moves writes at random while chunks are moved, and compares with what was
// acknowledged: nothing lost, nothing done twice.
func (w *world) moves(t *testing.T) {
	c := w.spread(t, "moves", 0)
	ctx, stop := context.WithTimeout(t.Context(), 15*time.Second)
	defer stop()
	const writers = 4
	models := make([]map[int]int, writers)
	var wg sync.WaitGroup
	for i := range writers {
		models[i] = map[int]int{}
		wg.Go(func() { w.writeAtRandom(t, ctx, c, i, models[i]) })
	}
	moved := w.moveAtRandom(t, ctx)
	wg.Wait()
	found := map[int]int{}
	cur, err := c.Find(t.Context(), bson.D{}, options.Find().SetSort(k(1)))
	if err != nil {
		t.Fatal(err)
	}
	for cur.Next(t.Context()) {
		id, n := cur.Current.Lookup("_id").AsInt64(), cur.Current.Lookup("n").AsInt64()
		if _, twice := found[int(id)]; twice {
			t.Errorf("document %d is there twice", id)
		}
		found[int(id)] = int(n)
	}
	total := 0
	for _, m := range models {
		total += len(m)
		for id, n := range m {
			if found[id] != n {
				t.Errorf("document %d has n %d, want %d", id, found[id], n)
			}
		}
	}
	equal(t, "documents", len(found), total)
	if total == 0 || moved == 0 {
		t.Errorf("%d documents, %d chunks moved", total, moved)
	}
	t.Logf("%d documents, %d chunks moved", total, moved)
}

// writeAtRandom inserts documents of its own, increments and deletes them. The
// model holds each one's n.
func (w *world) writeAtRandom(t *testing.T, ctx context.Context, c *mongo.Collection, me int, model map[int]int) {
	rnd := rand.New(rand.NewPCG(uint64(me), 1))
	inc := bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}
	var ids []int
	for i := 0; ctx.Err() == nil; i++ {
		var err error
		switch id := 0; {
		case len(ids) < 10 || rnd.IntN(3) == 0:
			var docs []any
			for range 1 + rnd.IntN(5) {
				id = (len(ids)*4+me)*1000 + rnd.IntN(300)
				docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id % 1000}, {Key: "n", Value: 1}})
				ids = append(ids, id)
				model[id] = 1
			}
			_, err = c.InsertMany(t.Context(), docs, options.InsertMany().SetOrdered(rnd.IntN(2) == 0))
		case rnd.IntN(10) == 0:
			at := rnd.IntN(len(ids))
			id = ids[at]
			if _, there := model[id]; there {
				delete(model, id)
				_, err = c.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id % 1000}})
			}
		default:
			id = ids[rnd.IntN(len(ids))]
			if _, there := model[id]; there {
				model[id]++
				_, err = c.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id % 1000}}, inc)
			}
		}
		if err != nil {
			t.Errorf("writer %d: %v", me, err)
			return
		}
	}
}

// moveAtRandom moves chunks until ctx ends.
func (w *world) moveAtRandom(t *testing.T, ctx context.Context) int {
	names, moved := w.cluster.ShardNames(), 0
	for ctx.Err() == nil {
		err := w.cluster.MoveChunk(t.Context(), "moves.c", k(rand.IntN(3)*100), names[rand.IntN(len(names))])
		if err != nil {
			t.Errorf("move: %v", err)
			return moved
		}
		moved++
	}
	return moved
}
