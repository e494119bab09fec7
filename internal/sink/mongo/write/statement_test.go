package write

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
)

func valueOf(tb testing.TB, v any) bsoncore.Value {
	tb.Helper()
	typ, data, err := bson.MarshalValue(v)
	if err != nil {
		tb.Fatal(err)
	}
	return bsoncore.Value{Type: bsoncore.Type(typ), Data: data}
}

func updateOp(tb testing.TB, id any, diff bson.D) fold.Op {
	tb.Helper()
	d, err := delta.ParseAs(delta.Diff, kit.Raw(bson.D{{Key: "$v", Value: int32(2)}, {Key: "diff", Value: diff}}))
	if err != nil {
		tb.Fatal(err)
	}
	return fold.Op{Kind: stream.Update, ID: valueOf(tb, id), Delta: d}
}

func set(field string, v any) bson.D {
	return bson.D{{Key: "u", Value: bson.D{{Key: field, Value: v}}}}
}

// TestStatements: what each kind of operation looks like in its command.
func TestStatements(t *testing.T) {
	id := valueOf(t, int32(1))
	doc := kit.Raw(bson.D{{Key: "_id", Value: int32(1)}, {Key: "a", Value: "x"}})
	upsert := updateOp(t, int32(1), set("a", int32(2)))
	upsert.Upsert = true
	for _, c := range []struct {
		name, command string
		op            fold.Op
		want          string
	}{
		{"insert", "insert", fold.Op{Kind: stream.Insert, ID: id, Doc: doc}, `{"_id":1,"a":"x"}`},
		{"delete", "delete", fold.Op{Kind: stream.Delete, ID: id}, `{"q":{"_id":1},"limit":1}`},
		{"replace", "update", fold.Op{Kind: stream.Replace, ID: id, Doc: doc}, `{"q":{"_id":1},"u":{"_id":1,"a":"x"}}`},
		{"put", "update", fold.Op{Kind: stream.Put, ID: id, Doc: doc}, `{"q":{"_id":1},"u":{"_id":1,"a":"x"},"upsert":true}`},
		{"update", "update", updateOp(t, int32(1), set("a", int32(2))), `{"q":{"_id":1},"u":{"$set":{"a":2}}}`},
		{"upsert", "update", upsert, `{"q":{"_id":1},"u":{"$set":{"a":2}},"upsert":true}`},
	} {
		var p plan
		p.fill([]fold.Op{c.op}, docwrite.Key{})
		list := map[string][]statement{"insert": p.inserts, "delete": p.deletes, "update": p.updates}[c.command]
		if len(list) != 1 {
			t.Errorf("%s: %d statements of its command", c.name, len(list))
			continue
		}
		got := bson.Raw(list[0].append(nil, c.command, &fold.Target{}))
		j, err := bson.MarshalExtJSON(got, false, false)
		if err != nil || string(j) != c.want {
			t.Errorf("%s: %s (%v), want %s", c.name, j, err, c.want)
		}
	}
}

// TestPlan: operations come to the command that expresses them exactly.
func TestPlan(t *testing.T) {
	guarded := updateOp(t, int32(1), bson.D{{Key: "i", Value: bson.D{{Key: "n", Value: 1}}}})
	guardedUpsert := guarded
	guardedUpsert.Upsert = true
	shorter := updateOp(t, int32(1), bson.D{{Key: "sa", Value: bson.D{{Key: "a", Value: true},
		{Key: "l", Value: int32(2)}, {Key: "u1", Value: 5}}}})
	huge := updateOp(t, strings.Repeat("x", 15<<20), set("a", strings.Repeat("y", 2<<20)))
	for _, c := range []struct {
		name string
		op   fold.Op
		want string
	}{
		{"plain", updateOp(t, int32(1), set("a", 1)), "updates"},
		{"a field that is new", guarded, "guarded or updates"},
		{"the same as an upsert", guardedUpsert, "rewrites or updates"},
		{"an array cut and changed", shorter, "rewrites"},
		{"larger than a statement may be", huge, "rewrites"},
		{"delete", fold.Op{Kind: stream.Delete}, "deletes"},
		{"insert", fold.Op{Kind: stream.Insert}, "inserts"},
		{"replace", fold.Op{Kind: stream.Replace}, "updates"},
		{"put", fold.Op{Kind: stream.Put}, "updates"},
	} {
		var p plan
		p.fill([]fold.Op{c.op}, docwrite.Key{})
		for name, list := range map[string][]statement{"deletes": p.deletes, "updates": p.updates, "guarded": p.guarded,
			"rewrites": p.rewrites, "inserts": p.inserts} {
			if len(list) > 0 && !strings.Contains(c.want, name) {
				t.Errorf("%s: %s, want %s", c.name, name, c.want)
			}
		}
		if p.reset(); len(p.updates)+len(p.rewrites)+len(p.guarded)+len(p.deletes)+len(p.inserts)+len(p.buf) != 0 {
			t.Errorf("%s: not empty after reset", c.name)
		}
	}
}

