package fields

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/test/kit"
)

// benchDocument is 1 KB of ten fields.
func benchDocument(t testing.TB) bson.Raw {
	doc := d("_id", bson.ObjectID{1})
	for i := range 9 {
		doc = append(doc, bson.E{Key: fmt.Sprintf("field%d", i), Value: strings.Repeat("x", 90)})
	}
	return kit.Raw(doc)
}

var benchRules = map[string]string{
	"rename+drop+mask": `{"rename": {"field2": "phone"}, "drop": ["field4"], "mask": {"field6": {"last": 4}}}`,
	"rename+drop+null": `{"rename": {"field2": "phone"}, "drop": ["field4"], "mask": {"field6": "null"}}`,
	"rename+drop+hmac": `{"rename": {"field2": "phone"}, "drop": ["field4"], "mask": {"field6": {"hmac": "env:KEY"}}}`,
	"drop":             `{"drop": ["field4"]}`,
	"keep":             `{"keep": ["field1", "field2", "field3"]}`,
	"set":              `{"set": {"tenant": "a"}, "from": {"origin": "$namespace", "at": "$clusterTime"}}`,
	"convert":          `{"convert": {"field1": {"to": "string"}}}`,
}

func BenchmarkApply(b *testing.B) {
	doc := benchDocument(b)
	rules := map[string]string{"compute": `{"compute": {"n": "size(doc.field1) > 3 ? doc.field2 : ''"}}`}
	for name, r := range benchRules {
		rules[name] = r
	}
	for name, r := range rules {
		b.Run(name, func(b *testing.B) {
			m := mustParse(b, r)
			var dst []byte
			b.SetBytes(int64(len(doc)))
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if dst, err = m.Apply(dst[:0], doc, testMeta()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkFloor is what a copy costs, and a look at each field.
func BenchmarkFloor(b *testing.B) {
	doc := benchDocument(b)
	b.Run("copy", func(b *testing.B) {
		var dst []byte
		for b.Loop() {
			dst = append(dst[:0], doc...)
		}
	})
	b.Run("fields", func(b *testing.B) {
		n := 0
		for b.Loop() {
			for e := range bsonraw.Fields(doc) {
				n += len(e.Name)
			}
		}
	})
}

func benchUpdates(t testing.TB) map[string]delta.Delta {
	out := map[string]delta.Delta{}
	for name, o := range map[string]bson.D{
		"spared":     d("$v", 2, "diff", d("u", d("field3", 1), "sitems", d("a", true, "s1", d("u", d("price", 1))))),
		"translated": d("$v", 2, "diff", d("u", d("field3", 1, "field2", 5, "field6", "text of it"))),
		"modifiers":  d("$v", 1, "$set", d("field3", 1, "field2", 5, "field4.x", 1)),
		"dropped":    d("$v", 2, "diff", d("u", d("field4", 1))),
	} {
		var err error
		if out[name], err = parseDelta(kit.Raw(o)); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func BenchmarkUpdate(b *testing.B) {
	for name, u := range benchUpdates(b) {
		b.Run(name, func(b *testing.B) {
			m := mustParse(b, benchRules["rename+drop+mask"])
			var dst []byte
			b.ReportAllocs()
			for b.Loop() {
				dst, _ = m.Update(dst[:0], u, testMeta())
			}
		})
	}
}

// TestAllocations: on the path of documents and events nothing allocates.
func TestAllocations(t *testing.T) {
	doc, meta := benchDocument(t), testMeta()
	dst := make([]byte, 0, 4096)
	for name, rules := range benchRules {
		m := mustParse(t, rules)
		if n := testing.AllocsPerRun(100, func() { _, _ = m.Apply(dst, doc, meta) }); n != 0 {
			t.Errorf("%s allocates %g times", name, n)
		}
	}
	m := mustParse(t, benchRules["rename+drop+mask"])
	for name, u := range benchUpdates(t) {
		if n := testing.AllocsPerRun(100, func() { m.Update(dst, u, meta) }); n != 0 {
			t.Errorf("update %s allocates %g times", name, n)
		}
	}
	spared := benchUpdates(t)["spared"]
	if n := testing.AllocsPerRun(100, func() { m.Update(nil, spared, meta) }); n != 0 {
		t.Errorf("an update that no rule is about allocates %g times", n)
	}
}
