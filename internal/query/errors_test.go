package query

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/kit"
)

// TestRefused: an error says what is wrong and where.
func TestRefused(t *testing.T) {
	for filter, says := range map[string][]string{
		`{"$where": "1"}`:                                  {"$where is not supported"},
		`{"$expr": true}`:                                  {"$expr is not supported"},
		`{"$text": {"$search": "x"}}`:                      {"$text is not supported"},
		`{"$jsonSchema": {}}`:                              {"$jsonSchema is not supported"},
		`{"a": {"$near": [1, 2]}}`:                         {`"a"`, "$near is not supported"},
		`{"a": {"$geoWithin": {}}}`:                        {"$geoWithin is not supported"},
		`{"a": {"$foo": 1}}`:                               {`at "a" → $foo`, "not an operator"},
		`{"$or": [{"b": 1}, {"x.y": {"$gt": 1, "z": 1}}]}`: {`$or[1] → "x.y" → z`},
		`{"$or": []}`:                                      {"$or", "empty"},
		`{"$or": {"a": 1}}`:                                {"$or", "list"},
		`{"$and": [1]}`:                                    {"$and[0]", "filter"},
		`{"$gt": 1}`:                                       {"$gt is not an operator here"},
		`{"a": {"$ref": "c", "$id": 1}}`:                   {"DBRef"},
		`{"a": {"$undefined": true}}`:                      {"undefined"},
		`{"a": {"$in": [{"$undefined": true}]}}`:           {"$in", "undefined"},
		`{"a": {"$in": [1, null]}}`:                        {"$in", "null", "$or"},
		`{"a": {"$nin": [null, "x"]}}`:                     {"$nin", "null", "$ne"},
		`{"a.": 1}`:                                        {`"a."`, "empty"},
		`{".a": 1}`:                                        {"empty"},
		`{"a..b": 1}`:                                      {"empty"},
		`{"a": {"$elemMatch": {"b.": 1}}}`:                 {"empty"},
		`{"a": {"$in": 1}}`:                                {"$in", "list"},
		`{"a": {"$in": [{"$gt": 1}]}}`:                     {"$in", "not operators"},
		`{"a": {"$in": [{"$regularExpression": {"pattern": "a(?=b)", "options": ""}}]}}`: {"$in", "a(?=b)", "lookaround"},
		`{"a": {"$gt": {"$regularExpression": {"pattern": "a", "options": ""}}}}`:        {"$gt", "regex"},
		`{"a": {"$ne": {"$regularExpression": {"pattern": "a", "options": ""}}}}`:        {"$ne", "$not"},
		`{"a": {"$regex": 1}}`:                    {"$regex", "string"},
		`{"a": {"$regex": "a", "$options": 1}}`:   {"$options", "string"},
		`{"a": {"$regex": "a", "$options": "g"}}`: {"'g'"},
		`{"a": {"$options": "i"}}`:                {"$options", "$regex"},
		`{"a": {"$regex": {"$regularExpression": {"pattern": "a", "options": "i"}}, "$options": "m"}}`: {"once"},
		`{"a": {"$regex": {"$regularExpression": {"pattern": "a", "options": "i"}}, "$options": ""}}`:  {"once"},
		`{"a": {"$regex": "a", "$options": "i", "$gt": "", "$options": "m"}}`:                          {"$options", "twice"},
		`{"a": {"$regex": "a", "$regex": "b"}}`:                                                        {"$regex", "twice"},
		`{"a": {"$not": 1}}`:                                                                           {"$not", "$ne"},
		`{"a": {"$not": {}}}`:                                                                          {"$not"},
		`{"a": {"$type": "x"}}`:                                                                        {"$type", "not a type"},
		`{"a": {"$type": []}}`:                                                                         {"$type", "empty"},
		`{"a": {"$type": 0}}`:                                                                          {"$type"},
		`{"a": {"$size": -1}}`:                                                                         {"$size", "negative"},
		`{"a": {"$size": 1.5}}`:                                                                        {"$size"},
		`{"a": {"$mod": [0, 1]}}`: {"$mod",
			"divisor is 0"},
		`{"a": {"$mod": [2]}}`:                                {"$mod", "list"},
		`{"a": {"$mod": [2.5, 1]}}`:                           {"$mod", "whole"},
		`{"a": {"$mod": [{"$numberLong": "4294967296"}, 1]}}`: {"$mod", "32 bits"},
		`{"a": {"$all": 1}}`:                                  {"$all", "list"},
		`{"a": {"$all": [{"$gt": 1}]}}`:                       {"$all"},
		`{"a": {"$all": [1, {"$elemMatch": {"b": 1}}]}}`:      {"$all", "$and"},
		`{"a": {"$elemMatch": 1}}`: {"$elemMatch",
			"document"},
		`{"a": {"$elemMatch": {"b": {"$where": "1"}}}}`: {`"a" → $elemMatch → "b" → $where`},
		`{"a": {"$elemMatch": {"b": 1, "$gt": 2}}}`:     {"$gt is not an operator here"},
		`{"a": {"$bitsAllSet": -1}}`: {"$bitsAllSet",
			"negative"},
		`{"a": {"$bitsAnySet": [-1]}}`: {"$bitsAnySet"},
		`{"a": {"$bitsAnySet": "x"}}`:  {"$bitsAnySet"},
	} {
		_, err := Parse(kit.Raw(parseDoc(t, filter)))
		if err == nil {
			t.Errorf("%s is taken", filter)
			continue
		}
		for _, s := range says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %v, does not say %s", filter, err, s)
			}
		}
	}
}

