package delta

import (
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/test/kit"
)

// The hot case: one field of a document of ten, 100 bytes each.
var (
	hundred  = strings.Repeat("x", 100)
	hotDiff  = kit.Raw(v2("u", d("field0", hundred)))
	hotDiff9 = kit.Raw(v2("u", d("field9", hundred)))
	hotSet   = kit.Raw(v1("$set", d("field0", hundred)))
	hotDoc   = func() bson.Raw {
		doc := d("_id", "user1")
		for i := range 10 {
			doc = append(doc, bson.E{Key: "field" + strconv.Itoa(i), Value: hundred})
		}
		return kit.Raw(doc)
	}()
)

// sink keeps results alive.
var sink struct {
	buf  []byte
	d    Delta
	hash uint64
}

type hotCall struct {
	name string
	run  func()
}

func hotCalls(tb testing.TB) []hotCall {
	dl, dl9, set := mustParse(tb, hotDiff), mustParse(tb, hotDiff9), mustParse(tb, hotSet)
	nested := mustParse(tb, kit.Raw(v2("d", d("z", false), "so", d("u", d("x", 1), "sp", d("i", d("q", 1))), "sr",
		d("a", true, "u3", 1))))
	buf := make([]byte, 0, 4096)
	str := bsoncore.Value{Type: bsoncore.TypeString, Data: bsoncore.AppendString(nil, "user6284781860667377211")}
	oid := bsoncore.Value{Type: bsoncore.TypeObjectID, Data: make([]byte, 12)}
	num := bsoncore.Value{Type: bsoncore.TypeInt64, Data: make([]byte, 8)}
	key := func(v bsoncore.Value) func() {
		return func() { sink.buf = AppendKey(buf, v); sink.hash = Hash(sink.buf) }
	}
	return []hotCall{
		{"parse diff", func() { sink.d, _ = parse(hotDiff) }},
		{"parse set", func() { sink.d, _ = parse(hotSet) }},
		{"apply diff", func() { sink.buf, _, _ = Apply(buf, hotDoc, dl) }},
		{"apply diff to the last", func() { sink.buf, _, _ = Apply(buf, hotDoc, dl9) }},
		{"apply set", func() { sink.buf, _, _ = Apply(buf, hotDoc, set) }},
		{"compose diffs", func() { sink.buf, sink.d, _ = Compose(buf, dl, dl9) }},
		{"compose sets", func() { sink.buf, sink.d, _ = Compose(buf, set, set) }},
		{"statement of diff", func() { sink.buf, _ = AppendStatement(buf, dl) }},
		{"statement of set", func() { sink.buf, _ = AppendStatement(buf, set) }},
		{"statement of nested diff", func() { sink.buf, _ = AppendStatement(buf, nested) }},
		{"guard of nested diff", func() { sink.buf = AppendGuard(buf, nested) }},
		{"key of string", key(str)},
		{"key of ObjectID", key(oid)},
		{"key of int64", key(num)},
	}
}

// TestAllocationBudget: into a large enough buffer, the hot path allocates nothing.
func TestAllocationBudget(t *testing.T) {
	for _, c := range hotCalls(t) {
		if n := testing.AllocsPerRun(100, c.run); n > 0 {
			t.Errorf("%s: %v allocations", c.name, n)
		}
	}
}

func BenchmarkHot(b *testing.B) {
	for _, c := range hotCalls(b) {
		b.Run(strings.ReplaceAll(c.name, " ", "_"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.run()
			}
		})
	}
}

// BenchmarkLarge: many changed fields in a document of many, to see that it
// is not quadratic.
func BenchmarkLarge(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		doc, u := d("_id", 1), d()
		for i := range n {
			name := "field" + strconv.Itoa(i)
			doc, u = append(doc, bson.E{Key: name, Value: 1}), append(u, bson.E{Key: name, Value: 2})
		}
		rawDoc, dl := kit.Raw(doc), mustParse(b, kit.Raw(v2("u", u)))
		b.Run("apply/"+strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				sink.buf, _, _ = Apply(sink.buf[:0], rawDoc, dl)
			}
		})
		b.Run("compose/"+strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				sink.buf, sink.d, _ = Compose(sink.buf[:0], dl, dl)
			}
		})
	}
}
