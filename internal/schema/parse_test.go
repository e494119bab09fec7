package schema

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// TestParseChange: entries as mongod writes them.
func TestParseChange(t *testing.T) {
	for _, c := range []struct {
		o       string
		kind    stream.ChangeKind // "" for no effect
		ns      string
		err     string
		details func(ch stream.Change) bool
	}{
		{o: `{"create":"c","capped":true,"size":4096,"idIndex":{"v":2}}`, kind: stream.ChangeCreate, ns: "d.c",
			details: func(ch stream.Change) bool {
				return has(ch.Options, "capped") && !has(ch.Options, "idIndex") && !has(ch.Options, "create")
			}},
		{o: `{"create":"system.buckets.m","validator":{},"clusteredIndex":true,"timeseries":{"timeField":"t"}}`, kind: stream.ChangeCreate, ns: "d.m",
			details: func(ch stream.Change) bool {
				return ch.Buckets && has(ch.Options, "timeseries") && !has(ch.Options, "validator")
			}},
		{o: `{"create":"system.buckets.m"}`, err: "time-series options"},
		{o: `{"create":"system.views"}`},
		{o: `{"create":"system.profile"}`},
		{o: `{"create":"system.js"}`, kind: stream.ChangeCreate, ns: "d.system.js"},
		{o: `{"drop":"c"}`, kind: stream.ChangeDrop, ns: "d.c"},
		{o: `{"drop":"system.buckets.m"}`, kind: stream.ChangeDrop, ns: "d.m"},
		{o: `{"drop":"system.views"}`, kind: stream.ChangeDropAllViews, ns: "d"},
		{o: `{"dropDatabase":1}`, kind: stream.ChangeDropDatabase, ns: "d"},
		{o: `{"renameCollection":"d.a","to":"d.b.c","stayTemp":false,"dropTarget":{"$binary":{"base64":"gf1MfeyeTbepmYVPBcIzWQ==","subType":"04"}}}`, kind: stream.ChangeRename, ns: "d.a",
			details: func(ch stream.Change) bool { return ch.To == "d.b.c" && ch.DropTarget }},
		{o: `{"renameCollection":"d.a","to":"d.b","stayTemp":false}`, kind: stream.ChangeRename, ns: "d.a", details: func(ch stream.Change) bool { return !ch.DropTarget }},
		{o: `{"renameCollection":"d.a"}`, err: "malformed"},
		{o: `{"renameCollection":"d.system.buckets.a","to":"d.b"}`, err: "of the server"},
		{o: `{"createIndexes":"c","v":2,"key":{"a":1},"name":"a_1"}`, kind: stream.ChangeCreateIndexes, ns: "d.c",
			details: func(ch stream.Change) bool {
				return ch.Indexes[0].Name == "a_1" && !has(ch.Indexes[0].Spec, "createIndexes")
			}},
		{o: `{"startIndexBuild":"c"}`}, {o: `{"abortIndexBuild":"c"}`}, {o: `{"dbCheck":"d.c"}`},
		{o: `{"commitIndexBuild":"c","indexes":[{"name":"a"},{"name":"b"}]}`, kind: stream.ChangeCreateIndexes, ns: "d.c",
			details: func(ch stream.Change) bool { return len(ch.Indexes) == 2 && ch.Indexes[1].Name == "b" }},
		{o: `{"commitIndexBuild":"c"}`, err: "no indexes"},
		{o: `{"dropIndexes":"c","index":"a"}`, kind: stream.ChangeDropIndexes, ns: "d.c", details: func(ch stream.Change) bool { return ch.Indexes[0].Name == "a" }},
		{o: `{"deleteIndexes":"c","index":["a","b"]}`, kind: stream.ChangeDropIndexes, ns: "d.c", details: func(ch stream.Change) bool { return len(ch.Indexes) == 2 }},
		{o: `{"dropIndexes":"c"}`, err: "no index name"},
		{o: `{"collMod":"c","validator":{}}`, kind: stream.ChangeCollMod, ns: "d.c", details: func(ch stream.Change) bool { return has(ch.Options, "validator") && !has(ch.Options, "collMod") }},
		{o: `{"emptycapped":"c"}`, err: "emptycapped"},
		{o: `{"frobnicate":1}`, err: "frobnicate"},
		{o: `{"applyOps":[]}`, err: "applyOps"},
		{o: `{}`, err: "no command"},
	} {
		ch, effect, err := ParseChange("d.$cmd", nil, js(t, c.o))
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %q", c.o, err, c.err)
			}
		case err != nil || effect != (c.kind != "") || effect && (ch.Kind != c.kind || ch.NS != c.ns):
			t.Errorf("%s: %+v, %v, %v", c.o, ch, effect, err)
		case c.details != nil && !c.details(ch):
			t.Errorf("%s: %+v", c.o, ch)
		}
	}
	if _, effect, err := ParseChange("config.$cmd", nil, js(t, `{"frobnicate":1}`)); effect || err != nil {
		t.Errorf("internal database: %v, %v", effect, err)
	}
}

