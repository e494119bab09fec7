package history

import (
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// MayFail says that there are documents which the rules do not map: a job is to go on
// without them.
func MayFail(rules []string) bool {
	return slices.ContainsFunc(rules, func(rule string) bool { return strings.Contains(rule, `"fail"`) })
}

// FieldsOf are Fields for a database, by a seed.
func FieldsOf(seed uint64, db string) (rules []string) {
	rules = NewGenerator(Options{Seed: seed}).Fields()
	for i, rule := range rules {
		rules[i] = strings.ReplaceAll(rule, "DB", db)
	}
	return rules
}

// Fields are rules by which the fields of some collections are mapped, of kinds that
// test.Mappings knows. DB stands for the history's database.
func (g *Generator) Fields() (rules []string) {
	for _, coll := range []string{"plain", "hot", "unique", "txn1", "txn2", "moving", "moved", "folded"} {
		if g.one(2) {
			continue
		}
		text, err := bson.MarshalExtJSON(g.mapping(), true, false)
		if err != nil {
			panic(fmt.Errorf("generated what is not a rule: %w", err))
		}
		rules = append(rules, "DB."+coll+"="+string(text))
	}
	return rules
}

// mapping is of one to four kinds, each of other fields. Nothing is converted to double:
// servers make another NaN of a decimal's each time.
func (g *Generator) mapping() (rule bson.D) {
	names := []string{"a", "b", "v", "o", "n", "by", "k", "x", "z", "w", "y"}
	g.r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	next := func() string {
		name := names[0]
		names = names[1:]
		return name
	}
	if g.one(2) {
		drop := bson.A{next()}
		if g.one(2) {
			drop = append(drop, next()+"."+pick(g, "a", "b", "x"))
		}
		rule = append(rule, bson.E{Key: "drop", Value: drop})
	}
	switch a, b := next(), next(); {
	case g.one(3): // each gets the name of the other
		rule = append(rule, bson.E{Key: "rename", Value: D(a, b, b, a)})
	case g.one(2):
		rule = append(rule, bson.E{Key: "rename", Value: D(a, "of_"+a, b, pick(g, "new", "more"))})
	}
	if g.one(2) {
		rule = append(rule, bson.E{Key: "set", Value: D("tenant", g.scalar())})
	}
	if g.one(3) {
		rule = append(rule, bson.E{Key: "from", Value: D("copied", next())})
	}
	if g.one(2) {
		rule = append(rule, bson.E{Key: "mask", Value: D(next(), "null")})
	}
	if g.one(2) || rule == nil {
		rule = append(rule, bson.E{Key: "convert",
			Value: D(next(), D("to", pick(g, "long", "bool", "string"), "otherwise", pick(g, "keep", "null", "fail")))})
	}
	return rule
}
