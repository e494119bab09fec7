package query

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/kit"
)

// benchDocument is 1 KB of 20 fields.
func benchDocument(t testing.TB) bson.Raw {
	doc := d("_id", bson.ObjectID{1})
	for i := range 17 {
		doc = append(doc, bson.E{Key: fmt.Sprintf("field%d", i), Value: strings.Repeat("x", 45)})
	}
	doc = append(doc, d("status", "open", "amount", int64(7), "price", 7.5, "tags", bson.A{"a", "b"},
		"items", bson.A{d("sku", "x", "qty", 1), d("sku", "y", "qty", 5)})...)
	return kit.Raw(doc)
}

var benchFilters = map[string]string{
	"field":     `{"status": "open"}`,
	"first":     `{"field0": {"$gt": "a"}}`,
	"last":      `{"items": {"$exists": true}}`,
	"missing":   `{"state": "open"}`,
	"range":     `{"amount": {"$gt": 5.5, "$lte": 100}}`,
	"two":       `{"status": {"$ne": "closed"}, "price": {"$gte": 1}}`,
	"in":        `{"status": {"$in": ["a", "b", "c", "d", "e", "f", "g", "h", "i", "open"]}}`,
	"tags":      `{"tags": "b"}`,
	"path":      `{"items.sku": "y"}`,
	"elemMatch": `{"items": {"$elemMatch": {"sku": "y", "qty": {"$gt": 3}}}}`,
	"prefix":    `{"status": {"$regex": "^op"}}`,
	"regex":     `{"status": {"$regex": "^o.*n$", "$options": "i"}}`,
	"logic":     `{"$or": [{"status": "closed"}, {"$nor": [{"amount": 8}, {"price": null}]}], "tags": {"$all": ["a", "b"], "$size": 2, "$type": "string"}}`,
	"decimal":   `{"price": {"$gt": {"$numberDecimal": "7"}}}`,
}

func BenchmarkMatch(b *testing.B) {
	doc := benchDocument(b)
	for name, filter := range benchFilters {
		b.Run(name, func(b *testing.B) {
			q := mustParse(b, filter)
			b.ReportAllocs()
			for b.Loop() {
				q.Match(doc)
			}
		})
	}
}

func BenchmarkTouched(b *testing.B) {
	set, err := parseDelta(kit.Raw(d("$v", 2, "diff",
		d("u", d("field3", 1), "sitems", d("a", true, "s1", d("u", d("price", 1)))))))
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"field", "elemMatch", "logic"} {
		b.Run(name, func(b *testing.B) {
			q := mustParse(b, benchFilters[name])
			b.ReportAllocs()
			for b.Loop() {
				q.Touched(set)
			}
		})
	}
}

// TestAllocations: on the path of events nothing allocates for each document.
func TestAllocations(t *testing.T) {
	doc := benchDocument(t)
	set, err := parseDelta(kit.Raw(d("$v", 2, "diff",
		d("u", d("field3", 1), "sitems", d("a", true, "s1", d("u", d("price", 1)))))))
	if err != nil {
		t.Fatal(err)
	}
	for name, filter := range benchFilters {
		q := mustParse(t, filter)
		if n := testing.AllocsPerRun(100, func() { q.Match(doc); q.Touched(set) }); n != 0 {
			t.Errorf("%s allocates %g times", name, n)
		}
		if got := q.Match(doc); got != (name != "missing") {
			t.Errorf("%s: %v", name, got)
		}
	}
}
