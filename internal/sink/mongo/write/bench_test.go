package write

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/stream"
)

// items are n events of one kind on as many documents.
func items(tb testing.TB, kind stream.Kind, doc bson.D, n int) []fold.Item {
	tb.Helper()
	raw, err := bson.Marshal(doc)
	if err != nil {
		tb.Fatal(err)
	}
	t := fold.NewTarget("d.c")
	list := make([]fold.Item, n)
	for i := range list {
		id := bsoncore.Value{Type: bsoncore.TypeInt64, Data: binary.LittleEndian.AppendUint64(nil, uint64(i))}
		ev := &stream.Event{Kind: kind, Form: delta.Diff, NS: "d.c", Key: stream.Key{ID: id}, Doc: raw}
		list[i] = fold.Item{Event: ev, Target: t, Hash: t.Hash(nil, id)}
	}
	return list
}

type load struct {
	name   string
	list   []fold.Item
	rounds int      // of the list in one batch
	twin   bson.Raw // of the Doc that all events of the list have
}

// renew gives the events of the list a Doc that they did not have before, of the same content:
// an event remembers which Doc it has checked.
func (l *load) renew() {
	was := l.list[0].Event.Doc
	if l.twin == nil {
		l.twin = bytes.Clone(was)
	}
	for i := range l.list {
		l.list[i].Event.Doc = l.twin
	}
	l.twin = was
}

// loads are what the hot path is measured with.
func loads(tb testing.TB, n int) []load {
	pad := bson.Binary{Data: bytes.Repeat([]byte("x"), 100)}
	big := bson.D{{Key: "_id", Value: 1}}
	for i := range 10 {
		big = append(big, bson.E{Key: fmt.Sprint("field", i), Value: pad})
	}
	diff := bson.D{{Key: "$v", Value: int32(2)},
		{Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "field1", Value: pad}}}}}}
	return []load{
		{name: "inserts", list: items(tb, stream.Insert, big, n), rounds: 1},
		{name: "deletes", list: items(tb, stream.Delete, bson.D{{Key: "_id", Value: 1}}, n), rounds: 1},
		{name: "updates", list: items(tb, stream.Update, diff, n), rounds: 1},
		{name: "folded", list: items(tb, stream.Update, diff, n), rounds: 3},
	}
}

// encode folds a load into a batch and puts that into messages, as Write does.
func (l *load) encode(tb testing.TB, b *fold.Batch, w *Writer) {
	for range l.rounds {
		l.renew()
		for i := range l.list {
			if ok, _, err := b.Add(&l.list[i]); !ok || err != nil {
				tb.Fatal(ok, err)
			}
		}
	}
	for _, g := range b.Groups {
		p := &w.plan
		p.fill(g.Ops, g.Target.Key)
		for name, list := range map[string][]statement{"delete": p.grouped(p.deletes), "update": p.updates,
			"insert": p.inserts} {
			if len(list) == 0 {
				continue
			}
			c := docwrite.Command{Name: name, DB: g.Target.DB, Coll: g.Target.Coll}
			if n := w.out.Frame(c, elements(name, g.Target, list), 0); n != len(list) {
				tb.Fatal(n)
			}
		}
		p.reset()
	}
	b.Reset()
}

// BenchmarkFoldEncode measures what an event costs between the router and the
// connection.
func BenchmarkFoldEncode(b *testing.B) {
	const n = 1000
	for _, l := range loads(b, n) {
		b.Run(l.name, func(b *testing.B) {
			b.ReportAllocs()
			batch, w := fold.NewBatch(), NewWriters(Options{Target: &mongo.Cluster{}}).New()
			for b.Loop() {
				l.encode(b, batch, w)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n*l.rounds), "ns/event")
		})
	}
}

// TestAllocations holds what an event may cost the collector on its way into a
// command: next to nothing, also where two updates become one.
func TestAllocations(t *testing.T) {
	const n = 4000
	for _, l := range loads(t, n) {
		batch, w := fold.NewBatch(), NewWriters(Options{Target: &mongo.Cluster{}}).New()
		l.encode(t, batch, w) // buffers grow once
		got := testing.AllocsPerRun(5, func() { l.encode(t, batch, w) }) / float64(n*l.rounds)
		t.Logf("%s: %.4f allocations an event", l.name, got)
		if got > 0.01 {
			t.Errorf("%s: %.4f allocations an event", l.name, got)
		}
	}
}
