package changestream

import (
	"context"
	"encoding/hex"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/wire"
	"github.com/millrace/millrace/test/kit"
)

// TestDescribed: an updateDescription becomes the update that it means, or none if that is not certain.
func TestDescribed(t *testing.T) {
	a := func(values ...any) bson.A { return append(bson.A{}, values...) }
	doc := d("_id", 1, "a", d("b", 1, "c", a(1, 2, 3)), "a.b", 5, "n", a(d("x", 1), 2, 3), "0", d("1", 1))
	for _, c := range []struct {
		name   string
		update bson.D
		form   delta.Kind
		want   bson.D
	}{
		{"modifiers", d("updatedFields", d("a.b", 2, "n.1", 7, "z", 1), "removedFields", a("0.1")), delta.Modifiers,
			d("_id", 1, "a", d("b", 2, "c", a(1, 2, 3)), "a.b", 5, "n", a(d("x", 1), 7, 3), "0", d(), "z", 1)},
		{"no path", d("updatedFields", d("a", 2, "z", 1), "removedFields", a("0"),
			"truncatedArrays", a(d("field", "n", "newSize", 1))), delta.Diff,
			d("_id", 1, "a", 2, "a.b", 5, "n", a(d("x", 1)), "z", 1)},
		{"ambiguous", d("updatedFields", d("a.b", 2), "removedFields", a(), "truncatedArrays", a()), delta.Invalid, nil},
		{"paths", d("updatedFields", d("a.b", 2, "n.0.x", 3, "n.2", 4, "0.1", 8, "a.n.w", 5), "removedFields", a(),
			"truncatedArrays", a(d("field", "a.c", "newSize", 2)),
			"disambiguatedPaths", d("n.0.x", a("n", 0, "x"), "n.2", a("n", 2), "0.1", a("0", "1"))), delta.Diff,
			d("_id", 1, "a", d("b", 2, "c", a(1, 2)), "a.b", 5, "n", a(d("x", 3), 2, 4), "0", d("1", 8))},
		{"a dot in a name", d("updatedFields", d("a.b", 2), "removedFields", a(), "truncatedArrays", a(),
			"disambiguatedPaths", d("a.b", a("a.b"))), delta.Diff,
			d("_id", 1, "a", d("b", 1, "c", a(1, 2, 3)), "a.b", 2, "n", a(d("x", 1), 2, 3), "0", d("1", 1))},
		{"cut and set", d("updatedFields", d("a.c.0", 9), "removedFields", a("n"),
			"truncatedArrays", a(d("field", "a.c", "newSize", 1)), "disambiguatedPaths", d("a.c.0", a("a", "c", 0))),
			delta.Diff, d("_id", 1, "a", d("b", 1, "c", a(9)), "a.b", 5, "0", d("1", 1))},
		{"twice", d("updatedFields", d("a.b", 2, "a.b", 3), "removedFields", a(), "truncatedArrays", a(),
			"disambiguatedPaths", d("a.b", a("a.b"), "a.b", a("a", "b"))), delta.Invalid, nil},
		{"in conflict", d("updatedFields", d("a", 2, "a.b", 3), "removedFields", a(), "truncatedArrays", a(),
			"disambiguatedPaths", d()), delta.Invalid, nil},
	} {
		form, o, err := described(kit.Raw(c.update))
		if err != nil || form != c.form {
			t.Errorf("%s: %s, %v", c.name, form, err)
			continue
		}
		if form == delta.Invalid {
			continue
		}
		u, err := delta.ParseAs(form, o)
		if err != nil {
			t.Errorf("%s: %s: %v", c.name, o, err)
			continue
		}
		got, skipped, err := delta.Apply(nil, kit.Raw(doc), u)
		want := kit.Raw(c.want)
		if c.name == "paths" { // a.n is not there
			skipped--
		}
		if err != nil || skipped != 0 || string(got) != string(want) {
			t.Errorf("%s: %s, skipped %d, %v\nwant %s", c.name, bson.Raw(got), skipped, err, want)
		}
	}
	if _, _, err := described(kit.Raw(d("updatedFields", d(), "newField", 1))); err == nil {
		t.Error("an unknown field is ignored")
	}
}

