package fold

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/stream"
)

// events of n documents of 1 KB, as a reply holds them.
func events(tb testing.TB, op stream.Kind, doc bson.D, n int) []Item {
	tb.Helper()
	raw, err := bson.Marshal(doc)
	if err != nil {
		tb.Fatal(err)
	}
	t := NewTarget("d.c")
	list := make([]stream.Event, n)
	out := make([]Item, n)
	for i := range list {
		id := bsoncore.Value{Type: bsoncore.TypeInt64, Data: binary.LittleEndian.AppendUint64(nil, uint64(i))}
		list[i] = stream.Event{Kind: op, Form: delta.Diff, NS: "d.c", Key: stream.Key{ID: id}, Doc: raw}
		out[i] = Item{Event: &list[i], Target: t, Hash: t.Hash(nil, id)}
	}
	return out
}

func allocations(tb testing.TB, runs int, fn func()) float64 {
	tb.Helper()
	fn() // buffers grow once
	return testing.AllocsPerRun(runs, fn)
}

func addAll(tb testing.TB, b *Batch, list []Item) {
	for i := range list {
		if ok, _, err := b.Add(&list[i]); !ok || err != nil {
			tb.Fatal(ok, err)
		}
	}
}

// TestAllocations holds what an event may cost the collector on its way into a
// batch: next to nothing, also where two updates become one.
func TestAllocations(t *testing.T) {
	const n = 1000
	pad := bson.Binary{Data: bytes.Repeat([]byte("x"), 100)}
	diff := bson.D{{Key: "$v", Value: int32(2)},
		{Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "field1", Value: pad}}}}}}
	b := NewBatch()
	for _, c := range []struct {
		name   string
		list   []Item
		each   float64 // allocations an event
		rounds int     // of the list in one batch
	}{
		{"inserts", events(t, stream.Insert, bson.D{{Key: "_id", Value: 1}, {Key: "field0", Value: pad}}, n), 0.01, 1},
		{"deletes", events(t, stream.Delete, bson.D{{Key: "_id", Value: 1}}, n), 0.01, 1},
		{"updates", events(t, stream.Update, diff, n), 0.01, 1},
		{"updates folded", events(t, stream.Update, diff, n), 0.01, 3},
	} {
		got := allocations(t, 5, func() {
			for range c.rounds {
				addAll(t, b, c.list)
			}
			b.Reset()
		}) / float64(n*c.rounds)
		t.Logf("%s: %.3f allocations an event", c.name, got)
		if got > c.each {
			t.Errorf("%s: %.3f allocations an event, at most %.3f are meant", c.name, got, c.each)
		}
	}
}

// TestKeptOwnTheirBytes: nothing of what is kept back points into a reply.
func TestKeptOwnTheirBytes(t *testing.T) {
	diff := bson.D{{Key: "$v", Value: int32(2)},
		{Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "a", Value: "first"}}}}}}
	list := events(t, stream.Update, diff, 50)
	b, h := NewBatch(), NewCoalesced(1<<20)
	addAll(t, b, list)
	for _, g := range b.Groups {
		h.Split(g, time.Now())
		if len(g.Ops) != 0 {
			t.Fatalf("%d updates are not kept back", len(g.Ops))
		}
	}
	b.Reset()
	for i := range list {
		if joined, ok, err := h.Join(&list[i]); !joined || !ok || err != nil {
			t.Fatal(joined, ok, err)
		}
	}
	for i := range list { // the replies are gone
		clear(list[i].Event.Key.ID.Data)
		clear(list[i].Event.Doc)
	}
	want, err := bson.Marshal(diff)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range h.Groups {
		for i, o := range g.Ops {
			if got := binary.LittleEndian.Uint64(o.ID.Data); got != uint64(i) || !bytes.Equal(o.Delta.Raw(), want) {
				t.Fatalf("operation %d: _id %d, update %s", i, got, o.Delta.Raw())
			}
		}
	}
	if h.inUpdates != 50 || h.Ops != 50 {
		t.Errorf("%d kept, %d joined", h.Ops, h.inUpdates)
	}
}

// TestLargeOperationsTakeFewUpdates: what is long takes a few updates, then it is sent; what is short takes any number.
func TestLargeOperationsTakeFewUpdates(t *testing.T) {
	diff := bson.D{{Key: "$v", Value: int32(2)},
		{Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "a", Value: "new"}}}}}}
	update := events(t, stream.Update, diff, 1)[0]
	for _, c := range []struct {
		kind       stream.Kind
		pad, folds int
	}{{stream.Insert, largeOp / 2, 1000}, {stream.Insert, largeOp, foldsOfLarge}, {stream.Insert, 16 << 20, foldsOfLarge},
		{stream.Update, largeUpdate / 2, 1000}, {stream.Update, largeUpdate, foldsOfLarge}} {
		doc := bson.D{{Key: "a", Value: "old"}, {Key: "pad", Value: make([]byte, c.pad)}}
		if c.kind == stream.Update {
			doc = bson.D{{Key: "$v", Value: int32(2)}, {Key: "diff", Value: bson.D{{Key: "u", Value: doc}}}}
		}
		b := NewBatch()
		first := events(t, c.kind, doc, 1)
		addAll(t, b, first)
		update.Target = first[0].Target
		n := 0
		for ; n < 1000; n++ {
			if ok, _, err := b.Add(&update); err != nil {
				t.Fatal(err)
			} else if !ok {
				break
			}
		}
		if n != c.folds {
			t.Errorf("%d updates folded into %s of %d bytes, want %d", n, c.kind, c.pad, c.folds)
		}
	}
}
