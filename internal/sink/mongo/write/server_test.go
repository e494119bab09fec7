package write

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/wire"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// bed is a writer and a collection of its own on a server.
type bed struct {
	*testing.T
	w   *Writer
	all *Writers
	c   *mongo.Cluster
	uri string
	to  *fold.Target
}

// TestServer runs what needs a server, on one.
func TestServer(t *testing.T) {
	t.Parallel()
	uri := lab.ForTest(t, lab.Options{TestCommands: true}).URI()
	c := dial.Cluster(t, uri, mongo.Options{})
	txn, err := c.NewTransactions()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { txn.End(context.Background()) })
	for name, test := range map[string]func(*bed){
		"outcomes": testOutcomes, "ordered": testOrdered, "reinsert": testReinsert, "exchange": testExchange,
		"special": testSpecial,
		"read":    testRead, "batched": testBatched, "term": testTerm, "failed": testFailed, "capped": testCapped,
		"rewrite": testRewrite,
		"near":    testNear, "histories": testHistories, "spared": testSpared,
	} {
		t.Run(name, func(t *testing.T) {
			terms := 0
			all := NewWriters(Options{Target: c, Transactions: txn, TransactionOps: 3,
				SameTerm: func(int64) error { terms++; return nil }})
			w := all.NewBatched(0)
			defer w.Release()
			test(&bed{T: t, w: w, all: all, c: c, uri: uri, to: fold.NewTarget("write." + name)})
			if terms == 0 {
				t.Error("no term was reported")
			}
		})
	}
}

func (b *bed) run(cmd bson.D) {
	b.Helper()
	if err := b.c.Client.Database(b.to.DB).RunCommand(b.Context(), cmd).Err(); err != nil {
		b.Fatal(err)
	}
}

func (b *bed) unique(field string) {
	b.Helper()
	b.run(bson.D{{Key: "createIndexes", Value: b.to.Coll}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: field, Value: 1}}}, {Key: "name", Value: field},
			{Key: "unique", Value: true}, {Key: "sparse", Value: true}}}}})
}

func (b *bed) op(k stream.Kind, id any, fields ...bson.E) fold.Op {
	b.Helper()
	o := fold.Op{Kind: k, ID: valueOf(b, id), At: mongo.OpTime{TS: bson.Timestamp{T: 9}}}
	if k != stream.Delete {
		o.Doc = kit.Raw(append(bson.D{{Key: "_id", Value: id}}, fields...))
	}
	return o
}

func (b *bed) write(ops ...fold.Op) []Result {
	b.Helper()
	results, err := b.w.Write(b.Context(), b.to, ops)
	if err != nil {
		b.Fatal(err)
	}
	return results
}

// applied writes operations all of which have to be taken.
func (b *bed) applied(ops ...fold.Op) {
	b.Helper()
	for _, r := range b.write(ops...) {
		b.Errorf("%s of %s: outcome %d, %v", r.Op.Kind, bsonraw.IDText(r.Op.ID), r.Outcome, r.Reply)
	}
}

// want compares a document of the target, nil for none.
func (b *bed) want(id any, doc bson.Raw) {
	b.Helper()
	got, err := b.w.ReadOne(b.Context(), b.to, valueOf(b, id))
	if err != nil || !bytes.Equal(got, doc) {
		b.Errorf("_id %v: %s (%v), want %s", id, got, err, doc)
	}
}

func field(name string, v any) bson.E { return bson.E{Key: name, Value: v} }

