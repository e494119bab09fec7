package oplog

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
)

func ts(i uint32) bson.Timestamp { return bson.Timestamp{T: 1000, I: i} }

// oplogEntry makes an entry with the fields of a real one.
func oplogEntry(t testing.TB, i uint32, op, ns string, o bson.D, more ...bson.E) bson.Raw {
	t.Helper()
	d := bson.D{
		{Key: "op", Value: op}, {Key: "ns", Value: ns},
		{Key: "ui", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}},
		{Key: "o", Value: o}, {Key: "ts", Value: ts(i)}, {Key: "t", Value: int64(1)},
		{Key: "v", Value: int64(2)}, {Key: "wall", Value: bson.DateTime(1_000_000)},
	}
	return kit.Raw(append(d, more...))
}

// offline is an assembler without a source behind it.
func offline(emit func(context.Context, *stream.Batch) error, opt Options) *assembler {
	o := New(&mongo.Cluster{}, opt)
	return newAssembler(o, mongo.OpTime{}, mongo.OpTime{TS: ts(1)}, emit)
}

func discard(context.Context, *stream.Batch) error { return nil }

func TestParseEntry(t *testing.T) {
	lsid := bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}
	doc := oplogEntry(t, 7, "u", "d.c", bson.D{{Key: "$v", Value: 2}},
		bson.E{Key: "o2", Value: bson.D{{Key: "shard", Value: 1}, {Key: "_id", Value: "k"}}},
		bson.E{Key: "lsid", Value: lsid}, bson.E{Key: "txnNumber", Value: int64(5)},
		bson.E{Key: "prevOpTime", Value: bson.D{{Key: "ts", Value: ts(6)}, {Key: "t", Value: int64(1)}}},
		bson.E{Key: "fromMigrate", Value: true}, bson.E{Key: "multiOpType", Value: 1})
	e, err := parseEntry(doc)
	ok(t, err)
	if e.at != (mongo.OpTime{TS: ts(7), Term: 1}) || string(e.op) != "u" || string(e.ns) != "d.c" || len(e.ui) != 16 ||
		e.txn.number != 5 || !bytes.Equal(e.txn.lsid, kit.Raw(lsid)) || e.prev != (mongo.OpTime{TS: ts(6), Term: 1}) ||
		!e.fromMigrate || !e.separate || e.inTransaction() {
		t.Errorf("%+v", e)
	}
	if v := bsonraw.IDOf(e.o2); v.String() != `"k"` {
		t.Errorf("_id %s", v)
	}
	if e, err = parseEntry(kit.Raw(bson.D{{Key: "ts", Value: ts(1)}})); err != nil || e.at.Term != -1 {
		t.Errorf("an entry without a term has %d, %v", e.at.Term, err)
	}
}

// Every cut and every changed byte is an error or another entry, never a panic.
func TestMalformedEntries(t *testing.T) {
	whole := oplogEntry(t, 2, "c", "admin.$cmd", bson.D{{Key: "applyOps", Value: bson.A{
		bson.D{{Key: "op", Value: "i"}, {Key: "ns", Value: "d.c"}, {Key: "o", Value: doc(1)}},
	}}})
	for i := range whole {
		_ = offline(discard, Options{}).entry(t.Context(), whole[:i])
		for _, v := range []byte{0, 1, 0x7f, 0x80, 0xff} {
			changed := bytes.Clone(whole)
			changed[i] = v
			_ = offline(discard, Options{}).entry(t.Context(), changed)
		}
	}
	for name, doc := range map[string]bson.Raw{
		"unknown op":      oplogEntry(t, 2, "xyz", "d.c", doc(1)),
		"update of no id": oplogEntry(t, 2, "u", "d.c", doc(1)),
		"delete of no id": oplogEntry(t, 2, "d", "d.c", bson.D{{Key: "x", Value: 1}}),
		"no time":         kit.Raw(bson.D{{Key: "op", Value: "n"}}),
		"commit of nothing": oplogEntry(t, 2, "c", "admin.$cmd", bson.D{{Key: "commitTransaction", Value: 1}},
			bson.E{Key: "lsid", Value: doc(1)}, bson.E{Key: "txnNumber", Value: int64(1)}),
		"unknown command": oplogEntry(t, 2, "c", "d.$cmd", bson.D{{Key: "frobnicate", Value: 1}}),
	} {
		if err := offline(discard, Options{}).entry(t.Context(), doc); err == nil {
			t.Errorf("%s: no error", name)
		} else if name != "no time" && !strings.Contains(err.Error(), "1000:2") {
			t.Errorf("%s: the error names no position: %v", name, err)
		}
	}
}

