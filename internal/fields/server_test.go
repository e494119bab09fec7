package fields

import (
	"bytes"
	"context"
	"math"
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/lab"
)

// server is a real mongod that says what is right.
type server struct {
	*testing.T
	db      *mongo.Database
	version string
}

// TestServer holds everything that asks a real server. The rules are written once more
// as a pipeline, of other operators than what is tested is made of.
func TestServer(t *testing.T) {
	for _, version := range lab.Versions("5.0") {
		t.Run(version, func(t *testing.T) {
			c := lab.ForTest(t, lab.Options{CacheGB: 0.25, Version: version})
			client, err := mongo.Connect(options.Client().ApplyURI(c.URI()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
			db := client.Database("fields")
			t.Run("convert", func(t *testing.T) { testConversions(server{t, db, version}) })
			t.Run("wild", func(t *testing.T) { testPipelines(server{t, db, version}) })
		})
	}
}

// mapped are the documents as a pipeline gives them, by their ids.
func (s server) mapped(docs []bson.Raw, pipeline bson.A) (map[int32]bson.Raw, error) {
	s.Helper()
	coll := s.db.Collection("docs")
	if docs != nil {
		if err := coll.Drop(s.Context()); err != nil {
			s.Fatal(err)
		}
		if _, err := coll.InsertMany(s.Context(), docs); err != nil {
			s.Fatal(err)
		}
	}
	cursor, err := coll.Aggregate(s.Context(), pipeline)
	if err != nil {
		return nil, err
	}
	out := map[int32]bson.Raw{}
	for cursor.Next(s.Context()) {
		out[cursor.Current.Lookup("_id").Int32()] = bytes.Clone(cursor.Current)
	}
	return out, cursor.Err()
}

func convertible(s server) []any {
	var out []any
	for _, text := range []string{
		"", " ", "0", "-0", "1", "+1", "-17", " 1", "1 ", "1.0", "1.5", "-1.5", ".5", "5.", "1e3", "1E3", "1e400", "1e-400", "1e-310", "5e-324", "0e-400", "0.0", "-1e-320", "2.3e-308", "2.2250738585072014e-308", "0x1F", "1_000", "1,5", "abc", "NaN", "nan", "Infinity", "-Infinity", "inf", "+inf", "infinity",
		"2147483647", "2147483648", "-2147483648", "9223372036854775807", "9223372036854775808", "0.1", "12345678901234567890123456789012345678901234", "1234567890123456789012345678901234",
		"true", "false", "0123456789abcdef01234567", "0123456789ABCDEF01234567", "0123456789abcdef0123456", "0123456789abcdef0123456g",
		"2026-01-31", "2026-01-31T10:00:00Z", "2026-01-31T10:00:00", "2026-01-31T10:00:00.123Z", "2026-01-31T10:00:00.1234567Z", "2026-01-31T10:00:00+02:00", "2026-01-31T10:00:00.5+0200", "2026-01-31 10:00:00", "2026-02-30", "2026-02-29T00:00:00Z", "0000-01-01", "9999-12-31", "2026-01-31T10:00", "2026-01-31T24:00:00Z", "2026-01-31T10:00:60Z", "20260131", "1/2/2026", "2026-01-31T10:00:00.99999Z", "2026-01-31T10:00Z",
	} {
		out = append(out, text)
	}
	for _, text := range []string{"0", "-0", "1", "-1.5", "1.50", "0.1", "NaN", "Infinity", "-Infinity", "2147483647.9", "2147483648", "-2147483648.9", "9223372036854775807", "9223372036854775807.5", "9223372036854775808", "1E+3", "1E-6176", "9.999999999999999999999999999999999E+6144", "1E+400", "1E-400", "0E+10", "0.000001", "0.0000001", "-0E-5", "123E+2", "4.9E-324", "1E-323", "1700000000000.7"} {
		v, err := bson.ParseDecimal128(text)
		if err != nil {
			s.Fatal(err)
		}
		out = append(out, v)
	}
	for _, f := range []float64{0, math.Copysign(0, -1), 1, 1.5, 2.5, -2.5, 0.1, 0.1 + 0.2, 1e15, 1e16, 1e17, 123456789012345680, 1e-5, 1e-4, 0.00001234, 1e300, -1e300, 5e-324, math.MaxFloat64, math.NaN(), math.Inf(1), math.Inf(-1), 2147483647, 2147483647.5, -2147483648, -2147483648.5, 2147483648, 1e20, 1e21, 1e-6, 1e-7, 1 << 53, 1<<53 + 2, 1 << 62, 1 << 63, -(1 << 63), 1700000000000.9, 1.0 / 3, 2.0 / 3, 100, 9007199254740993, 3.7e-310} {
		out = append(out, f)
	}
	oid := bson.ObjectID{0x65, 1, 2, 3, 4}
	return append(out, int32(0), int32(-5), int32(math.MaxInt32), int64(0), int64(1)<<31, int64(1)<<53+1, int64(math.MaxInt64), int64(math.MinInt64), int64(1700000000123),
		true, false, nil, bson.Undefined{}, oid, bson.ObjectID{0xff, 1}, bson.DateTime(0), bson.DateTime(-1), bson.DateTime(1700000000123), bson.DateTime(253402300799999), bson.DateTime(-62135596800000),
		bson.Timestamp{T: 1700000000, I: 3}, bson.Timestamp{T: 1 << 31, I: 3}, d("a", 1), bson.A{1}, bson.A{}, d(), bson.Regex{Pattern: "a"}, bson.JavaScript("f"), bson.Symbol("5"), bson.MinKey{}, bson.MaxKey{},
		bson.Binary{Data: []byte("ab")}, bson.Binary{Subtype: 4, Data: make([]byte, 16)}, bson.DBPointer{DB: "d", Pointer: oid}, bson.CodeWithScope{Code: "f", Scope: d()})
}

// testConversions: a value becomes of each type what it becomes of $convert.
func testConversions(s server) {
	var docs []bson.Raw
	for i, v := range convertible(s) {
		docs = append(docs, raw(s, d("_id", int32(i), "v", v)))
	}
	for i, to := range convertNames() {
		all := docs
		if i > 0 {
			all = nil
		}
		want, err := s.mapped(all, bson.A{d("$set", d("v", d("$convert", d("input", "$v", "to", to, "onError", "misfit", "onNull", nil))))})
		if err != nil {
			s.Fatal(err)
		}
		m := mustParse(s, `{"convert": {"v": {"to": "`+to+`"}}}`)
		for j, doc := range docs {
			got, err := m.Apply(nil, doc, Meta{})
			said := want[int32(j)].Lookup("v")
			misfit := said.Type == bson.TypeString && said.StringValue() == "misfit"
			switch {
			case said.Type == bson.TypeDecimal128 && said.Decimal128().IsNaN() && strings.Contains(bson.Raw(got).String(), "NaN"): // one of many
			case misfit && err != nil, !misfit && err == nil && bytes.Equal(got, want[int32(j)]):
			case misfit && to == "date" && s.version < "6" && doc.Lookup("v").Type == bson.TypeTimestamp: // newer servers do it
			case to == "string" && doc.Lookup("v").Type == bson.TypeDouble: // the server has six digits
				if f := doc.Lookup("v").Double(); strconv.FormatFloat(f, 'g', 6, 64) != said.StringValue() || asDouble(bson.Raw(got).Lookup("v").StringValue()) != f {
					s.Errorf("%g: %s, the server says %s", f, bson.Raw(got), said)
				}
			case err != nil && (to == "date" || to == "decimal") && doc.Lookup("v").Type == bson.TypeString:
				s.Logf("only we refuse %s to %s: the server says %s", doc, to, said)
			default:
				s.Errorf("%s to %s: %s %v, the server says %s (% x)", doc.Lookup("v"), to, bson.Raw(got), err, said, said.Value)
			}
		}
	}
}

func asDouble(text string) float64 {
	f, _ := strconv.ParseFloat(text, 64)
	return f
}

// testPipelines: wild rules on wild documents.
func testPipelines(s server) {
	g := newGen(seedOf(s.T))
	g.Odd = false
	compared, changed := 0, 0
	for range roundsOf(s.T, 4) {
		var docs []bson.Raw
		for i := range 60 {
			doc := g.document()
			doc[0].Value = int32(i)
			docs = append(docs, raw(s, doc))
		}
		fill := docs
		for range 60 {
			rules := raw(s, g.expressible())
			m, err := Parse(rules, testSecrets)
			if err != nil {
				continue
			}
			want, err := s.mapped(fill, asPipeline(rules))
			if err != nil {
				s.Fatalf("%s: %v", rules, err)
			}
			fill = nil
			for i, doc := range docs {
				got, err := m.Apply(nil, doc, Meta{})
				if err != nil {
					continue
				}
				compared++
				if !bytes.Equal(got, doc) {
					changed++
				}
				if w := want[int32(i)]; !bytes.Equal(got, w) && !(strings.Contains(w.String(), `{"$numberDecimal":"NaN"}`) && w.String() == bson.Raw(got).String()) {
					s.Fatalf("%s\n%s\nwe say          %s\nthe server says %s", rules, doc, bson.Raw(got), want[int32(i)])
				}
			}
		}
	}
	s.Logf("%d compared, %d changed", compared, changed)
	if changed*4 < compared || compared < 1000 {
		s.Error("the rules change too little")
	}
}

// expressible are rules that asPipeline can write.
func (g gen) expressible() bson.D {
	for {
		out := g.rules()
		ok := true
		for _, e := range out {
			rules, _ := e.Value.(bson.D)
			ok = ok && e.Key != "compute"
			for _, r := range rules {
				switch v := r.Value.(type) {
				case string:
					ok = ok && !(e.Key == "move" && strings.Contains(v, ".")) && !(e.Key == "from" && strings.HasPrefix(v, "$"))
				case bson.D:
					ok = ok && find(v, "hmac") < 0 && (e.Key != "convert" || v[1].Value != "fail" && v[0].Value != "date")
				}
				ok = ok && !(strings.Contains(r.Key, ".") && (e.Key == "set" || e.Key == "from"))
			}
		}
		if ok {
			return out
		}
	}
}

// asPipeline writes rules in aggregation. Values are mapped first, for what is moved
// takes them along; then what stands in place; the outputs go behind _id.
func asPipeline(rules bson.Raw) bson.A {
	var doc bson.D
	if err := bson.Unmarshal(rules, &doc); err != nil {
		panic(err)
	}
	out := bson.A{d("$replaceWith", d("source", "$$ROOT", "doc", "$$ROOT"))}
	with := func(expr any) { out = append(out, d("$replaceWith", d("source", "$source", "doc", expr))) }
	section := func(name string) bson.D {
		if i := find(doc, name); i >= 0 {
			return doc[i].Value.(bson.D)
		}
		return nil
	}
	list := func(name string) bson.A {
		if i := find(doc, name); i >= 0 {
			return doc[i].Value.(bson.A)
		}
		return nil
	}
	for _, name := range []string{"convert", "mask"} {
		for _, e := range section(name) {
			with(at("$doc", strings.Split(e.Key, "."), 4, func(v any) any { return valueExpr(name, e.Value, v) }))
		}
	}
	out = append(out, d("$set", d("ruled", "$doc")))
	with = func(expr any) {
		out = append(out, d("$replaceWith", d("source", "$source", "ruled", "$ruled", "doc", expr)))
	}
	for _, p := range list("drop") {
		with(at("$doc", strings.Split(p.(string), "."), 4, func(any) any { return "$$REMOVE" }))
	}
	for _, e := range section("move") {
		with(at("$doc", strings.Split(e.Key, "."), 0, func(any) any { return "$$REMOVE" }))
	}
	if keep := list("keep"); keep != nil {
		project := d("doc._id", 1, "source", 1, "ruled", 1)
		for _, p := range keep {
			project = append(project, bson.E{Key: "doc." + p.(string), Value: 1})
		}
		out = append(out, d("$project", project), d("$replaceWith", d("source", "$source", "ruled", "$ruled", "doc", "$doc")))
	}
	return append(out, d("$replaceWith", placed(doc, section)))
}

// placed puts fields in place under their names, and outputs behind _id.
func placed(doc bson.D, section func(string) bson.D) any {
	names, gone := bson.A{}, bson.A{}
	for _, e := range section("rename") {
		names = append(names, d("case", d("$eq", bson.A{"$$f.k", e.Key}), "then", e.Value))
		if find(section("rename"), e.Value.(string)) < 0 {
			gone = append(gone, e.Value)
		}
	}
	outs := bson.A{}
	add := func(name string, v any) {
		if find(section("rename"), name) < 0 {
			gone = append(gone, name)
		}
		outs = append(outs, d("$cond", bson.A{d("$eq", bson.A{d("$type", v), "missing"}), bson.A{}, bson.A{d("k", name, "v", v)}}))
	}
	for _, s := range doc {
		if s.Key != "set" && s.Key != "from" && s.Key != "move" {
			continue
		}
		for _, e := range s.Value.(bson.D) {
			switch s.Key {
			case "set":
				add(e.Key, d("$literal", e.Value))
			case "from":
				add(e.Key, get("$source", strings.Split(e.Value.(string), ".")))
			case "move":
				add(e.Value.(string), get("$ruled", strings.Split(e.Key, ".")))
			}
		}
	}
	rest := d("$filter", d("input", d("$objectToArray", "$doc"), "as", "f", "cond", d("$not", bson.A{d("$in", bson.A{"$$f.k", append(gone, "_id")})})))
	var name any = "$$f.k"
	if len(names) > 0 {
		name = d("$switch", d("branches", names, "default", "$$f.k"))
	}
	parts := bson.A{bson.A{d("k", "_id", "v", "$doc._id")}}
	parts = append(parts, outs...)
	parts = append(parts, d("$map", d("input", rest, "as", "f", "in", d("k", name, "v", "$$f.v"))))
	return d("$arrayToObject", d("$concatArrays", parts))
}

// get is the value that a path leads to through documents.
func get(doc any, names []string) any {
	for _, name := range names {
		doc = d("$let", d("vars", d("o", doc), "in", d("$cond", bson.A{d("$eq", bson.A{d("$type", "$$o"), "object"}), d("$getField", d("field", name, "input", "$$o")), "$$REMOVE"})))
	}
	return doc
}

// at puts what leaf makes of a value where a path leads to, in arrays too, which are
// nested up to depth times.
func at(v any, names []string, depth int, leaf func(any) any) any {
	if len(names) == 0 {
		return leaf(v)
	}
	inner := d("$getField", d("field", names[0], "input", "$$v"))
	branches := bson.A{d("case", d("$eq", bson.A{d("$type", "$$v"), "object"}), "then", d("$cond", bson.A{
		d("$eq", bson.A{d("$type", inner), "missing"}), "$$v",
		d("$setField", d("field", names[0], "input", "$$v", "value", at(inner, names[1:], depth, leaf))),
	}))}
	if depth > 0 && v != "$doc" {
		branches = append(branches, d("case", d("$isArray", bson.A{"$$v"}), "then", d("$map", d("input", "$$v", "as", "x", "in", at("$$x", names, depth-1, leaf)))))
	}
	return d("$let", d("vars", d("v", v), "in", d("$switch", d("branches", branches, "default", "$$v"))))
}

func valueExpr(section string, rule, v any) any {
	is := func(typ string, then any) any {
		return d("$let", d("vars", d("t", v), "in", d("$cond", bson.A{d("$eq", bson.A{d("$type", "$$t"), typ}), then, nil})))
	}
	switch r := rule.(type) {
	case string:
		if r == "null" {
			return nil
		}
		return is("date", d("$dateTrunc", d("date", "$$t", "unit", r)))
	case bson.D:
		if section == "convert" {
			onError := map[any]any{"keep": "$$t", "null": nil, "drop": "$$REMOVE"}[r[1].Value]
			return d("$let", d("vars", d("t", v), "in", d("$convert", d("input", "$$t", "to", r[0].Value, "onError", onError, "onNull", nil))))
		}
		return is("string", stars(r[0].Key == "first", r[0].Value))
	}
	panic("no rule")
}

func stars(first bool, n any) any {
	count := d("$strLenCP", "$$t")
	hidden := d("$cond", bson.A{d("$lte", bson.A{count, n}), count, d("$subtract", bson.A{count, n})})
	filler := d("$reduce", d("input", d("$range", bson.A{0, hidden}), "initialValue", "", "in", d("$concat", bson.A{"$$value", "*"})))
	shown := d("$subtract", bson.A{count, hidden})
	if first {
		return d("$concat", bson.A{d("$substrCP", bson.A{"$$t", 0, shown}), filler})
	}
	return d("$concat", bson.A{filler, d("$substrCP", bson.A{"$$t", hidden, shown})})
}