// testSpared: a deletion of what has not expired leaves what has, and so does a mark.
func testSpared(b *bed) {
	left := int64(0)
	b.to.Expiry, b.to.Left = expiry.Settings{{Field: "at", Seconds: 10}}, func(n int64) { left += n }
	date := func(s int64) bson.E { return field("at", bson.DateTime(s*1000)) }
	for id := range 10 {
		at := int64(100)
		if id >= 5 {
			at = 5
		}
		b.applied(b.op(stream.Insert, id, date(at)))
	}
	unless := func(o fold.Op) fold.Op {
		o.Wall = 20_000
		return o
	}
	mark := func(id int) fold.Op {
		return unless(updateOp(b, id, bson.D{{Key: "i", Value: bson.D{{Key: "gone", Value: true}}}}))
	}
	b.applied(unless(b.op(stream.Delete, 0)), unless(b.op(stream.Delete, 5)), b.op(stream.Delete, 1),
		b.op(stream.Delete, 6), unless(b.op(stream.Delete, 77)),
		mark(2), mark(7), mark(78))
	for range 2 { // again, after a crash
		b.applied(unless(b.op(stream.Delete, 5)), mark(2))
	}
	for id := range 10 {
		doc := bson.D{{Key: "_id", Value: id}, date(100)}
		switch {
		case id == 0 || id == 1 || id == 6:
			b.want(id, nil)
			continue
		case id == 2:
			doc = append(doc, field("gone", true))
		case id >= 5:
			doc[1] = date(5)
		}
		b.want(id, kit.Raw(doc))
	}
	if left < 4 {
		b.Errorf("%d are counted", left)
	}
}

// testOutcomes: each operation that is not applied has its result, the others are
// on the target.
func testOutcomes(b *bed) {
	b.unique("k")
	b.applied(b.op(stream.Insert, 1, field("k", 1)), b.op(stream.Insert, 2, field("k", 2)),
		b.op(stream.Insert, 3, field("a", "text")))
	misfit := updateOp(b, 3, bson.D{{Key: "sa", Value: bson.D{{Key: "a", Value: true}, {Key: "u0", Value: 1}}}})
	misfitAhead := misfit
	misfitAhead.Overlap = true
	ops := []fold.Op{
		b.op(stream.Insert, 1, field("other", true)),
		b.op(stream.Insert, 10, field("k", 1)),
		b.op(stream.Insert, 11, field("k", 11)),
		updateOp(b, 2, set("k", 1)),
		updateOp(b, 20, set("k", 20)),
		b.op(stream.Replace, 21, field("k", 21)),
		b.op(stream.Put, 22, field("k", 22)),
		misfit,
		b.op(stream.Delete, 99),
	}
	want := map[int]Outcome{0: Taken, 1: Duplicate, 3: Duplicate, 4: Missing, 5: Missing, 7: Misfit}
	for _, r := range b.write(ops...) {
		i := slices.IndexFunc(ops, func(o fold.Op) bool {
			return &ops[0] == r.Op || o.ID.Equal(r.Op.ID) &&
				o.Kind == r.Op.Kind
		})
		if want[i] != r.Outcome {
			b.Errorf("operation %d, %s: outcome %d, want %d", i, r.Op.Kind, r.Outcome, want[i])
		}
		if (r.Outcome == Taken || r.Outcome == Duplicate) && r.Reply.Code != mongo.CodeDuplicateKey {
			b.Errorf("operation %d: the server's word is missing: %v", i, r.Reply)
		}
		delete(want, i)
	}
	if len(want) > 0 {
		b.Errorf("without a result: %v", want)
	}
	b.want(1, b.op(stream.Put, 1, field("k", 1)).Doc)
	b.want(11, ops[2].Doc)
	b.want(22, ops[6].Doc)
	b.want(10, nil)
	if n := b.all.Stats.Missing.Load(); n != 1 {
		b.Errorf("%d deletes found nothing", n)
	}
	b.applied(misfitAhead) // in the overlap a later event sets the place
	if n := b.all.Stats.Misfits.Load(); n != 1 {
		b.Errorf("%d paths did not fit", n)
	}
	b.run(bson.D{{Key: "createIndexes", Value: b.to.Coll},
		{Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "x", Value: 1}, {Key: "y", Value: 1}}},
			{Key: "name", Value: "xy"}}}}})
	arrays := []bson.E{field("x", bson.A{1, 2}), field("y", bson.A{1, 2})}
	for _, k := range []stream.Kind{stream.Insert, stream.Put} {
		if got := b.write(b.op(k, 30, arrays...)); len(got) != 1 || got[0].Outcome != Refused || got[0].Reply.Code == 0 {
			b.Errorf("%s that the index does not take: %v", k, got)
		}
	}
	if got := b.write(b.op(stream.Insert, bson.Null{})); len(got) != 0 {
		b.Errorf("an _id of null: %v", got)
	}
}

