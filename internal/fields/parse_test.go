package fields

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestRefused: an error says what is wrong, where, and how to write it.
func TestRefused(t *testing.T) {
	for rules, says := range map[string][]string{
		`{"dorp": ["a"]}`:                                        {`no rule "dorp"`, "keep, drop"},
		`{"drop": ["a"], "drop": ["b"]}`:                         {"at drop", "twice"},
		`{"drop": ["a"], "keep": ["b"]}`:                         {"exclude each other"},
		`{"drop": "a"}`:                                          {"at drop", "list of paths"},
		`{"drop": []}`:                                           {"at drop", "empty"},
		`{"keep": []}`:                                           {"at keep", `["_id"]`},
		`{"drop": [1]}`:                                          {"at drop[0]", "string"},
		`{"drop": ["a", ""]}`:                                    {"at drop[1]", "empty"},
		`{"drop": ["a..b"]}`:                                     {"empty", "one dot"},
		`{"drop": ["a."]}`:                                       {"empty"},
		`{"drop": ["a.0.b"]}`:                                    {`"0"`, "index"},
		`{"drop": ["$a"]}`:                                       {"dollar"},
		`{"drop": ["a.$b"]}`:                                     {"dollar"},
		`{"drop": ["_id"]}`:                                      {"_id", "always kept"},
		`{"drop": ["_id.a"]}`:                                    {"_id"},
		`{"keep": ["_id.a"]}`:                                    {"_id"},
		`{"mask": {"_id": "null"}}`:                              {`mask → "_id"`},
		`{"convert": {"_id": {"to": "string"}}}`:                 {"_id"},
		`{"rename": {"_id": "a"}}`:                               {"_id"},
		`{"rename": {"a": "_id"}}`:                               {"_id"},
		`{"move": {"a": "_id.x"}}`:                               {"_id"},
		`{"set": {"_id": 1}}`:                                    {"_id"},
		`{"from": {"a": "_id.x"}}`:                               {"_id"},
		`{"rename": {"a.b": "c"}}`:                               {"top level", "move"},
		`{"rename": {"a": "c.d"}}`:                               {"top level", "move"},
		`{"rename": {"a": "a"}}`:                                 {"already"},
		`{"rename": {"a": 1}}`:                                   {`rename → "a"`, "string"},
		`{"rename": ["a"]}`:                                      {"at rename", "document"},
		`{"rename": {}}`:                                         {"at rename", "empty"},
		`{"rename": {"a": "b", "a": "c"}}`:                       {`rename → "a"`, "twice"},
		`{"move": {"a.b": "a.b"}}`:                               {"already"},
		`{"from": {"a": "$now"}}`:                                {"$now", "$clusterTime"},
		`{"from": {"a": 1}}`:                                     {`from → "a"`},
		`{"from": {"a.b": "$clusterTime"}}`:                      {"top level"},
		`{"convert": {"a": "int"}}`:                              {`convert → "a"`, `"to"`},
		`{"convert": {"a": {"to": "number"}}}`:                   {"→ to", "decimal"},
		`{"convert": {"a": {"to": "int", "otherwise": "x"}}}`:    {"otherwise", "fail, keep, null or drop"},
		`{"convert": {"a": {"to": "int", "or": "x"}}}`:           {`"or"`, "otherwise"},
		`{"mask": {"a": "x"}}`:                                   {`no mask "x"`, "month"},
		`{"mask": {"a": {}}}`:                                    {"one of"},
		`{"mask": {"a": 1}}`:                                     {"hmac"},
		`{"mask": {"a": {"last": 4, "first": 1}}}`:               {"one of"},
		`{"mask": {"a": {"last": 0}}}`:                           {"→ last", "1 to 1000"},
		`{"mask": {"a": {"first": "x"}}}`:                        {"→ first"},
		`{"mask": {"a": {"hmac": "secret"}}}`:                    {"→ hmac", "reference", "not the key itself"},
		`{"mask": {"a": {"hmac": "env:NONE"}}}`:                  {"env:NONE", "cannot be read"},
		`{"mask": {"a": {"hmac": "env:SHORT"}}}`:                 {"env:SHORT", "16 bytes"},
		`{"compute": {"a": 1}}`:                                  {`compute → "a"`, "doc.a + doc.b"},
		`{"compute": {"a": "doc.b +"}}`:                          {`compute → "a"`, "CEL", "Syntax"},
		`{"compute": {"a": "other.b"}}`:                          {"undeclared"},
		`{"compute": {"a": "{'x': doc.b}"}}`:                     {"no order"},
		`{"compute": {"a": {"when": "doc.b"}}}`:                  {`"when"`, "expr"},
		`{"compute": {"a": {"expr": "1", "otherwise": "keep"}}}`: {"fail, null or drop"},
		// What overlaps: both are named.
		`{"drop": ["a", "a.b"]}`: {`drop → "a"`, `drop → "a.b"`,
			"overlap"},
		`{"drop": ["a.b"], "mask": {"a": "null"}}`:                 {`drop → "a.b"`, `mask → "a"`},
		`{"mask": {"a": "null"}, "convert": {"a": {"to": "int"}}}`: {`mask → "a"`, `convert → "a"`},
		`{"rename": {"a": "b"}, "move": {"a": "c"}}`:               {`rename → "a"`, `move → "a"`},
		`{"rename": {"a": "b"}, "drop": ["a.c"]}`:                  {`rename → "a"`, `drop → "a.c"`},
		`{"drop": ["a"], "mask": {"a": "null"}}`:                   {`drop → "a"`, `mask → "a"`},
		`{"set": {"a": 1, "a.b": 2}}`: {`set → "a"`, `set → "a.b"`,
			"both write"},
		`{"set": {"a": 1}, "rename": {"x": "a"}}`:      {`set → "a"`, `rename → "x"`},
		`{"rename": {"x": "a", "y": "a"}}`:             {`rename → "x"`, `rename → "y"`},
		`{"move": {"x.y": "a"}, "from": {"a.b": "c"}}`: {`move → "x.y"`, `from → "a.b"`},
		`{"set": {"a": 1}, "mask": {"a": "null"}}`:     {`set → "a"`, `mask → "a"`},
		`{"set": {"a": 1}, "drop": ["a.b"]}`: {`set → "a"`, `drop → "a.b"`,
			"replaces"},
		`{"rename": {"b": "a"}, "mask": {"a.b": "null"}}`:                       {`rename → "b"`, `mask → "a.b"`},
		`{"keep": ["a", "a.b"]}`:                                                {`"a"`, `"a.b"`, "overlap"},
		`{"keep": ["a"], "mask": {"b": "null"}}`:                                {`mask → "b"`, "not kept"},
		`{"keep": ["a.b"], "mask": {"a": "null"}}`:                              {`mask → "a"`, "not kept"},
		`{"keep": ["a"], "set": {"a": 1}}`:                                      {`set → "a"`, `keep → "a"`},
		`{"set": {"a": {"$numberInt": "1"}}, "compute": {"a": "1"}, "drop":[]}`: {"empty"},
	} {
		var doc bson.Raw
		if err := bson.UnmarshalExtJSON([]byte(rules), false, &doc); err != nil {
			t.Fatal(rules, err)
		}
		_, err := Parse(doc, testSecrets)
		if err == nil {
			t.Errorf("%s is taken", rules)
			continue
		}
		for _, s := range says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %v, does not say %s", rules, err, s)
			}
		}
	}
	if _, err := Parse(bson.Raw{1, 2}, testSecrets); err == nil {
		t.Error("what is not a document is taken")
	}
}

// TestString: the text is canonical, and reads back as the same rules; no key is in it.
func TestString(t *testing.T) {
	rules := `{"mask": {"a": {"hmac": "env:KEY"}}, "set": {"z": 1, "y": {"$numberLong": "2"}}}`
	m := mustParse(t, rules)
	if again := mustParse(t, m.String()); again.String() != m.String() {
		t.Error(again.String(), m.String())
	}
	if !strings.Contains(m.String(), `"env:KEY"`) || strings.Contains(m.String(), testKey) ||
		!strings.Contains(m.String(), "numberInt") {
		t.Error(m.String())
	}
}