func TestParseViewWrite(t *testing.T) {
	view := `{"_id":"d.v","viewOn":"c","pipeline":[]}`
	series := `{"_id":"d.m","viewOn":"system.buckets.m","pipeline":[]}`
	for _, c := range []struct {
		op    byte
		o, o2 string
		kind  stream.ChangeKind
		err   bool
	}{
		{'i', view, `{}`, stream.ChangeView, false},
		{'u', view, `{"_id":"d.v"}`, stream.ChangeView, false},
		{'d', `{"_id":"d.v"}`, `{}`, stream.ChangeDropView, false},
		{'i', series, `{}`, "", false},
		{'u', series, `{"_id":"d.m"}`, "", false},
		{'i', `{"_id":"d.other","viewOn":"system.buckets.m","pipeline":[]}`, `{}`, stream.ChangeView, false},
		{'u', `{"$v":2,"diff":{"u":{"viewOn":"x"}}}`, `{"_id":"d.v"}`, "", true},
		{'d', `{"_id":5}`, `{}`, "", true},
	} {
		ch, effect, err := ParseViewWrite(c.op, "d", js(t, c.o), js(t, c.o2))
		if (err != nil) != c.err || effect != (c.kind != "") || ch.Kind != c.kind {
			t.Errorf("%c %s: %+v, %v, %v", c.op, c.o, ch, effect, err)
		}
		if effect && c.op != 'd' && (has(ch.Options, "_id") || !has(ch.Options, "viewOn")) {
			t.Errorf("%c %s: options %v", c.op, c.o, ch.Options)
		}
	}
}

func TestMapView(t *testing.T) {
	rules := newRules(t, transform.Config{Rename: []string{"a=b", "a.x=b.x2", "a.far=c.far"}})
	def := js(t, `{"viewOn":"x","pipeline":[{"$lookup":{"from":"x","as":"x","pipeline":[{"$unionWith":"x"},{"$match":{"from":"x"}}]}},{"$facet":{"f":[{"$graphLookup":{"from":"x","as":"from"}}]}},{"$unionWith":{"coll":"x"}},{"$lookup":{"from":{"db":"a","coll":"x"},"as":"y"}}]}`)
	got, err := MapView("a.v", def, rules)
	if err != nil {
		t.Fatal(err)
	}
	want := js(t, `{"viewOn":"x2","pipeline":[{"$lookup":{"from":"x2","as":"x","pipeline":[{"$unionWith":"x2"},{"$match":{"from":"x"}}]}},{"$facet":{"f":[{"$graphLookup":{"from":"x2","as":"from"}}]}},{"$unionWith":{"coll":"x2"}},{"$lookup":{"from":{"db":"b","coll":"x2"},"as":"y"}}]}`)
	if got.String() != want.String() {
		t.Errorf("mapped to %s", got)
	}
	if _, err := MapView("a.v", js(t, `{"viewOn":"far","pipeline":[]}`), rules); err == nil || mongo.HintOf(err) == "" {
		t.Errorf("base in another database: %v", err)
	}
	err = CheckRules([]Collection{
		{NS: "a.v", Type: TypeView, Options: js(t, `{"viewOn":"far","pipeline":[]}`)},
		{NS: "a.y", Type: TypeCollection}, {NS: "b.y", Type: TypeCollection},
	}, rules)
	if err == nil || !strings.Contains(err.Error(), "view a.v") || !strings.Contains(err.Error(), "b.y") {
		t.Errorf("all problems at once: %v", err)
	}
}

func TestUnsupported(t *testing.T) {
	coll := Collection{NS: "d.c", Type: TypeCollection, Options: js(t, `{"clusteredIndex":{},"changeStreamPreAndPostImages":{"enabled":true}}`),
		Indexes: []stream.Index{{Name: "h", Spec: js(t, `{"hidden":true,"key":{"a":1}}`)}, {Name: "g", Spec: js(t, `{"key":{"a":"geoHaystack"}}`)}}}
	for v, want := range map[mongo.Version]int{{Major: 4, Minor: 2}: 3, {Major: 5, Minor: 0}: 3, {Major: 6, Minor: 0}: 1} {
		if got := Unsupported(coll, v); len(got) != want {
			t.Errorf("%v: %v", v, got)
		}
	}
}

func TestUnsupportedExpiryOfCapped(t *testing.T) {
	coll := Collection{NS: "d.c", Type: TypeCollection, Options: js(t, `{"capped":true,"size":4096}`),
		Indexes: []stream.Index{{Name: "a", Spec: js(t, `{"key":{"a":1},"expireAfterSeconds":60}`)}, {Name: "b", Spec: js(t, `{"key":{"b":1}}`)}}}
	for v, want := range map[mongo.Version]int{{Major: 5, Minor: 0}: 0, {Major: 6, Minor: 0}: 1} {
		if got := Unsupported(coll, v); len(got) != want {
			t.Errorf("%v: %v", v, got)
		}
	}
}

func TestWithoutMetadata(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "block_compressor=zlib": "block_compressor=zlib", "app_metadata=(a=(b,c),d=true)": "",
		"x=1,app_metadata=(a=true),y=2": "x=1,y=2", "app_metadata=(a=true),y=2": "y=2", "x=1,app_metadata=(a=true)": "x=1",
	} {
		if got := withoutMetadata(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