// Newer servers write several retryable statements into one applyOps that is
// no transaction, although it has a session and a number.
func TestSeparateOperations(t *testing.T) {
	var got []*stream.Batch
	a := offline(func(_ context.Context, b *stream.Batch) error { got = append(got, b); return nil }, Options{})
	ok(t, a.entry(t.Context(), oplogEntry(t, 2, "c", "admin.$cmd", bson.D{{Key: "applyOps", Value: bson.A{
		bson.D{{Key: "op", Value: "i"}, {Key: "ns", Value: "d.c"}, {Key: "o", Value: doc(1)}},
	}}}, bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: 1}}}, bson.E{Key: "txnNumber", Value: int64(1)},
		bson.E{Key: "prevOpTime", Value: bson.D{{Key: "ts", Value: ts(1)}, {Key: "t", Value: int64(1)}}},
		bson.E{Key: "multiOpType", Value: int32(1)})))
	ok(t, a.flush(t.Context(), false, false))
	kit.SameLines(t, events(got), []string{`insert d.c 1 {"_id":1}`})
}

// Deletions that may be those of expired documents have the time of day, also where a server
// groups them, whatever version the source has by now; those of sessions and of what users
// are known to have sent have none.
func TestWall(t *testing.T) {
	session := []bson.E{{Key: "lsid", Value: bson.D{{Key: "id", Value: 1}}}, {Key: "txnNumber", Value: int64(1)}}
	inner := bson.A{bson.D{{Key: "op", Value: "d"}, {Key: "ns", Value: "d.c"}, {Key: "o", Value: doc(1)}}}
	grouped := func(i uint32, more ...bson.E) bson.Raw {
		return oplogEntry(t, i, "c", "admin.$cmd", bson.D{{Key: "applyOps", Value: inner}}, more...)
	}
	sent := oplogEntry(t, 5, "c", "admin.$cmd", bson.D{{Key: "applyOps", Value: inner}, {Key: "$db", Value: "admin"}})
	for _, version := range []mongo.Version{{Major: 6, Patch: 5}, {Major: 6, Minor: 2}, {Major: 7}} {
		var got []*stream.Batch
		a := offline(func(_ context.Context, b *stream.Batch) error { got = append(got, b); return nil }, Options{})
		a.o.cluster.Info.Version = version
		for _, e := range []bson.Raw{oplogEntry(t, 2, "d", "d.c", doc(1)), oplogEntry(t, 3, "d", "d.c", doc(1), session...),
			grouped(4), sent, grouped(6, session...),
			grouped(7, append(session, bson.E{Key: "multiOpType", Value: int32(1)})...), oplogEntry(t, 8, "d", "d.c", doc(1)),
			oplogEntry(t, 9, "i", "d.c", doc(1))} {
			ok(t, a.entry(t.Context(), e))
		}
		ok(t, a.flush(t.Context(), false, false))
		var walls []int64
		for _, b := range got {
			for _, ev := range b.Events {
				walls = append(walls, ev.Wall)
			}
		}
		if want := []int64{1_000_000, 0, 1_000_000, 0, 0, 0, 1_000_000, 0}; !slices.Equal(walls, want) {
			t.Errorf("%v: %v, want %v", version, walls, want)
		}
	}
}