// TestStatementsStay: a statement is what it was after others were translated
// behind it.
func TestStatementsStay(t *testing.T) {
	var ops []fold.Op
	for i := range 500 {
		ops = append(ops, updateOp(t, int32(i), set("a", strings.Repeat(fmt.Sprint(i%10), i))))
	}
	var p plan
	for range 2 { // the second time in memory that is used again
		p.fill(ops, docwrite.Key{})
		for i, s := range p.updates {
			want := strings.Repeat(fmt.Sprint(i%10), i)
			if got, _ := bson.Raw(s.doc).Lookup("$set", "a").StringValueOK(); got != want {
				t.Fatalf("statement %d is %s", i, bson.Raw(s.doc))
			}
		}
		p.reset()
	}
}

// TestGrouped: deletes share statements within limits; each _id is in one, and
// those that mean something else in a $in stay alone.
func TestGrouped(t *testing.T) {
	long := strings.Repeat("x", groupBytes/3)
	var ids []any
	for i := range 2*groupDeletes + 1 {
		ids = append(ids, int32(i))
	}
	ids = append(ids, bson.D{{Key: "a", Value: 1}}, bson.Null{}, bson.Regex{Pattern: "a"}, bson.MinKey{}, long+"1",
		long+"2", long+"3", long+"4")
	var p plan
	for _, id := range ids {
		p.add(&fold.Op{Kind: stream.Delete, ID: valueOf(t, id)})
	}
	seen := map[string]int{}
	for _, s := range p.grouped(p.deletes) {
		stmt := bson.Raw(s.append(nil, "delete", &fold.Target{}))
		limit := stmt.Lookup("limit").Int32()
		if s.doc == nil {
			if limit != 1 {
				t.Errorf("limit %d of a single delete", limit)
			}
			seen[s.op.ID.String()]++
			continue
		}
		in, err := stmt.Lookup("q", "_id", "$in").Array().Values()
		if err != nil || limit != 0 || len(in) > groupDeletes || len(stmt) > groupBytes+groupDeletes*16 {
			t.Errorf("a statement of %d deletes, %d bytes, limit %d: %v", len(in), len(stmt), limit, err)
		}
		for _, v := range in {
			if id := (bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value}); !plainID(id) {
				t.Errorf("%s is in a $in", v)
			} else {
				seen[id.String()]++
			}
		}
	}
	for _, id := range ids {
		if n := seen[valueOf(t, id).String()]; n != 1 {
			t.Errorf("%.40v is deleted %d times", id, n)
		}
	}
}

// TestFitting: one statement always, else what fits.
func TestFitting(t *testing.T) {
	list := make([]statement, 10)
	for i := range list {
		list[i] = statement{op: &fold.Op{Doc: make([]byte, 100-32)}}
	}
	for _, c := range []struct{ most, bytes, n, size int }{
		{100, 1 << 20, 10, 1000}, {3, 1 << 20, 3, 300}, {100, 250, 2, 200}, {100, 1, 1, 100}, {100, 300, 3, 300},
	} {
		if n, size := fitting(list, c.most, c.bytes); n != c.n || size != c.size {
			t.Errorf("at most %d of %d bytes: %d of %d, want %d of %d", c.most, c.bytes, n, size, c.n, c.size)
		}
	}
	for i := range list {
		list[i].guarded = true
	}
	if _, size := fitting(list, 100, 1<<20); size != 10*(2*68+32) {
		t.Errorf("guarded statements are %d bytes", size)
	}
}

// TestSuspect: only documents that may hold a zero timestamp are looked at again.
func TestSuspect(t *testing.T) {
	for _, c := range []struct {
		doc     bson.D
		suspect bool
	}{
		{bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: "text"}}, false},
		{bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: bson.Timestamp{T: 1, I: 2}}}, false},
		{bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: bson.Timestamp{}}}, true},
	} {
		for _, command := range []string{"insert", "update"} {
			s := statement{op: &fold.Op{Kind: stream.Put, ID: valueOf(t, 1), Doc: kit.Raw(c.doc)}}
			s.append([]byte("before"), command, &fold.Target{})
			if s.suspect != c.suspect {
				t.Errorf("%s of %v: suspect %v", command, c.doc, s.suspect)
			}
		}
	}
}
