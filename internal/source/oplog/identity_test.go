package oplog

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
)

// applyOpsEntry is an entry of a transaction of session n.
func applyOpsEntry(t testing.TB, i uint32, n int64, prev uint32, o bson.D, ops ...bson.D) bson.Raw {
	t.Helper()
	var list bson.A
	for _, op := range ops {
		list = append(list, op)
	}
	before := bson.D{{Key: "ts", Value: bson.Timestamp{}}, {Key: "t", Value: int64(-1)}}
	if prev > 0 {
		before = bson.D{{Key: "ts", Value: ts(prev)}, {Key: "t", Value: int64(1)}}
	}
	return oplogEntry(t, i, "c", "admin.$cmd", append(bson.D{{Key: "applyOps", Value: list}}, o...),
		bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: n}}}, bson.E{Key: "txnNumber", Value: 10 + n},
		bson.E{Key: "prevOpTime", Value: before})
}

func inner(op string, o bson.D, o2 bson.D) bson.D {
	d := bson.D{{Key: "op", Value: op}, {Key: "ns", Value: "d.c"}, {Key: "o", Value: o}}
	if o2 != nil {
		d = append(d, bson.E{Key: "o2", Value: o2})
	}
	return d
}

// TestDocumentKey: an event has the whole key of a sharded collection's document,
// wherever the entry has it.
func TestDocumentKey(t *testing.T) {
	key := bson.D{{Key: "shard", Value: 7}, {Key: "_id", Value: "k"}}
	whole := bson.D{{Key: "_id", Value: "k"}, {Key: "shard", Value: 7}, {Key: "x", Value: 1}}
	diff := bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "x", Value: 2}}}}}}
	for name, tc := range map[string]struct {
		op    string
		o, o2 bson.D
		kind  stream.Kind
		shard bson.D
	}{
		"insert":               {"i", whole, key, stream.Insert, key},
		"insert without a key": {"i", whole, nil, stream.Insert, nil},
		"update":               {"u", diff, key, stream.Update, key},
		"replacement":          {"u", whole, key, stream.Replace, key},
		"delete":               {"d", key, nil, stream.Delete, key},
	} {
		a := offline(discard, Options{})
		more := []bson.E{}
		if tc.o2 != nil {
			more = append(more, bson.E{Key: "o2", Value: tc.o2})
		}
		ok(t, a.entry(t.Context(), oplogEntry(t, 2, tc.op, "d.c", tc.o, more...)))
		ok(t, a.entry(t.Context(), applyOpsEntry(t, 3, 1, 0, nil, inner(tc.op, tc.o, tc.o2))))
		if len(a.events) != 2 {
			t.Fatalf("%s: %d events", name, len(a.events))
		}
		for _, ev := range a.events {
			var want bson.Raw
			if tc.shard != nil {
				want = kit.Raw(tc.shard)
			}
			if ev.Kind != tc.kind || string(ev.Key.Shard) != string(want) || ev.Key.ID.String() != `"k"` {
				t.Errorf("%s: kind %d, _id %s, key %s", name, ev.Kind, ev.Key.ID, ev.Key.Shard)
			}
		}
		if a.events[0].Txn != nil || a.events[1].Txn == nil {
			t.Errorf("%s: transactions %v and %v", name, a.events[0].Txn, a.events[1].Txn)
		}
	}
}

// TestTransactionName: the events of a transaction name it by one pointer, whether
// it has one entry or several, was prepared, or interleaves with another.
func TestTransactionName(t *testing.T) {
	insert := func(id int) bson.D { return inner("i", doc(id), nil) }
	partial, prepare := bson.D{{Key: "partialTxn", Value: true}}, bson.D{{Key: "prepare", Value: true}}
	entries := []bson.Raw{
		applyOpsEntry(t, 2, 1, 0, nil, insert(1), insert(2)),
		applyOpsEntry(t, 3, 2, 0, partial, insert(3)),
		applyOpsEntry(t, 4, 3, 0, prepare, insert(4)),
		oplogEntry(t, 5, "i", "d.c", doc(5)),
		applyOpsEntry(t, 6, 2, 3, nil, insert(6)),
		oplogEntry(t, 7, "c", "admin.$cmd", bson.D{{Key: "commitTransaction", Value: 1}},
			bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: int64(3)}}},
			bson.E{Key: "txnNumber", Value: int64(13)}, bson.E{Key: "prevOpTime",
				Value: bson.D{{Key: "ts", Value: ts(4)}, {Key: "t", Value: int64(1)}}}),
		// a retryable write
		oplogEntry(t, 8, "i", "d.c", doc(8), bson.E{Key: "lsid", Value: doc(1)}, bson.E{Key: "txnNumber", Value: int64(1)}),
	}
	a := offline(discard, Options{})
	for _, e := range entries {
		ok(t, a.entry(t.Context(), e))
	}
	want := []struct {
		id, session int32
		at          uint32
	}{{1, 1, 2}, {2, 1, 2}, {5, 0, 5}, {3, 2, 6}, {6, 2, 6}, {4, 3, 7}, {8, 0, 8}}
	if len(a.events) != len(want) {
		t.Fatalf("%d events", len(a.events))
	}
	for i, w := range want {
		ev := a.events[i]
		if got, _ := ev.Key.ID.Int32OK(); got != w.id || ev.At.TS != ts(w.at) || (ev.Txn != nil) != (w.session != 0) {
			t.Errorf("event %d: _id %s at %s, transaction %+v", i, ev.Key.ID, ev.At, ev.Txn)
			continue
		}
		if ev.Txn == nil {
			continue
		}
		if ev.Txn.Number != int64(10+w.session) || ev.Txn.Session.Lookup("id").Int64() != int64(w.session) {
			t.Errorf("event %d: transaction %+v", i, ev.Txn)
		}
		if i > 0 && want[i-1].session == w.session && a.events[i-1].Txn != ev.Txn {
			t.Errorf("event %d names its transaction by another pointer", i)
		}
	}
}