// testOrdered: inserts in order stop at the first that is not taken.
func testOrdered(b *bed) {
	b.unique("k")
	b.applied(b.op(stream.Insert, 3, field("k", 33)))
	var ops []*fold.Op
	for i := range 6 {
		o := b.op(stream.Insert, i, field("k", i))
		ops = append(ops, &o)
	}
	n, results, err := b.w.InsertOrdered(b.Context(), b.to, ops)
	if err != nil || n != 4 || len(results) != 1 || results[0].Outcome != Taken || results[0].Op != ops[3] {
		b.Fatalf("%d are done, %v, %v", n, results, err)
	}
	b.want(2, ops[2].Doc)
	b.want(4, nil)
	if n, results, err = b.w.InsertOrdered(b.Context(), b.to, ops[4:]); err != nil || n != 2 || len(results) != 0 {
		b.Errorf("the others: %d, %v, %v", n, results, err)
	}
	// A zero timestamp meets the key that another document has.
	zero, other := b.op(stream.Insert, 10, field("k", bson.Timestamp{})),
		b.op(stream.Insert, 11, field("k", bson.Timestamp{}))
	b.applied(zero)
	b.want(10, zero.Doc)
	n, results, err = b.w.InsertOrdered(b.Context(), b.to, []*fold.Op{&other})
	if err != nil || n != 1 || len(results) != 1 || results[0].Outcome != Duplicate || results[0].Reply.Code != 0 {
		b.Errorf("%d are done, %v, %v", n, results, err)
	}
}

// testReinsert: an _id that is equal under a collation is replaced in its bytes.
func testReinsert(b *bed) {
	b.run(bson.D{{Key: "create", Value: b.to.Coll},
		{Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 2}}}})
	b.applied(b.op(stream.Insert, "a", field("n", 1)))
	upper := b.op(stream.Insert, "A", field("n", 2))
	if got := b.write(upper); len(got) != 1 || got[0].Outcome != Taken {
		b.Fatalf("%v", got)
	}
	results, err := b.w.Reinsert(b.Context(), b.to, &upper)
	if err != nil || len(results) > 0 {
		b.Fatalf("%v, %v", results, err)
	}
	b.want("A", upper.Doc)
	if n, err := b.c.Client.Database(b.to.DB).Collection(b.to.Coll).CountDocuments(b.Context(), bson.D{}); n != 1 ||
		err != nil {
		b.Errorf("%d documents, %v", n, err)
	}
}