// TestTokens: what tokens of servers say, and their form in positions.
func TestTokens(t *testing.T) {
	const event = "826B0D4BCB00000002" + "2B022C0100296E5A10044BF05F1851144265BBACA0306FFB74B8461E5F6964002B020004"
	const inTransaction = "826B0D4BCC00000021" +
		"2B022C01002B026E5A1004A905E63499A84B719C1D280BF5688755461E5F6964002B020004"
	const newest = "826B0D4BC700000002" + "2B0229296E04"
	for data, want := range map[string]string{event: "4bf05f1851144265bbaca0306ffb74b8",
		inTransaction: "a905e63499a84b719c1d280bf5688755", newest: ""} {
		tok, err := parseToken(kit.Raw(d("_data", data)))
		if err != nil {
			t.Fatal(err)
		}
		var got string
		if id := tok.uuid(); id != nil {
			got = hex.EncodeToString(id[:])
		}
		if got != want || tok.at().TS.T != 0x6B0D4BC7 && tok.at().TS.T&^0xf != 0x6B0D4BC0 {
			t.Errorf("%s: %s at %s", data, got, tok.at())
		}
	}
	typed := kit.Raw(d("_data", event, "_typeBits", bson.Binary{Data: []byte{0x82, 1}}))
	tok, err := parseToken(typed)
	if err != nil {
		t.Fatal(err)
	}
	again, err := fromMark(tok.mark())
	if err != nil || string(kit.Raw(again)) != string(typed) {
		t.Errorf("%s: %v, %v", tok.mark(), again, err)
	}
	if _, err := hex.DecodeString(tok.mark()); err != nil {
		t.Errorf("%s: %v", tok.mark(), err)
	}
	for _, bad := range []string{"", "12:3/4", event + "/x", "83" + event[2:], event[:16], "FF", "82FFFF",
		event[:18] + "FFFFFF"} {
		if _, err := fromMark(bad); err == nil {
			t.Errorf("%q is a token", bad)
		}
	}
	for _, bad := range []bson.D{d(), d("_data", 1), d("_data", "82")} {
		if _, err := parseToken(kit.Raw(bad)); err == nil {
			t.Errorf("%v is a token", bad)
		}
	}
}