// Keep is asked once per namespace, and not for what is none of its business.
func TestKeepIsAskedOnce(t *testing.T) {
	asked := map[string]int{}
	a := offline(discard, Options{Keep: func(ns string) bool { asked[ns]++; return ns != "d.no" }})
	i := uint32(1)
	for range 3 {
		for _, ns := range []string{"d.yes", "d.no", "d.system.buckets.b", "config.transactions", "admin.system.keys",
			"local.x", "millrace.jobs"} {
			i++
			ok(t, a.entry(t.Context(), oplogEntry(t, i, "i", ns, doc(1))))
		}
	}
	if len(asked) != 3 || asked["d.yes"] != 1 || asked["d.no"] != 1 || asked["d.system.buckets.b"] != 1 {
		t.Errorf("asked %v", asked)
	}
	if len(a.events) != 6 {
		t.Errorf("%d events", len(a.events))
	}
}

// Migrated documents are only dropped where that is asked for.
func TestSkipMigrated(t *testing.T) {
	for _, skip := range []bool{false, true} {
		for ns, own := range map[string]bool{"d.c": false, "d.tmpa1B2c.convertToCapped.c": true,
			"d.tmpa1B2c.renameCollection": true, "d.tmpa1B2c.renameCollections": false, "d.tmp.renameCollection": false} {
			a := offline(discard, Options{SkipMigrated: skip})
			ok(t, a.entry(t.Context(), oplogEntry(t, 2, "i", ns, doc(1), bson.E{Key: "fromMigrate", Value: true})))
			if (len(a.events) == 0) != (skip && !own) {
				t.Errorf("%s, skip %v: %d events", ns, skip, len(a.events))
			}
		}
	}
}

// The open transactions' memory is bounded, however many there are.
func TestManyOpenTransactions(t *testing.T) {
	const limit = 100_000
	a := offline(discard, Options{TxnBufferBytes: limit})
	zero := bson.D{{Key: "ts", Value: bson.Timestamp{}}, {Key: "t", Value: int64(-1)}}
	for i := range uint32(1000) {
		ok(t, a.entry(t.Context(), oplogEntry(t, i+2, "c", "admin.$cmd", bson.D{{Key: "applyOps", Value: bson.A{
			bson.D{{Key: "op", Value: "i"}, {Key: "ns", Value: "d.c"},
				{Key: "o", Value: doc(1, "x", strings.Repeat("x", 1000))}},
		}}, {Key: "prepare", Value: true}}, bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: int32(i)}}},
			bson.E{Key: "txnNumber", Value: int64(1)}, bson.E{Key: "prevOpTime", Value: zero})))
	}
	var ops int64
	for _, x := range a.txns.open {
		ops += x.bytes
	}
	if len(a.txns.open) != 1000 || ops > limit {
		t.Errorf("%d open, %d bytes of operations", len(a.txns.open), ops)
	}
	if first := a.txns.first(); first.TS != ts(2) {
		t.Errorf("oldest %s", first)
	}
	ok(t, a.entry(t.Context(), oplogEntry(t, 2000, "c", "admin.$cmd", bson.D{{Key: "abortTransaction", Value: 1}},
		bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: int32(0)}}}, bson.E{Key: "txnNumber", Value: int64(1)})))
	if first := a.txns.first(); first.TS != ts(3) {
		t.Errorf("oldest %s after the oldest was aborted", first)
	}
}

// TestAllocations is the budget of the hot path: nothing for an entry but its
// place in the events slice.
func TestAllocations(t *testing.T) {
	entries := []bson.Raw{
		oplogEntry(t, 0, "i", "d.c", doc("key", "x", 1)),
		oplogEntry(t, 0, "u", "d.c", bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: bson.D{}}},
			bson.E{Key: "o2", Value: doc("key")}),
		oplogEntry(t, 0, "d", "d.c", doc("key")),
		oplogEntry(t, 0, "i", "d.unwanted", doc("key", "x", 1)),
		oplogEntry(t, 0, "n", "", bson.D{{Key: "msg", Value: "periodic noop"}}),
	}
	a := offline(discard, Options{Keep: func(ns string) bool { return ns == "d.c" }})
	a.capacity = 10_000
	for _, doc := range entries { // names the namespaces
		a.seen = mongo.OpTime{}
		ok(t, a.entry(t.Context(), doc))
	}
	per := testing.AllocsPerRun(100, func() {
		for _, doc := range entries {
			a.seen = mongo.OpTime{}
			if err := a.entry(t.Context(), doc); err != nil {
				t.Fatal(err)
			}
		}
	})
	if per > 0 {
		t.Errorf("%.1f allocations for %d entries", per, len(entries))
	}
}