// testExchange: documents trade keys in one transaction, or nothing is changed.
func testExchange(b *bed) {
	b.unique("k")
	b.applied(b.op(stream.Insert, 1, field("k", 1)), b.op(stream.Insert, 2, field("k", 2)),
		b.op(stream.Insert, 3, field("k", 3)))
	doc := func(id int, fields ...bson.E) Document {
		return Document{Target: b.to, ID: valueOf(b, id), Doc: b.op(stream.Put, id, fields...).Doc}
	}
	traded := []Document{doc(1, field("k", 2), field("z", bson.Timestamp{})), doc(2, field("k", 1), field("$d", true)),
		doc(4, field("k", 4))}
	if _, refused, err := b.w.Exchange(b.Context(), traded); refused != nil || err != nil {
		b.Fatal(refused, err)
	}
	for i, id := range []int{1, 2, 4} {
		b.want(id, traded[i].Doc)
	}
	gone := doc(1)
	gone.Doc = nil
	at, refused, err := b.w.Exchange(b.Context(), []Document{gone, doc(5, field("k", 5)), doc(6, field("k", 3))})
	if err != nil || at != 2 || refused == nil || refused.Code != mongo.CodeDuplicateKey {
		b.Errorf("refused at %d: %v, %v", at, refused, err)
	}
	b.want(1, traded[0].Doc)
	b.want(5, nil)
	err = b.w.Transaction(b.Context(), func(ctx context.Context) error {
		if err := b.w.DeleteIn(ctx, gone); err != nil {
			return err
		}
		return b.w.InsertIn(ctx, doc(7, field("k", 3)))
	})
	var reply wire.WriteError
	if !errors.As(err, &reply) || reply.Code != mongo.CodeDuplicateKey {
		b.Errorf("a refusal in a transaction is %v", err)
	}
	b.want(1, traded[0].Doc)
}

// testSpecial: special fields are stored as they are, by whatever operation.
func testSpecial(b *bed) {
	b.unique("k")
	fields := []bson.E{field("z", bson.Timestamp{}), field("n", bson.D{{Key: "z", Value: bson.Timestamp{}}})}
	kinds := []stream.Kind{stream.Insert, stream.Put, stream.Replace}
	for i, k := range kinds {
		if k == stream.Replace {
			b.applied(b.op(stream.Insert, i))
		}
		o := b.op(k, i, fields...)
		b.applied(o)
		b.want(i, o.Doc)
	}
	for i, name := range []string{"x.y", "", "$t"} { // names that no update can say
		for j, k := range kinds {
			id := 100 + 10*i + j
			if k == stream.Replace {
				b.applied(b.op(stream.Insert, id))
			}
			o := b.op(k, id, field("z", bson.Timestamp{}), field(name, bson.Timestamp{}))
			b.applied(o)
			b.want(id, o.Doc)
		}
	}
	dotted := b.op(stream.Insert, 200, field("x.y", bson.Timestamp{}), field("a.b", 1))
	b.applied(dotted)
	b.applied(updateOp(b, 200, set("a.b", 2))) // is written as a whole document
	b.want(200, b.op(stream.Put, 200, field("x.y", bson.Timestamp{}), field("a.b", 2)).Doc)
	b.to.Stale, b.to.Partial = true, true
	for i, f := range []bson.E{field("$x", 1), field("x.y", bson.Timestamp{})} { // of one whose insert was left out
		b.applied(b.op(stream.Replace, 300+i, f))
		b.want(300+i, nil)
	}
	b.to.Stale, b.to.Partial = false, false
	b.applied(b.op(stream.Insert, 10, field("k", 10)), b.op(stream.Insert, 11))
	dollar := b.op(stream.Replace, 10, field("$set", 1), field("a", 2))
	taken := b.op(stream.Put, 11, field("$x", 1), field("k", 12))
	b.applied(b.op(stream.Insert, 12, field("k", 12)))
	plain := b.op(stream.Put, 13, field("a", 1))
	results := b.write(dollar, taken, plain)
	if len(results) != 1 || results[0].Outcome != Duplicate || !results[0].Op.ID.Equal(taken.ID) {
		b.Errorf("%v", results)
	}
	b.want(10, dollar.Doc)
	b.want(11, b.op(stream.Insert, 11).Doc)
	b.want(13, plain.Doc)
	again := b.op(stream.Insert, 1, fields...) // after a crash before the repair
	b.run(bson.D{{Key: "update", Value: b.to.Coll},
		{Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}},
			{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "z", Value: bson.Timestamp{T: 5}}}}}}}}}})
	if got, err := b.w.Repair(b.Context(), b.to, []*fold.Op{&again}); err != nil || len(got) > 0 {
		b.Errorf("%v, %v", got, err)
	}
	b.want(1, again.Doc)
}

