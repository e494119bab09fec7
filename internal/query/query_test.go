package query

import (
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/kit"
)

// parseDoc reads extended JSON.
func parseDoc(t testing.TB, text string) bson.D {
	t.Helper()
	var out bson.D
	if err := bson.UnmarshalExtJSON([]byte(text), false, &out); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return out
}

func mustParse(t testing.TB, text string) *Query {
	t.Helper()
	q, err := Parse(kit.Raw(parseDoc(t, text)))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return q
}

// tableCase is a filter with documents that it finds and others that it does not, as
// servers have it: TestServer asks them the same.
type tableCase struct {
	filter  string
	yes, no []string
}

var tableCases = []tableCase{
	{`{}`, []string{`{}`, `{"a": 1}`}, nil},
	{`{"a.0.b": null}`, []string{`{}`, `{"a": 1}`, `{"a": [{}]}`, `{"a": {"0": 5}}`, `{"a": [{"0": 5}]}`},
		[]string{`{"a": [5]}`, `{"a": [null]}`, `{"a": [[5]]}`, `{"a": []}`}},
	{`{"a": {"$lt": {"$maxKey": 1}}}`, []string{`{}`, `{"a": null}`, `{"a": []}`}, []string{`{"a": {"$maxKey": 1}}`}},
	{`{"a": {"$gte": {"$minKey": 1}}}`, []string{`{}`, `{"a": {"$minKey": 1}}`}, nil},
	{`{"a": {"$gte": {"$maxKey": 1}}}`, []string{`{"a": {"$maxKey": 1}}`}, []string{`{}`, `{"a": null}`}},
	{`{"a": {"$lte": {"$minKey": 1}}}`, []string{`{"a": {"$minKey": 1}}`}, []string{`{}`, `{"a": 1}`}},
	{`{"a.b": {"$gt": {"$minKey": 1}}}`, []string{`{}`, `{"a": 1}`, `{"a": [{}]}`},
		[]string{`{"a": []}`, `{"a": [1]}`, `{"a": {"b": {"$minKey": 1}}}`}},
	{`{"a": {"$in": [null, null]}}`, []string{`{}`, `{"a": null}`, `{"a": [null]}`, `{"a": {"$undefined": true}}`},
		[]string{`{"a": []}`, `{"a": 1}`}},
	{`{"a.b": null}`, []string{`{}`, `{"a": {}}`, `{"a": 1}`, `{"a": null}`, `{"a": [{}]}`, `{"a": [{"b": 1}, {}]}`},
		[]string{`{"a": []}`, `{"a": [1]}`, `{"a": [[{}]]}`}},
}

func TestTables(t *testing.T) {
	for _, c := range tableCases {
		q := mustParse(t, c.filter)
		for i, text := range slices.Concat(c.yes, c.no) {
			if got := q.Match(kit.Raw(parseDoc(t, text))); got != (i < len(c.yes)) {
				t.Errorf("%s: %v for %s", c.filter, got, text)
			}
		}
	}
}

// TestOfAll: which filters servers evaluate as Match does.
func TestOfAll(t *testing.T) {
	for text, want := range map[string]bool{
		`{"a": 1, "b": {"$in": ["x", 2]}}`:                                           true,
		`{"$comment": "$mod and $regex", "a": {"$mod": [2, 0]}}`:                     false,
		`{"a": {"$mod": [2, 0]}}`:                                                    false,
		`{"$or": [{"a": 1}, {"a": {"$not": {"$mod": [2, 0]}}}]}`:                     false,
		`{"a": {"$elemMatch": {"b": {"$regex": "x"}}}}`:                              false,
		`{"a": {"$in": [{"$regularExpression": {"pattern": "x", "options": ""}}]}}`:  false,
		`{"a": {"$all": [{"$regularExpression": {"pattern": "x", "options": ""}}]}}`: false,
		`{"a": {"$not": {"$regularExpression": {"pattern": "x", "options": ""}}}}`:   false,
		`{"a": {"$type": "regex"}}`:                                                  true,
	} {
		q, err := Parse(kit.Raw(parseDoc(t, text)))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if q.OfAll() != want {
			t.Errorf("%s: %v", text, !want)
		}
	}
}
