package test

import (
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// planted is a difference and what the comparison has to say about it.
type planted struct {
	name           string
	source, target func(*site)
	want           string // regular expression; empty: no difference
	since          string
}

func plants() []planted {
	doc := func(coll string, docs ...any) func(*site) { return func(s *site) { s.insert(coll, docs...) } }
	index := func(key bson.D, options ...any) func(*site) { return func(s *site) { s.index("c", key, options...) } }
	create := func(options ...any) func(*site) { return func(s *site) { s.create("c", options...) } }
	view := func(pipeline ...any) func(*site) { return create("viewOn", "x", "pipeline", a(pipeline...)) }
	capped := func(ids ...any) func(*site) {
		return func(s *site) {
			s.create("c", "capped", true, "size", 8192)
			for _, id := range ids {
				s.insert("c", d("_id", id))
			}
		}
	}
	many := func(change int) func(*site) {
		return func(s *site) {
			s.fill("c", 3000, func(i int) bson.D { return d("_id", i, "changed", i == change) })
		}
	}
	nan := func(payload uint64) func(*site) { return doc("c", d("_id", 1, "v", math.Float64frombits(payload))) }
	return []planted{
		{name: "same", source: doc("c", d("_id", 1)), target: doc("c", d("_id", 1))},
		{name: "missing document", source: doc("c", d("_id", 1), d("_id", 2)), target: doc("c", d("_id", 2)),
			want: `1 documents are not on the target.*"1"`},
		{name: "missing last document", source: doc("c", d("_id", 1), d("_id", 2)), target: doc("c", d("_id", 1)),
			want: `1 documents are not on the target.*"2"`},
		{name: "extra document", source: doc("c", d("_id", 1)), target: doc("c", d("_id", 1), d("_id", 0)),
			want: `1 documents are on the target alone.*"0"`},
		{name: "extra after last", source: doc("c", d("_id", 1)), target: doc("c", d("_id", 1), d("_id", 9)),
			want: `1 documents are on the target alone.*"9"`},
		{name: "changed value", source: doc("c", d("_id", 1, "v", 1)), target: doc("c", d("_id", 1, "v", 2)),
			want: "1 documents are different"},
		{name: "first of many", source: many(-1), target: many(0), want: "1 documents are different"},
		{name: "middle of many", source: many(-1), target: many(1777), want: "1 documents are different"},
		{name: "last of many", source: many(-1), target: many(2999), want: "1 documents are different"},
		{name: "order of fields", source: doc("c", d("_id", 1, "a", 1, "b", 1)),
			target: doc("c", d("_id", 1, "b", 1, "a", 1)), want: "1 documents are different"},
		{name: "type of a number", source: doc("c", d("_id", 1, "a", int32(1))), target: doc("c", d("_id", 1, "a", int64(1))),
			want: "1 documents are different"},
		{name: "type of _id", source: doc("c", d("_id", int32(1))), target: doc("c", d("_id", 1.0)),
			want: "not on the target"},
		{name: "nan payload", source: nan(0x7ff8000000000001), target: nan(0x7ff8000000000002),
			want: "1 documents are different"},
		{name: "minus zero", source: nan(0), target: nan(1 << 63), want: "1 documents are different"},
		{name: "duplicate field", source: doc("c", d("_id", 1, "a", 1, "a", 2)), target: doc("c", d("_id", 1, "a", 2)),
			want: "1 documents are different"},
		{name: "missing collection", source: doc("c", d("_id", 1)), target: doc("c2", d("_id", 1)),
			want: `c2: collection is on the target alone.*c: collection is not on the target`},
		{name: "missing empty collection", source: create(), target: func(*site) {}, want: "collection is not on the target"},
		{name: "extra database", source: func(*site) {}, target: func(s *site) { s.in("x").create("c") },
			want: "on the target alone"},
		{name: "order of capped", source: capped(1, 2, 3), target: capped(1, 3, 2), want: "the order differs after 1"},
		{name: "same capped", source: capped(3, 1, 2), target: capped(3, 1, 2)},
		{name: "capped size", source: create("capped", true, "size", 4096), target: create("capped", true, "size", 8192),
			want: "option size"},
		{name: "capped or not", source: create("capped", true, "size", 4096), target: create(), want: "option capped"},
		{name: "validator", source: create("validator", d("a", 1)), target: create("validator", d("a", 1.0)),
			want: "option validator"},
		{name: "validation level", source: create("validator", d("a", 1), "validationLevel", "moderate"),
			target: create("validator", d("a", 1)), want: "option validationLevel"},
		{name: "collation", source: create("collation", d("locale", "en")), target: create("collation", d("locale", "de")),
			want: "option collation"},
		{name: "type", source: create(), target: create("viewOn", "x", "pipeline", a()),
			want: "type collection on the source, view on the target"},
		{name: "view's pipeline", source: view(d("$match", d("a", 1))), target: view(d("$match", d("a", 2))),
			want: "option pipeline"},
		{name: "view's source", source: view(), target: create("viewOn", "y", "pipeline", a()), want: "option viewOn"},
		{name: "clustered", since: "6.0", source: create("clusteredIndex", d("key", d("_id", 1), "unique", true)),
			target: create(), want: "option clusteredIndex"},
		{name: "images", since: "6.0", source: create("changeStreamPreAndPostImages", d("enabled", true)), target: create(),
			want: "option changeStreamPre"},
		{name: "series", since: "5.0", source: create("timeseries", d("timeField", "t")),
			target: create("timeseries", d("timeField", "u")), want: "option timeseries"},
		{name: "bucket", since: "5.0", source: func(s *site) { s.series("c"); s.insert("c", d("_id", 1, "t", at(0))) },
			target: func(s *site) { s.series("c") }, want: `system.buckets.c: 1 documents are not`},
		{name: "missing index", source: index(d("a", 1)), target: create(), want: "index a_1 is not on the target"},
		{name: "extra index", source: create(), target: index(d("a", 1)), want: "index a_1 is on the target alone"},
		{name: "index key", source: index(d("a", 1, "b", 1), "name", "i"), target: index(d("b", 1, "a", 1), "name", "i"),
			want: "index i, key"},
		{name: "index direction", source: index(d("a", 1), "name", "i"), target: index(d("a", -1), "name", "i"),
			want: "index i, key"},
		{name: "index unique", source: index(d("a", 1), "unique", true), target: index(d("a", 1)), want: "index a_1, unique"},
		{name: "index sparse off", source: index(d("a", 1), "sparse", false), target: index(d("a", 1))},
		{name: "index expiry", source: index(d("a", 1), "expireAfterSeconds", 5),
			target: index(d("a", 1), "expireAfterSeconds", 6), want: "index a_1, expireAfterSeconds: 5 on the source, 6"},
		{name: "index partial", source: index(d("a", 1), "partialFilterExpression", d("b", 1)),
			target: index(d("a", 1), "partialFilterExpression", d("b", 2)), want: "index a_1, partialFilterExpression"},
		{name: "index hidden", since: "4.4", source: index(d("a", 1), "hidden", true), target: index(d("a", 1)),
			want: "index a_1, hidden"},
		{name: "index collation", source: index(d("a", 1), "collation", d("locale", "en")), target: index(d("a", 1)),
			want: "index a_1, collation"},
		{name: "index weights", source: index(d("a", "text"), "weights", d("a", 2)),
			target: index(d("a", "text"), "weights", d("a", 3)), want: "index a_text, weights"},
	}
}

// compareFinds wants the comparison to find what is planted, and nothing else.
func compareFinds(t *testing.T, all []planted, cases []*trial) {
	ours := func(ns string) bool { return slices.ContainsFunc(cases, func(c *trial) bool { return c.owns(ns) }) }
	diffs, err := Compare(t.Context(), shared.sourceDB, shared.targetDB, CompareOptions{Source: ours, Target: ours})
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range all {
		var lines []string
		for _, diff := range diffs {
			if cases[i].owns(diff.NS) {
				lines = append(lines, diff.String())
			}
		}
		got := strings.Join(lines, "\n")
		if p.want == "" && got != "" || !regexp.MustCompile("(?s)"+p.want).MatchString(got) {
			t.Errorf("planted %q: want %q, got:\n%s", p.name, p.want, got)
		}
	}
}

// A collection that has another name on the target is found there, and views
// are expected to follow.
func TestCompareUnderOtherNames(t *testing.T) {
	src := &site{ctx: t.Context(), client: shared.sourceDB, base: "named"}
	dst := &site{ctx: t.Context(), client: shared.targetDB, base: "named-else"}
	defer func() { _, _ = src.db().Drop(t.Context()), dst.db().Drop(t.Context()) }()
	err := attempt(func() {
		for _, s := range []*site{src, dst} {
			s.insert("c", d("_id", 1))
			s.insert("plain", d("_id", 1))
		}
		dst.rename(dst.ns("c"), dst.ns("e"))
		src.create("v", "viewOn", "c", "pipeline",
			a(d("$lookup", d("from", "c", "as", "x", "pipeline", a(d("$match", d("from", "c")))))))
		dst.create("v", "viewOn", "e", "pipeline",
			a(d("$lookup", d("from", "e", "as", "x", "pipeline", a(d("$match", d("from", "c")))))))
	})
	if err != nil {
		t.Fatal(err)
	}
	o := CompareOptions{
		Source: func(ns string) bool { return strings.HasPrefix(ns, "named.") },
		Target: func(ns string) bool { return strings.HasPrefix(ns, "named-else.") },
		Name:   newNames([]string{"named=named-else", "named.c=named-else.e"}).target,
	}
	diffs, err := Compare(t.Context(), shared.sourceDB, shared.targetDB, o)
	if err != nil || len(diffs) > 0 {
		t.Errorf("%v, %v", diffs, err)
	}
	o.Name = newNames([]string{"named=named-else"}).target
	if diffs, err = Compare(t.Context(), shared.sourceDB, shared.targetDB, o); err != nil || len(diffs) != 4 {
		t.Errorf("with another mapping: %v, %v", diffs, err)
	}
}