// testRead: all documents are told once, in portions, with their places; what is
// missing is nil; _ids that are equal are asked for one after the other.
func testRead(b *bed) {
	var ops []fold.Op
	var ids []bsoncore.Value
	const n = 700
	for i := range n {
		if i%3 > 0 {
			ops = append(ops, b.op(stream.Insert, i, field("pad", bytes.Repeat([]byte("x"), 100<<(i%8)))))
		}
		ids = append(ids, valueOf(b, i))
	}
	ids = append(ids, valueOf(b, 1.0), valueOf(b, int64(1)), valueOf(b, "none"))
	b.applied(ops...)
	seen := make([]int, len(ids))
	calls := 0
	err := b.w.Read(b.Context(), b.to, ids, bson.D{}, func(some []int, docs []bson.Raw) error {
		calls++
		for i, place := range some {
			seen[place]++
			if there := docs[i] != nil; there != (place < n && place%3 > 0 || place == n || place == n+1) {
				return fmt.Errorf("place %d: %v", place, there)
			}
			if place < n && docs[i] != nil && int(docs[i].Lookup("_id").AsInt64()) != place {
				return fmt.Errorf("place %d: %s", place, docs[i])
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	for i, times := range seen {
		if times != 1 {
			b.Errorf("place %d was reported %d times", i, times)
		}
	}
	if calls < 4 {
		b.Errorf("%d calls", calls)
	}
	doc, err := b.w.ReadOne(b.Context(), b.to, ids[1])
	if err != nil || doc == nil {
		b.Errorf("%s, %v", doc, err)
	}
	stop := errors.New("stop")
	if err := b.w.Read(b.Context(), b.to, ids, OnlyIDs(), func([]int, []bson.Raw) error { return stop }); !errors.Is(err,
		stop) {
		b.Errorf("%v", err)
	}
}

// testBatched: updates go in transactions, and come out the same where a
// transaction does not take one of them.
func testBatched(b *bed) {
	b.unique("k")
	var ops, updates []fold.Op
	for i := range 40 {
		ops = append(ops, b.op(stream.Insert, i, field("k", i), field("a", 0)))
		updates = append(updates, updateOp(b, i, set("a", 1)))
	}
	b.applied(ops...)
	b.applied(updates...)
	if n := b.all.Stats.Batched.Load(); n != 40 {
		b.Errorf("%d of 40 updates went in transactions", n)
	}
	for i := range updates {
		updates[i] = updateOp(b, i, set("a", 2))
	}
	updates[20] = updateOp(b, 20, set("k", 5))
	updates[30] = updateOp(b, 1000, set("a", 2))
	results := b.write(updates...)
	if len(results) != 2 || results[0].Outcome != Duplicate || results[0].Op != &updates[20] ||
		results[1].Outcome != Missing || results[1].Op != &updates[30] {
		b.Errorf("%v", results)
	}
	b.want(39, b.op(stream.Put, 39, field("k", 39), field("a", 2)).Doc)
	b.want(20, b.op(stream.Put, 20, field("k", 20), field("a", 1)).Doc)
	if b.w.pause == 0 {
		b.Error("transactions are tried again at once")
	}
	few := b.all.NewBatched(1)
	defer few.Release()
	before := b.all.Stats.Batched.Load()
	if got, err := few.Write(b.Context(), b.to, updates[:2]); err != nil || len(got) > 0 ||
		b.all.Stats.Batched.Load() != before {
		b.Errorf("two updates: %v, %v, %d in transactions", got, err, b.all.Stats.Batched.Load()-before)
	}
}

// testTerm: nothing is concluded from an answer of another term.
func testTerm(b *bed) {
	other := errors.New("another term")
	fails := NewWriters(Options{Target: b.c, SameTerm: func(term int64) error {
		if term < 1 {
			b.Errorf("term %d", term)
		}
		return other
	}}).New()
	defer fails.Release()
	if _, err := fails.Write(b.Context(), b.to, []fold.Op{b.op(stream.Insert, 1)}); !errors.Is(err, other) {
		b.Errorf("%v", err)
	}
	if err := fails.Transaction(b.Context(),
		func(context.Context) error { b.Error("it ran"); return nil }); !errors.Is(err, other) {
		b.Errorf("%v", err)
	}
	b.applied(b.op(stream.Put, 2))
}

// testFailed: of a command that the server says has failed, a part may have been
// done. The checkpoint is told of it, so that it is proven.
func testFailed(b *bed) {
	var reported []int64
	note := func(term int64) error { reported = append(reported, term); return nil }
	w := NewWriters(Options{Target: b.c, SameTerm: note}).New()
	defer w.Release()
	const unknownError = 8
	if _, err := b.c.Command(b.Context(), "admin",
		bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: bson.D{{Key: "times", Value: 1}}},
			{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"insert"}}, {Key: "errorCode", Value: unknownError},
				{Key: "namespace", Value: b.to.NS}}}}); err != nil {
		b.Fatal(err)
	}
	if _, err := w.Write(b.Context(), b.to, []fold.Op{b.op(stream.Insert, 1)}); err == nil || len(reported) != 1 ||
		reported[0] != -1 {
		b.Errorf("%v, reported %v", err, reported)
	}
	b.applied(b.op(stream.Insert, 1))
}

