package history

import (
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// FiltersOf are Filters for a database, by a seed, and for what test.StartChurn writes
// there.
func FiltersOf(seed uint64, db string) (rules []string) {
	g := NewGenerator(Options{Seed: seed})
	rules = g.Filters()
	if g.one(2) {
		rules = append(rules, `DB.big={"n":{"$bitsAnySet":1}}`)
	}
	for i, rule := range rules {
		rules[i] = strings.ReplaceAll(rule, "DB", db)
	}
	return rules
}

// Filters are rules by which some documents of some collections are kept. DB stands for
// the history's database.
func (g *Generator) Filters() (rules []string) {
	for _, coll := range []string{"plain", "hot", "unique", "keys", "txn1", "txn2", "moving", "moved", "odd", "folded"} {
		if g.one(2) {
			continue
		}
		filter, err := bson.MarshalExtJSON(g.filter(2), true, false)
		if err != nil {
			panic(fmt.Errorf("generated what is not a filter: %w", err))
		}
		rules = append(rules, "DB."+coll+"="+string(filter))
	}
	return rules
}

// filter is a condition on what documents and changes of histories have. It compares
// no text: some collections have a collation.
func (g *Generator) filter(depth int) bson.D {
	if depth > 0 && g.one(4) {
		var of bson.A
		for range 1 + g.r.IntN(3) {
			of = append(of, g.filter(depth-1))
		}
		return D(pick(g, "$and", "$or", "$nor"), of)
	}
	n := g.r.IntN(12)
	path := pick(g, "a", "b", "v", "o", "n", "by", "a.b", "v.0", "o.a", "v.a", "a.0.b", "k", "x", "z")
	switch g.r.IntN(12) {
	case 9, 10, 11: // most changes write another one, so that documents come and go
		return D(pick(g, "by", "n", "by"), D(pick(g, "$bitsAnySet", "$bitsAllClear"), 1+g.r.IntN(3)))
	case 0:
		return D("n", D("$gte", g.r.IntN(50)))
	case 1:
		return D("n", D("$lt", g.r.IntN(50)), "by", D("$gt", g.n))
	case 2:
		return D(path, D("$exists", g.one(2)))
	case 3:
		return D(path, D("$in", A(n, float64(n+1), true)))
	case 4:
		return D(path, D("$type", A(pick[any](g, "number", "string", "array", "object", 10))))
	case 5:
		return D(path, D("$elemMatch", D(pick(g, "$gt", "$ne"), n)))
	case 6:
		return D(path, D("$not", D("$size", g.r.IntN(3))))
	case 7:
		return D(path, D("$nin", A(n, D("a", n))))
	}
	return D(path, D(pick(g, "$gt", "$lte", "$ne", "$eq"), n))
}