// FuzzEntry: no bytes make the assembler panic, loop, or hold on to more than
// they are.
func FuzzEntry(f *testing.F) {
	f.Add([]byte(oplogEntry(f, 2, "i", "d.c", doc(1))))
	f.Add([]byte(oplogEntry(f, 2, "u", "d.c", bson.D{{Key: "$v", Value: 2}}, bson.E{Key: "o2", Value: doc(1)})))
	f.Add([]byte(oplogEntry(f, 2, "d", "d.c", doc(1))))
	f.Add([]byte(oplogEntry(f, 2, "c", "d.$cmd", bson.D{{Key: "drop", Value: "c"}})))
	f.Add([]byte(oplogEntry(f, 2, "c", "admin.$cmd", bson.D{{Key: "applyOps", Value: bson.A{
		bson.D{{Key: "op", Value: "i"}, {Key: "ns", Value: "d.c"}, {Key: "o", Value: doc(1)}},
		bson.D{{Key: "op", Value: "c"}, {Key: "ns", Value: "admin.$cmd"},
			{Key: "o", Value: bson.D{{Key: "applyOps", Value: bson.A{}}}}},
	}}, {Key: "prepare", Value: true}}, bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: 1}}},
		bson.E{Key: "txnNumber", Value: int64(1)},
		bson.E{Key: "prevOpTime", Value: bson.D{{Key: "ts", Value: bson.Timestamp{}}, {Key: "t", Value: int64(-1)}}})))
	f.Fuzz(func(t *testing.T, data []byte) {
		n := 0
		if data = bytes.Clone(data); len(data) > 4 { // past the first check
			binary.LittleEndian.PutUint32(data, uint32(len(data)))
			data[len(data)-1] = 0
		}
		a := offline(func(_ context.Context, b *stream.Batch) error { n += len(b.Events); return nil },
			Options{BatchBytes: 100})
		if e, err := parseEntry(data); err == nil && string(e.op) == "c" && !e.prev.IsZero() {
			return // would ask a server for the rest
		}
		if err := a.entry(t.Context(), data); err == nil {
			e, _ := parseEntry(data)
			if !slices.Contains([]string{"i", "u", "d", "c", "n", "ci", "cd", "cu", "km"}, string(e.op)) {
				t.Errorf("an entry of the kind %q is skipped", e.op)
			}
		}
		_ = a.flush(t.Context(), false, false)
		if n > len(data) || a.txns.bytes > int64(len(data))+txnOverhead {
			t.Errorf("%d bytes became %d events and %d bytes of transactions", len(data), n, a.txns.bytes)
		}
	})
}

// BenchmarkAssemble is entries into events without a server.
func BenchmarkAssemble(b *testing.B) {
	doc := oplogEntry(b, 2, "i", "d.c", doc("key", "x", strings.Repeat("x", 200)))
	a := offline(discard, Options{})
	b.ReportAllocs()
	b.SetBytes(int64(len(doc)))
	for b.Loop() {
		a.seen = mongo.OpTime{}
		if err := a.entry(b.Context(), doc); err != nil {
			b.Fatal(err)
		}
	}
}

// A consumer's error ends the run as it is.
func TestEmitError(t *testing.T) {
	c := connect(t, sharedURI)
	err := New(c, Options{}).Run(t.Context(), from(position(t, c)),
		func(context.Context, *stream.Batch) error { return errReached })
	if !errors.Is(err, errReached) {
		t.Fatal(err)
	}
}
