package shards

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/testseed"
)

// history is documents that move between shards within transactions.
type history struct {
	*rand.Rand
	on map[int]int // shard by document; none where it is not there
	n  int         // documents, and the newest value
	v  map[int]int // values
}

// commit is what one transaction does, by shard.
func (h *history) commit(shards int, at mongo.OpTime) [][]stream.Event {
	parts := make([][]stream.Event, shards)
	txns := make([]*stream.Transaction, shards)
	for i := range txns {
		txns[i] = &stream.Transaction{}
	}
	do := func(shard int, kind stream.Kind, id int) {
		h.n++
		parts[shard] = append(parts[shard], stream.Event{Kind: kind, NS: "d.c",
			Key: stream.Key{ID: bsoncore.Value{Type: bsoncore.TypeInt32, Data: bsoncore.AppendInt32(nil, int32(id))}},
			Doc: bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32("v", int32(h.n)).Build()), Txn: txns[shard], At: at})
		h.v[id] = h.n
	}
	for range 1 + h.IntN(8) {
		id := h.IntN(3)
		shard, there := h.on[id]
		switch other := h.IntN(shards); {
		case !there:
			do(other, stream.Insert, id)
			h.on[id] = other
		case h.IntN(4) == 0:
			do(shard, stream.Delete, id)
			delete(h.on, id)
			delete(h.v, id)
		case other == shard:
			do(shard, stream.Replace, id)
		default:
			do(shard, stream.Delete, id)
			do(other, stream.Insert, id)
			h.on[id] = other
		}
	}
	return parts
}

// other is a write of its own to another document, or none.
func (h *history) other(at mongo.OpTime) []stream.Event {
	const id = 99
	if h.IntN(2) == 0 {
		return nil
	}
	h.n++
	ev := stream.Event{Kind: stream.Insert, NS: "d.c", Key: stream.Key{ID: bsoncore.Value{Type: bsoncore.TypeInt32,
		Data: bsoncore.AppendInt32(nil, id)}},
		Doc: bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32("v", int32(h.n)).Build()), At: at}
	if _, there := h.v[id]; there {
		ev.Kind = stream.Replace
	}
	h.v[id] = h.n
	return []stream.Event{ev}
}

// follow applies events, each of which has to find what it changes.
func follow(docs map[int]int, events []stream.Event) error {
	for _, ev := range events {
		id := int(ev.Key.ID.Int32())
		_, there := docs[id]
		if there == (ev.Kind == stream.Insert) {
			return fmt.Errorf("%s of %d at %s, there: %v", ev.Kind, id, ev.At, there)
		}
		docs[id] = int(ev.Doc.Lookup("v").Int32())
		if ev.Kind == stream.Delete {
			delete(docs, id)
		}
	}
	return nil
}

// TestCommits: what transactions over shards did can be followed, in whichever order
// the shards tell of it and however it is cut into batches.
func TestCommits(t *testing.T) { testseed.Each(t, commitsInAnyOrder) }

func commitsInAnyOrder(t *testing.T, seed uint64) {
	h := &history{Rand: rand.New(rand.NewPCG(seed, 0)), on: map[int]int{}, v: map[int]int{}}
	docs := map[int]int{}
	out := new(txnOrder).wrap(func(_ context.Context, b *stream.Batch) error { return follow(docs, b.Events) })
	reordered := 0
	for i := range 20_000 {
		at := mongo.OpTime{TS: bson.Timestamp{T: uint32(i + 1)}}
		parts := h.commit(3, at)
		parts = append(parts, h.other(at)) // what another shard did at that time
		h.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		all := slices.Concat(parts...)
		if follow(map[int]int{}, all) != nil {
			reordered++
		}
		cut := h.IntN(len(all) + 1)
		before := mongo.OpTime{TS: bson.Timestamp{T: at.TS.T - 1, I: 9}}
		for _, b := range []*stream.Batch{{Events: slices.Clone(all[:cut]), End: before, Partial: true},
			{End: before, Partial: true}, {Events: slices.Clone(all[cut:]), End: at}} {
			if err := out(t.Context(), b); err != nil {
				t.Fatalf("seed %d: commit %d: %v", seed, i, err)
			}
		}
		if fmt.Sprint(docs) != fmt.Sprint(h.v) {
			t.Fatalf("seed %d: commit %d: %v, want %v", seed, i, docs, h.v)
		}
	}
	if reordered == 0 {
		t.Error("nothing was out of order")
	}
}
