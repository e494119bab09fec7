package schema

import (
	"maps"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

func TestMapView(t *testing.T) {
	rules := newRules(t, transform.Config{Rename: []string{"a=b", "a.x=b.x2", "a.far=c.far"}})
	def := js(t,
		`{"viewOn":"x","pipeline":[{"$lookup":{"from":"x","as":"x","pipeline":[{"$unionWith":"x"},{"$match":{"from":"x"}}]}},{"$facet":{"f":[{"$graphLookup":{"from":"x","as":"from"}}]}},{"$unionWith":{"coll":"x"}},{"$lookup":{"from":{"db":"a","coll":"x"},"as":"y"}}]}`)
	got, err := MapView("a.v", def, rules)
	if err != nil {
		t.Fatal(err)
	}
	want := js(t,
		`{"viewOn":"x2","pipeline":[{"$lookup":{"from":"x2","as":"x","pipeline":[{"$unionWith":"x2"},{"$match":{"from":"x"}}]}},{"$facet":{"f":[{"$graphLookup":{"from":"x2","as":"from"}}]}},{"$unionWith":{"coll":"x2"}},{"$lookup":{"from":{"db":"b","coll":"x2"},"as":"y"}}]}`)
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
	coll := Collection{NS: "d.c", Type: TypeCollection, Options: js(t,
		`{"clusteredIndex":{},"changeStreamPreAndPostImages":{"enabled":true}}`),
		Indexes: []stream.Index{{Name: "h", Spec: js(t, `{"hidden":true,"key":{"a":1}}`)},
			{Name: "g", Spec: js(t, `{"key":{"a":"geoHaystack"}}`)}}}
	for v, want := range map[mongo.Version]int{{Major: 4, Minor: 2}: 3, {Major: 5, Minor: 0}: 3, {Major: 6, Minor: 0}: 1} {
		if got := Unsupported(coll, v); len(got) != want {
			t.Errorf("%v: %v", v, got)
		}
	}
}

// TestRecordIDsOfTheSource: whether a source replicates record ids is nothing that a target gets, or differs in.
func TestRecordIDsOfTheSource(t *testing.T) {
	coll := Collection{NS: "d.c", Type: TypeCollection,
		Options: js(t, `{"recordIdsReplicated":true,"capped":true,"size":4096}`)}
	for _, v := range []mongo.Version{{Major: 4, Minor: 2}, {Major: 7}, {Major: 9}} {
		out, _, err := createOptions(coll.Options, v)
		if err != nil || has(out, "recordIdsReplicated") || !has(out, "capped") {
			t.Errorf("%v: %s, %v", v, out, err)
		}
	}
	with, err := comparableOptions(coll, DiffOptions{})
	if err != nil {
		t.Fatal(err)
	}
	coll.Options = js(t, `{"capped":true,"size":4096}`)
	without, err := comparableOptions(coll, DiffOptions{})
	if err != nil || !maps.Equal(with, without) {
		t.Errorf("%v, without it %v, %v", with, without, err)
	}
}

func TestUnsupportedBefore7(t *testing.T) {
	series := Collection{NS: "d.s", Type: TypeTimeSeries, Options: js(t,
		`{"timeseries":{"timeField":"t","bucketMaxSpanSeconds":60,"bucketRoundingSeconds":60}}`)}
	grains := Collection{NS: "d.g", Type: TypeTimeSeries, Options: js(t,
		`{"timeseries":{"timeField":"t","granularity":"seconds","bucketMaxSpanSeconds":3600}}`)}
	coll := Collection{NS: "d.c", Type: TypeCollection, Options: js(t, `{}`), Indexes: []stream.Index{
		{Name: "wild", Spec: js(t, `{"key":{"$**":1}}`)}, {Name: "compound", Spec: js(t, `{"key":{"a":1,"s.$**":1}}`)}}}
	for v, want := range map[mongo.Version]int{{Major: 6, Minor: 0}: 1, {Major: 7}: 0} {
		for c, want := range map[*Collection]int{&series: want, &grains: 0, &coll: want} {
			if got := Unsupported(*c, v); len(got) != want {
				t.Errorf("%v: %s: %v", v, c.NS, got)
			}
		}
	}
}

func TestUnsupportedExpiryOfCapped(t *testing.T) {
	coll := Collection{NS: "d.c", Type: TypeCollection, Options: js(t, `{"capped":true,"size":4096}`),
		Indexes: []stream.Index{{Name: "a", Spec: js(t, `{"key":{"a":1},"expireAfterSeconds":60}`)},
			{Name: "b", Spec: js(t, `{"key":{"b":1}}`)}}}
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
