package query

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"unicode"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// server is a real mongod that says what is right.
type server struct {
	*testing.T
	db      *mongo.Database
	version string
}

// TestServer holds everything that asks a real server.
func TestServer(t *testing.T) {
	for _, version := range lab.Versions("4.2", "4.4", "5.0") {
		t.Run(version, func(t *testing.T) {
			c := lab.ForTest(t, lab.Options{CacheGB: 0.25, Version: version})
			client, err := mongo.Connect(options.Client().ApplyURI(c.URI()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
			db := client.Database("query")
			t.Run("tables", func(t *testing.T) { testTables(server{t, db, version}) })
			t.Run("regexes", func(t *testing.T) { testRegexes(server{t, db, version}) })
			t.Run("folds", func(t *testing.T) { testFolds(server{t, db, version}) })
			t.Run("arrays", func(t *testing.T) { testNamedElements(server{t, db, version}) })
			t.Run("fractions", func(t *testing.T) { testFractions(server{t, db, version}) })
			t.Run("filters", func(t *testing.T) { testFilters(server{t, db, version}) })
		})
	}
}

// fill makes a collection of the documents.
func (s server) fill(name string, docs []bson.Raw) *mongo.Collection {
	s.Helper()
	coll := s.db.Collection(name)
	if err := coll.Drop(s.Context()); err != nil {
		s.Fatal(err)
	}
	if _, err := coll.InsertMany(s.Context(), docs); err != nil {
		s.Fatal(err)
	}
	return coll
}

// find are the ids, int32s all of them, that the server returns for a filter.
func (s server) find(coll string, filter bson.Raw) (map[int32]bool, error) {
	var reply struct {
		Cursor struct {
			ID         int64 `bson:"id"`
			FirstBatch []struct {
				ID int32 `bson:"_id"`
			} `bson:"firstBatch"`
		} `bson:"cursor"`
	}
	cmd := d("find", coll, "filter", filter, "projection", d("_id", 1), "batchSize", 10000)
	if err := s.db.RunCommand(s.Context(), cmd).Decode(&reply); err != nil {
		return nil, err
	}
	ids := map[int32]bool{}
	for _, doc := range reply.Cursor.FirstBatch {
		ids[doc.ID] = true
	}
	return ids, nil
}

func matches(q *Query, docs []bson.Raw) map[int32]bool {
	ids := map[int32]bool{}
	for _, doc := range docs {
		if q.Match(doc) {
			ids[doc.Lookup("_id").Int32()] = true
		}
	}
	return ids
}

// outcomes counts what became of filters.
type outcomes struct{ some, none, all, bothRefuse, weRefuse, serverRefuses int }

// compare holds what a server finds against what Match keeps.
func (o *outcomes) compare(s server, coll string, docs []bson.Raw, filter bson.Raw) {
	q, err := Parse(filter)
	if err == nil && q.HasMod() && s.version < "5" {
		return // see HasMod
	}
	want, serverErr := s.find(coll, filter)
	switch {
	case err != nil && serverErr != nil:
		o.bothRefuse++
		return
	case err != nil:
		o.weRefuse++
		if testing.Verbose() {
			s.Logf("only we refuse: %v", err)
		}
		return
	case serverErr != nil:
		o.serverRefuses++
		s.Errorf("%s\nwe take it, the server says %v", filter, serverErr)
		return
	}
	switch len(want) {
	case 0:
		o.none++
	case len(docs):
		o.all++
	default:
		o.some++
	}
	if got := matches(q, docs); !maps.Equal(got, want) {
		s.Error(difference(filter, docs, got, want))
	}
}

func difference(filter bson.Raw, docs []bson.Raw, got, want map[int32]bool) string {
	out, shown := fmt.Sprintf("%s\n", filter), 0
	for _, doc := range docs {
		id := doc.Lookup("_id").Int32()
		if got[id] != want[id] && shown < 3 {
			shown++
			out += fmt.Sprintf("the server %v, we %v: %s\n", want[id], got[id], doc)
		}
	}
	return out
}

// testFilters: wild filters on wild documents find the same on the server and here.
func testFilters(s server) {
	testseed.Each(s.T, func(t *testing.T, seed uint64) { s.T = t; s.filters(seed) })
}

func (s server) filters(seed uint64) {
	g := newGen(seed)
	var o outcomes
	for range testseed.Rounds(s.T, 3) {
		g.docs = nil
		var docs []bson.Raw
		for i := range 80 {
			docs = append(docs, kit.Raw(g.document(i)))
		}
		s.fill("wild", docs)
		for range 400 {
			o.compare(s, "wild", docs, kit.Raw(g.filter(2)))
		}
		if s.Failed() {
			break
		}
	}
	s.Logf("%+v", o)
	if total := o.some + o.none + o.all; o.some*3 < total || o.weRefuse*10 > total {
		s.Errorf("the filters find too little: %+v", o)
	}
}

// testTables asks the server the cases of the tables.
func testTables(s server) {
	for i, c := range tableCases {
		var docs []bson.Raw
		want := map[int32]bool{}
		for j, text := range slices.Concat(c.yes, c.no) {
			docs = append(docs, kit.Raw(append(d("_id", int32(j)), parseDoc(s, text)...)))
			want[int32(j)] = j < len(c.yes)
		}
		s.fill("tables", docs)
		got, err := s.find("tables", kit.Raw(parseDoc(s, c.filter)))
		if err != nil {
			s.Errorf("%d %s: %v", i, c.filter, err)
			continue
		}
		for j, doc := range docs {
			if got[int32(j)] != want[int32(j)] {
				s.Errorf("%s: the server says %v of %s", c.filter, got[int32(j)], doc)
			}
		}
	}
}

// testRegexes asks the server the cases of the table of regexes.
func testRegexes(s server) {
	for _, c := range regexCases {
		var docs []bson.Raw
		for i, text := range slices.Concat(c.yes, c.no) {
			docs = append(docs, kit.Raw(d("_id", int32(i), "a", text)))
		}
		if len(docs) == 0 {
			continue
		}
		s.fill("regexes", docs)
		got, err := s.find("regexes", kit.Raw(d("a", bson.Regex{Pattern: c.pattern, Options: c.options})))
		if err != nil {
			s.Errorf("/%s/%s: %v", c.pattern, c.options, err)
			continue
		}
		for i, doc := range docs {
			if want := i < len(c.yes); got[int32(i)] != want {
				s.Errorf("/%s/%s: the server says %v of %s", c.pattern, c.options, !want, doc)
			}
		}
	}
}

// testFolds: option i finds the same other cases of all letters.
func testFolds(s server) {
	var docs []bson.Raw
	want := map[int32]bool{}
	for r := rune(1); r <= unicode.MaxRune; r++ {
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			id, pattern := int32(len(docs)), fmt.Sprintf("^\\x{%x}$", r)
			docs = append(docs, kit.Raw(d("_id", id, "text", string(f), "pattern", pattern)))
			l, err := newRegex(pattern, "i", place{})
			if err != nil {
				s.Fatal(err)
			}
			if l.test(value{Type: bson.TypeString, Value: append(append(make([]byte, 4), string(f)...), 0)}) {
				want[id] = true
			}
		}
	}
	s.fill("folds", docs)
	got, err := s.find("folds",
		kit.Raw(d("$expr", d("$regexMatch", d("input", "$text", "regex", "$pattern", "options", "i")))))
	if err != nil {
		s.Fatal(err)
	}
	if !maps.Equal(got, want) {
		s.Error(difference(bson.Raw{5, 0, 0, 0, 0}, docs, want, got))
	}
}

// testNamedElements: arrays whose elements have other names than their indexes.
func testNamedElements(s server) {
	var docs []bson.Raw
	for i, v := range []any{
		named(s, "0", "1"), named(s, "x", "a"), named(s, "", ""), bson.A{named(s, "0", "a")}, d("b", named(s, "00", "1")),
		d("b", bson.A{0, 1}),
		bson.A{bson.A{0, 1}}, named(s, "1", "0"),
	} {
		docs = append(docs, kit.Raw(d("_id", int32(i), "a", v)))
	}
	s.fill("named", docs)
	var o outcomes
	for _, operand := range []any{bson.A{0, 1}, bson.A{0, 0}, bson.A{1}, d("b", bson.A{0, 1}), 0, 1} {
		for _, op := range []string{"$eq", "$ne", "$lt", "$lte", "$gt", "$gte"} {
			o.compare(s, "named", docs, kit.Raw(d("a", d(op, operand))))
		}
		o.compare(s, "named", docs, kit.Raw(d("a", d("$in", bson.A{operand, "x"}))))
		for _, path := range []string{"a.0", "a.1", "a.x", "a.a", "a.00", "a.0.a"} {
			o.compare(s, "named", docs, kit.Raw(d(path, operand)))
		}
	}
}

// testFractions: what becomes of fractions, and of what no int64 holds.
func testFractions(s server) {
	var docs []bson.Raw
	for i, text := range []string{"4.7", "4.5", "5.5", "-1", "-1.5", "-0.4", "Infinity", "-Infinity", "NaN", "1E+3",
		"9223372036854775807", "9223372036854775808", "-9223372036854775809", "1E-6176", "9.9E+6144"} {
		v, err := bson.ParseDecimal128(text)
		if err != nil {
			s.Fatal(err)
		}
		docs = append(docs, kit.Raw(d("_id", int32(i), "a", v)))
	}
	for _, f := range []float64{4.7, -1.5, math.NaN(), math.Inf(1), math.Inf(-1), 1e300, 1 << 63, -(1 << 63)} {
		docs = append(docs, kit.Raw(d("_id", int32(len(docs)), "a", f)))
	}
	s.fill("mod", docs)
	var o outcomes
	for r := -6; r < 7; r++ {
		o.compare(s, "mod", docs, kit.Raw(d("a", d("$mod", bson.A{7, r}))))
	}
	for i := range 64 {
		o.compare(s, "mod", docs, kit.Raw(d("a", d("$bitsAllSet", bson.A{i}))))
	}
}