// testCapped: a capped collection keeps the order of inserts.
func testCapped(b *bed) {
	b.run(bson.D{{Key: "create", Value: b.to.Coll}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20},
		{Key: "max", Value: 3}})
	b.to.Capped = true
	for i := range 5 {
		b.applied(b.op(stream.Insert, i))
	}
	b.applied(b.op(stream.Delete, 0))
	var order []int32
	cur, err := b.c.Client.Database(b.to.DB).Collection(b.to.Coll).Find(b.Context(), bson.D{})
	if err != nil {
		b.Fatal(err)
	}
	for cur.Next(b.Context()) {
		order = append(order, cur.Current.Lookup("_id").Int32())
	}
	if !slices.Equal(order, []int32{2, 3, 4}) {
		b.Errorf("%v", order)
	}
}

// testRewrite: what no statement expresses is read, computed and written, more
// than come in one reply.
func testRewrite(b *bed) {
	shorter := bson.D{{Key: "sa", Value: bson.D{{Key: "a", Value: true}, {Key: "l", Value: int32(2)},
		{Key: "u1", Value: "new"}}}}
	var ops, updates []fold.Op
	pad := bytes.Repeat([]byte("x"), 100<<10)
	for i := range 300 {
		ops = append(ops, b.op(stream.Insert, i, field("a", bson.A{1, 2, 3}), field("pad", pad)))
		updates = append(updates, updateOp(b, i, bson.D{{Key: "sa", Value: bson.D{{Key: "a", Value: true},
			{Key: "l", Value: int32(2)}, {Key: "u1", Value: "new"}}}}))
	}
	b.applied(ops...)
	b.applied(updates...)
	if n := b.all.Stats.Rewritten.Load(); n != 300 {
		b.Errorf("%d are rewritten", n)
	}
	for _, i := range []int{0, 150, 299} {
		b.want(i, b.op(stream.Put, i, field("a", bson.A{1, "new"}), field("pad", pad)).Doc)
	}
	upsert := updateOp(b, 1000, bson.D{{Key: "i", Value: bson.D{{Key: "n", Value: 1}}}})
	upsert.Upsert = true
	b.applied(upsert)
	b.want(1000, b.op(stream.Put, 1000, field("n", 1)).Doc)
	if got := b.write(updateOp(b, 2000, shorter)); len(got) != 1 || got[0].Outcome != Missing {
		b.Errorf("%v", got)
	}
}