// hand gives hand-made events to an assembler, and returns its batches.
func hand(t testing.TB, s Support, docs ...bson.D) []*stream.Batch {
	t.Helper()
	var bs []*stream.Batch
	src := New(&mongo.Cluster{Info: mongo.Info{Kind: mongo.KindReplicaSet}}, Options{Support: s})
	a := newAssembler(src, stream.Position{At: mongo.OpTime{TS: bson.Timestamp{T: 1}}},
		func(_ context.Context, b *stream.Batch) error {
			bs = append(bs, b)
			return nil
		})
	if err := a.reply(t.Context(), madeReply(docs...)); err != nil {
		t.Fatal(err)
	}
	if err := a.flush(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	return bs
}

func madeReply(docs ...bson.D) reply {
	var elements []byte
	var last token
	for _, doc := range docs {
		raw := kit.Raw(doc)
		elements = append(append(elements, byte(bson.TypeEmbeddedDocument), '0', 0), raw...)
		last, _ = parseToken(raw.Lookup("_id").Document())
	}
	return reply{wire.BatchOf(elements), last}
}

func event(at string, op string, more ...any) bson.D {
	uuid := bson.Binary{Subtype: bson.TypeBinaryUUID, Data: []byte("0123456789abcdef")}
	return append(d("_id", d("_data", "82"+strings.Repeat("0", 8-len(at))+at+"000000012B0229296E04"), "operationType", op,
		"ns", d("db", "db", "coll", "c"), "collectionUUID", uuid), d(more...)...)
}

// TestSplit: the fragments of an event are one event, of the last one's token.
func TestSplit(t *testing.T) {
	first := event("20", "insert", "fullDocument", d("_id", 7, "a", 1), "splitEvent", d("fragment", 1, "of", 3))
	second := d("_id", first[0].Value, "documentKey", d("_id", 7), "splitEvent", d("fragment", 2, "of", 3))
	third := d("_id", first[0].Value, "wallTime", bson.DateTime(5), "splitEvent", d("fragment", 3, "of", 3))
	bs := hand(t, Support{Split: true}, first, second, third, event("21", "delete", "documentKey", d("_id", 7)))
	got := of(bs, "db")
	if len(got) != 2 || got[0].Kind != stream.Insert || got[0].Key.ID.Int32() != 7 || len(got[0].Doc) == 0 ||
		bs[0].End.TS.T != 0x20 {
		t.Errorf("%d events, end %s: %s", len(got), bs[0].End, lines(got))
	}
}

// TestMoves: a document may go to another shard by the deletion and the insertion of a transaction, whichever comes
// first.
func TestMoves(t *testing.T) {
	txn := []any{"lsid", d("id", bson.Binary{Subtype: bson.TypeBinaryUUID, Data: make([]byte, 16)}), "txnNumber", int64(1)}
	byKey, byID := d("k", 1, "_id", 7), d("_id", 7)
	for _, tc := range []struct {
		op    string
		key   bson.D
		txn   []any
		moves bool
	}{
		{"delete", byKey, txn, true}, {"insert", byKey, txn, true}, {"update", byKey, txn, false},
		{"delete", byID, txn, false}, {"insert", byID, txn, false}, {"delete", byKey, nil, false},
		{"insert", byKey, nil, false},
	} {
		var c change
		doc := kit.Raw(event("20", tc.op, append([]any{"documentKey", tc.key}, tc.txn...)...))
		if err := c.parse(doc); err != nil || c.moves() != tc.moves {
			t.Errorf("%s of %v, transaction %t: moves %t, %v", tc.op, tc.key, tc.txn != nil, c.moves(), err)
		}
	}
}

// TestReshard: a resharded collection is reported as by an oplog, and other changes of shard keys are not.
func TestReshard(t *testing.T) {
	uuid := bson.Binary{Subtype: bson.TypeBinaryUUID, Data: []byte("fedcba9876543210")}
	bs := hand(t, Support{Expanded: true},
		event("20", "shardCollection", "operationDescription", d("shardKey", d("a", 1))),
		event("21", "refineCollectionShardKey", "operationDescription", d("shardKey", d("a", 1, "b", 1))),
		event("22", "reshardCollection", "operationDescription", d("reshardUUID", uuid, "shardKey", d("b", 1))),
		event("23", "delete", "documentKey", d("_id", 7)))
	got := of(bs, "db")
	if len(got) != 2 || got[0].Change == nil {
		t.Fatalf("%s", lines(got))
	}
	ch := got[0].Change
	if c, _ := mongo.Staged(ch.NS); c != mongo.CommandReshard || ch.Command != c || ch.To != "db.c" || !ch.DropTarget ||
		!ch.UUID.Equal(uuid) || ch.Mark == "" {
		t.Errorf("%+v", ch)
	}
}

// TestUnseen: commands whose documents or steps are not reported end jobs that keep the collection, with a remedy.
func TestUnseen(t *testing.T) {
	all := Support{Expanded: true, Copies: true}
	for name, c := range map[string]struct {
		o     Options
		from  string
		fails bool
	}{
		"capped":              {Options{Support: all}, "tmpabcde.convertToCapped.c", false},
		"capped by a router":  {Options{Support: Support{Expanded: true}}, "tmpabcde.convertToCapped.c", true},
		"moved":               {Options{Support: Support{Expanded: true}}, "tmpabcde.renameCollection", false},
		"moved before 6.0":    {Options{}, "tmpabcde.renameCollection", true},
		"moved, under rules":  {Options{Support: all, JoinRenames: true}, "tmpabcde.renameCollection", true},
		"moved, but excluded": {Options{Keep: func(string) bool { return false }}, "tmpabcde.renameCollection", false},
		"out":                 {Options{JoinRenames: true}, "tmp.agg_out.1", false},
	} {
		doc := event("20", "rename", "to", d("db", "db", "coll", "c"))
		doc[2].Value = d("db", "db", "coll", c.from)
		a := newAssembler(New(&mongo.Cluster{}, c.o), stream.Position{At: mongo.OpTime{TS: bson.Timestamp{T: 1}}},
			func(context.Context, *stream.Batch) error { return nil })
		err := a.reply(t.Context(), madeReply(doc))
		if (err != nil) != c.fails || err != nil && mongo.HintOf(err) == "" {
			t.Errorf("%s: %v (hint: %s)", name, err, mongo.HintOf(err))
		}
	}
}

// TestUnknown: what is not understood is an error that names it.
func TestUnknown(t *testing.T) {
	for name, c := range map[string]struct {
		doc  bson.D
		want string
	}{
		"kind":    {event("20", "explode"), "event explode of db.c at 32:1"},
		"no key":  {event("20", "insert", "fullDocument", d("_id", 1)), "db.c"},
		"no doc":  {event("20", "insert", "documentKey", d("_id", 1)), "_id"},
		"no _id":  {event("20", "delete", "documentKey", d("a", 1)), "without _id"},
		"update":  {event("20", "update", "documentKey", d("_id", 1)), "updateDescription"},
		"form":    {event("20", "update", "documentKey", d("_id", 1), "rawUpdateDescription", d("$v", 3)), "$v:2"},
		"indexes": {event("20", "createIndexes"), "createIndexes of db.c"},
		"types":   {event("20", "insert", "documentKey", 1), "documentKey"},
		"invalid": {event("20", "invalidate")[:2], "invalidate"},
		"no ns":   {event("20", "explode")[:2], "explode"},
	} {
		src := New(&mongo.Cluster{}, Options{Support: Support{Expanded: true}})
		a := newAssembler(src, stream.Position{At: mongo.OpTime{TS: bson.Timestamp{T: 1}}},
			func(context.Context, *stream.Batch) error { return nil })
		err := a.reply(t.Context(), madeReply(c.doc))
		if err == nil || !strings.Contains(err.Error(), c.want) || mongo.Classify(err) != mongo.ClassFatal {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAllocations: an event costs no allocation, but for its part of the batch.
func TestAllocations(t *testing.T) {
	var docs []bson.D
	for range 1000 {
		docs = append(docs, event("20", "update", "documentKey", d("_id", 1), "rawUpdateDescription",
			d("$v", int32(2), "diff", d("u", d("a", 1)))))
	}
	rep := madeReply(docs...)
	src := New(&mongo.Cluster{}, Options{Support: Support{Expanded: true, Raw: true}})
	a := newAssembler(src, stream.Position{At: mongo.OpTime{TS: bson.Timestamp{T: 1}}},
		func(context.Context, *stream.Batch) error { return nil })
	allocs := testing.AllocsPerRun(20, func() {
		if err := a.reply(t.Context(), rep); err != nil {
			t.Fatal(err)
		}
		if err := a.flush(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 20 {
		t.Errorf("%.0f allocations for 1000 events", allocs)
	}
}

// FuzzEvent: damaged events end in errors.
func FuzzEvent(f *testing.F) {
	f.Add([]byte(kit.Raw(event("20", "insert", "fullDocument", d("_id", 7), "documentKey", d("_id", 7)))))
	f.Add([]byte(kit.Raw(event("20", "update", "documentKey", d("_id", 1), "updateDescription",
		d("updatedFields", d("a.b", 1), "removedFields", bson.A{"x"},
			"truncatedArrays", bson.A{d("field", "n", "newSize", 1)}, "disambiguatedPaths", d("a.b", bson.A{"a", 1}))))))
	f.Add([]byte(kit.Raw(event("20", "rename", "to", d("db", "db", "coll", "e"), "operationDescription",
		d("dropTarget", true)))))
	f.Add([]byte(kit.Raw(event("20", "createIndexes", "operationDescription", d("indexes", bson.A{d("name", "a")})))))
	f.Fuzz(func(t *testing.T, doc []byte) {
		if len(doc) < 5 {
			return
		}
		src := New(&mongo.Cluster{}, Options{Support: Support{Expanded: true, Raw: true}})
		a := newAssembler(src, stream.Position{At: mongo.OpTime{TS: bson.Timestamp{T: 1}}},
			func(context.Context, *stream.Batch) error { return nil })
		_ = a.event(doc)
	})
}

// TestTimeOf: the data of a token begin with its time.
func TestTimeOf(t *testing.T) {
	reply := kit.Raw(kit.D("cursor", kit.D("postBatchResumeToken", kit.D("_data", "8265A1B2C3000000072B0229296E04"))))
	want := mongo.OpTime{TS: bson.Timestamp{T: 0x65A1B2C3, I: 7}, Term: -1}
	if got := TimeOf(reply); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got := TimeOf(kit.Raw(kit.D("cursor", kit.D("id", 1)))); !got.IsZero() {
		t.Errorf("of none %v", got)
	}
	if !IsToken("8265A1B2C3000000072B0229296E04") || IsToken("1700000000:1/2") || IsToken(`{"s0":"1:1/1"}`) {
		t.Error("tokens are not told from other marks")
	}
}