// TestTransactionsOfServer: the same of a real server's entries.
func TestTransactionsOfServer(t *testing.T) {
	c := connect(t, sharedURI)
	const db = "txn_named"
	ok(t, c.Client.Database(db).CreateCollection(t.Context(), "c"))
	coll := c.Client.Database(db).Collection("c")
	start := position(t, c)
	_, err := coll.InsertOne(t.Context(), doc(0))
	ok(t, err)
	x, y, z := begin(t, c), begin(t, c), begin(t, c)
	x.insert(db, "c", doc(1)).insert(db, "c", doc(2))
	_, err = coll.UpdateOne(x.ctx, doc(0), bson.D{{Key: "$set", Value: bson.D{{Key: "u", Value: 1}}}})
	ok(t, err)
	_, err = coll.DeleteOne(x.ctx, doc(0))
	ok(t, err)
	for i := range 3 {
		y.insert(db, "c", doc(10+i, "x", filler(6)))
	}
	z.insert(db, "c", doc(20))
	commit := z.prepare()
	x.commit()
	y.commit()
	commit()
	end := position(t, c)
	for _, buffer := range []int64{0, 1} { // in memory, and from the oplog again
		txns := map[*stream.Transaction]int{}
		sessions := map[string]bool{}
		plain := 0
		var last mongo.OpTime
		for _, b := range read(t, c, Options{Keep: only(db), TxnBufferBytes: buffer}, from(start), end) {
			for _, ev := range b.Events {
				if ev.Key.Shard != nil {
					if v := bsonraw.IDOf(ev.Key.Shard); !v.Equal(ev.Key.ID) {
						t.Errorf("key %s of _id %s", ev.Key.Shard, ev.Key.ID)
					}
				} else if ev.Kind != stream.Insert {
					t.Errorf("%s has no key", format(ev))
				}
				if ev.Txn == nil {
					plain++
					continue
				}
				if txns[ev.Txn] > 0 && ev.At != last {
					t.Errorf("%s at %s, others of its transaction at %s", format(ev), ev.At, last)
				}
				last = ev.At
				txns[ev.Txn]++
				sessions[string(ev.Txn.Session)] = true
				if ev.Txn.Number < 1 {
					t.Errorf("number %d", ev.Txn.Number)
				}
			}
		}
		sizes := map[int]int{}
		for _, n := range txns {
			sizes[n]++
		}
		if plain != 1 || len(sessions) != 3 || sizes[4] != 1 || sizes[3] != 1 || sizes[1] != 1 {
			t.Errorf("%d plain events, transactions of %v, %d sessions", plain, sizes, len(sessions))
		}
	}
}

// TestTransactionAllocations: naming transactions costs next to nothing, also
// where each has one operation.
func TestTransactionAllocations(t *testing.T) {
	const n = 1024
	entry := applyOpsEntry(t, 0, 1, 0, nil, inner("i", doc("key"), nil))
	a := offline(func(context.Context, *stream.Batch) error { return nil }, Options{})
	per := testing.AllocsPerRun(10, func() {
		a.events, a.capacity = nil, n
		for range n {
			a.seen = mongo.OpTime{}
			if err := a.entry(t.Context(), entry); err != nil {
				t.Fatal(err)
			}
		}
	})
	if per > n/32 {
		t.Errorf("%.0f allocations for %d transactions", per, n)
	}
	if id := a.events[n-1].Key.ID; a.events[0].Txn == a.events[1].Txn ||
		!id.Equal(bsoncore.Value{Type: bsoncore.TypeString, Data: bsoncore.AppendString(nil, "key")}) {
		t.Errorf("events %+v", a.events[:2])
	}
}
