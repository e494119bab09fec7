package fields

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/schematest"
	"github.com/millrace/millrace/test/testseed"
)

// TestSchemaTakesWhatParseTakes: an editor complains of no rules that work.
func TestSchemaTakesWhatParseTakes(t *testing.T) {
	s := schematest.Part(t, "fields", Schema())
	g := newGen(testseed.Of(t))
	taken := 0
	for range testseed.Rounds(t, 2000) {
		rules := kit.Raw(g.rules())
		if _, err := Parse(rules, testSecrets); err != nil {
			continue
		}
		text, err := bson.MarshalExtJSON(rules, false, false)
		if err != nil {
			continue
		}
		taken++
		if err := schematest.Validate(s, text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	if taken < 500 && testseed.Rounds(t, 2000) >= 2000 {
		t.Errorf("only %d sets of rules were compared", taken)
	}
	for _, rules := range []string{`{}`, `{"keep": ["_id", "a.0b"]}`, `{"mask": {"a": null, "b": "null"}}`,
		`{"compute": {"a": "doc.b", "c.d": {"expr": "doc.b", "otherwise": null}}}`,
		`{"convert": {"a": {"to": "int", "otherwise": null}}}`} {
		if _, err := Parse(parseDoc(t, rules), testSecrets); err != nil {
			t.Error(err)
		}
		if err := schematest.Validate(s, []byte(rules)); err != nil {
			t.Errorf("%s: %v", rules, err)
		}
	}
}

// TestSchemaRefuses: an editor finds what Parse refuses, where it is a matter of form.
func TestSchemaRefuses(t *testing.T) {
	s := schematest.Part(t, "fields", Schema())
	for _, rules := range []string{
		`{"dorp": ["a"]}`, `{"drop": ["a"], "keep": ["b"]}`, `{"drop": "a"}`, `{"drop": []}`, `{"keep": []}`, `{"drop": [1]}`,
		`{"drop": ["a", ""]}`,
		`{"drop": ["a..b"]}`, `{"drop": ["a."]}`, `{"drop": ["a.0.b"]}`, `{"drop": ["$a"]}`, `{"drop": ["a.$b"]}`,
		`{"drop": ["_id"]}`, `{"drop": ["_id.a"]}`, `{"keep": ["_id.a"]}`,
		`{"mask": {"_id": "null"}}`, `{"rename": {"a": "_id"}}`, `{"move": {"a": "_id.x"}}`, `{"set": {"_id": 1}}`,
		`{"from": {"a": "_id.x"}}`,
		`{"rename": {"a.b": "c"}}`, `{"rename": {"a": "c.d"}}`, `{"rename": {"a": 1}}`, `{"rename": ["a"]}`, `{"rename": {}}`,
		`{"from": {"a": "$now"}}`, `{"from": {"a": 1}}`,
		`{"convert": {"a": "int"}}`, `{"convert": {"a": {"to": "number"}}}`,
		`{"convert": {"a": {"to": "int", "otherwise": "x"}}}`, `{"convert": {"a": {"to": "int", "or": "x"}}}`,
		`{"convert": {"a": {}}}`,
		`{"mask": {"a": "x"}}`, `{"mask": {"a": {}}}`, `{"mask": {"a": 1}}`, `{"mask": {"a": {"last": 4, "first": 1}}}`,
		`{"mask": {"a": {"last": 0}}}`, `{"mask": {"a": {"first": "x"}}}`, `{"mask": {"a": {"hmac": "secret"}}}`,
		`{"compute": {"a": 1}}`, `{"compute": {"a": {"when": "doc.b"}}}`,
		`{"compute": {"a": {"expr": "1", "otherwise": "keep"}}}`,
	} {
		if schematest.Validate(s, []byte(rules)) == nil {
			t.Errorf("%s is valid", rules)
		}
		if _, err := Parse(parseDoc(t, rules), testSecrets); err == nil {
			t.Errorf("%s is taken", rules)
		}
	}
}
