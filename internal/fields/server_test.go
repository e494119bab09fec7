package fields

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/test/deltatest"
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

// TestServer holds everything that asks a real server. The rules are written once more
// as a pipeline, of other operators than what is tested is made of.
func TestServer(t *testing.T) {
	for _, version := range lab.Versions("4.2", "4.4", "5.0") {
		t.Run(version, func(t *testing.T) {
			c := lab.ForTest(t, lab.Options{CacheGB: 0.25, Version: version})
			client, err := mongo.Connect(options.Client().ApplyURI(c.URI()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
			db := client.Database("fields")
			t.Run("convert", func(t *testing.T) { testConversions(server{t, db, version}) })
			t.Run("any value", func(t *testing.T) { testAnyConversion(server{t, db, version}) })
			if version >= "5" { // for $getField
				t.Run("wild", func(t *testing.T) { testPipelines(server{t, db, version}) })
			}
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

// testPipelines: wild rules on wild documents.
func testPipelines(s server) {
	testseed.Each(s.T, func(t *testing.T, seed uint64) { s.T = t; s.pipelines(seed) })
}

func (s server) pipelines(seed uint64) {
	g := newGen(seed)
	g.Odd = false
	compared, changed := 0, 0
	for range testseed.Rounds(s.T, 4) {
		var docs []bson.Raw
		for i := range 60 {
			doc := g.document()
			doc[0].Value = int32(i)
			docs = append(docs, kit.Raw(doc))
		}
		fill := docs
		for range 60 {
			rules := kit.Raw(g.expressible())
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
				if w := want[int32(i)]; !bytes.Equal(got, w) &&
					!(strings.Contains(w.String(), `{"$numberDecimal":"NaN"}`) && w.String() == bson.Raw(got).String()) {
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
					ok = ok && deltatest.Find(v, "hmac") < 0 && (e.Key != "convert" || v[1].Value != "fail" && v[0].Value != "date")
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
		if i := deltatest.Find(doc, name); i >= 0 {
			return doc[i].Value.(bson.D)
		}
		return nil
	}
	list := func(name string) bson.A {
		if i := deltatest.Find(doc, name); i >= 0 {
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
		if deltatest.Find(section("rename"), e.Value.(string)) < 0 {
			gone = append(gone, e.Value)
		}
	}
	outs := bson.A{}
	add := func(name string, v any) {
		if deltatest.Find(section("rename"), name) < 0 {
			gone = append(gone, name)
		}
		outs = append(outs, d("$cond", bson.A{d("$eq", bson.A{d("$type", v), "missing"}), bson.A{},
			bson.A{d("k", name, "v", v)}}))
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
	rest := d("$filter", d("input", d("$objectToArray", "$doc"), "as", "f",
		"cond", d("$not", bson.A{d("$in", bson.A{"$$f.k", append(gone, "_id")})})))
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
		doc = d("$let", d("vars", d("o", doc), "in",
			d("$cond", bson.A{d("$eq", bson.A{d("$type", "$$o"), "object"}), d("$getField", d("field", name, "input", "$$o")),
				"$$REMOVE"})))
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
		branches = append(branches, d("case", d("$isArray", bson.A{"$$v"}), "then",
			d("$map", d("input", "$$v", "as", "x", "in", at("$$x", names, depth-1, leaf)))))
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
			return d("$let", d("vars", d("t", v), "in",
				d("$convert", d("input", "$$t", "to", r[0].Value, "onError", onError, "onNull", nil))))
		}
		return is("string", stars(r[0].Key == "first", r[0].Value))
	}
	panic("no rule")
}

func stars(first bool, n any) any {
	count := d("$strLenCP", "$$t")
	hidden := d("$cond", bson.A{d("$lte", bson.A{count, n}), count, d("$subtract", bson.A{count, n})})
	filler := d("$reduce", d("input", d("$range", bson.A{0, hidden}), "initialValue", "",
		"in", d("$concat", bson.A{"$$value", "*"})))
	shown := d("$subtract", bson.A{count, hidden})
	if first {
		return d("$concat", bson.A{d("$substrCP", bson.A{"$$t", 0, shown}), filler})
	}
	return d("$concat", bson.A{filler, d("$substrCP", bson.A{"$$t", hidden, shown})})
}