// named is an array whose elements have these names.
func named(t testing.TB, names ...string) bson.RawValue {
	t.Helper()
	doc := bson.D{}
	for i, name := range names {
		doc = append(doc, bson.E{Key: name, Value: int32(i)})
	}
	return bson.RawValue{Type: bson.TypeArray, Value: kit.Raw(doc)}
}

// TestLargeRegexes: short texts cannot take much memory, neither one nor many together.
func TestLargeRegexes(t *testing.T) {
	large := func(regexes, repetitions int) string {
		one := `{"a": {"$regex": "` + strings.Repeat(".{1000}", repetitions) + `"}}`
		return `{"$or": [` + strings.Repeat(one+", ", regexes-1) + one + `]}`
	}
	for filter, says := range map[string]string{large(1, 250): "too large", large(25, 10): "too large together",
		large(1, 150): "", large(10, 10): ""} {
		_, err := Parse(kit.Raw(parseDoc(t, filter)))
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%.60s: %v, does not say %q", filter, err, says)
		}
	}
}

// TestNamedElements: an array may have other names than indexes. It is another one then,
// and no operand.
func TestNamedElements(t *testing.T) {
	odd := named(t, "0", "x")
	for _, v := range []any{odd, d("$gt", odd), d("b", bson.A{odd}), d("$in", bson.A{1, odd}),
		d("$all", bson.A{d("b", odd)})} {
		if _, err := Parse(kit.Raw(d("a", v))); err == nil || !strings.Contains(err.Error(), "names") {
			t.Errorf("%v: %v", v, err)
		}
	}
	if mustParse(t, `{"a": [0, 1]}`).Match(kit.Raw(d("a", odd))) {
		t.Error("arrays with other names are equal")
	}
}

// TestDepth: conditions may be nested, but not without end.
func TestDepth(t *testing.T) {
	nested := func(n int) (or, not, match bson.D) {
		or, not, match = d("a", 1), d("$gt", 1), d("$gt", 1)
		for range n {
			or, not, match = d("$or", bson.A{or}), d("$not", not), d("$elemMatch", match)
		}
		return or, d("a", not), d("a", match)
	}
	for n, want := range map[int]bool{20: true, 90: false, 500: false} {
		or, not, match := nested(n)
		for _, f := range []bson.D{or, not, match} {
			if _, err := Parse(kit.Raw(f)); (err == nil) != want {
				t.Errorf("%d levels: %v", n, err)
			}
		}
	}
	if _, err := Parse(bson.Raw{5, 0, 0, 0}); err == nil {
		t.Error("damaged bytes are taken")
	}
}
