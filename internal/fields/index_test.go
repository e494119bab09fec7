package fields

import (
	"bytes"
	"strings"
	"testing"
)

func TestIndex(t *testing.T) {
	for _, c := range []struct{ rules, spec, want, why string }{
		{`{"drop": ["x"]}`, `{"v": 2, "key": {"a": 1}, "name": "a_1", "unique": true}`, "same", ""},
		{`{"drop": ["x"]}`, `{"v": 2, "key": {"_id": 1}, "name": "_id_"}`, "same", ""},
		{`{"keep": ["x"]}`, `{"v": 2, "key": {"_id": 1}, "name": "_id_"}`, "same", ""},
		{`{"drop": ["x"]}`, `{"v": 2, "key": {"a": 1, "x": 1}, "name": "i"}`, "", `drop → "x"`},
		{`{"drop": ["x.y"]}`, `{"key": {"x": 1}, "name": "i"}`, "", `drop → "x.y"`},
		{`{"drop": ["x"]}`, `{"key": {"x.y": 1}, "name": "i"}`, "", `drop → "x"`},
		{`{"keep": ["x"]}`, `{"key": {"y": 1}, "name": "i"}`, "", "not kept"},
		{`{"keep": ["x.y"]}`, `{"key": {"x": 1}, "name": "i"}`, "", "not kept"},
		{`{"keep": ["x"]}`, `{"key": {"x.y": 1}, "name": "i"}`, "same", ""},
		{`{"rename": {"a": "b"}}`, `{"key": {"a": 1, "a.c": -1, "d": 1}, "name": "i", "unique": true}`,
			`{"key": {"b": 1, "b.c": -1, "d": 1}, "name": "i", "unique": true}`, ""},
		{`{"rename": {"a": "b"}}`, `{"key": {"b": 1}, "name": "i"}`, "", `replaced on the target: rename → "a"`},
		{`{"rename": {"a": "b", "b": "a"}}`, `{"key": {"b": 1, "a": 1}, "name": "i"}`,
			`{"key": {"a": 1, "b": 1}, "name": "i"}`, ""},
		{`{"rename": {"a": "b"}}`,
			`{"key": {"c": 1}, "name": "i", "partialFilterExpression": {"a.x": {"$gt": 5}, "$and": [{"a": 1}, {"c": 2}]}}`,
			`{"key": {"c": 1}, "name": "i", "partialFilterExpression": {"b.x": {"$gt": 5}, "$and": [{"b": 1}, {"c": 2}]}}`, ""},
		{`{"drop": ["a"]}`, `{"key": {"c": 1}, "name": "i", "partialFilterExpression": {"$or": [{"a": 1}]}}`,
			"", "partialFilterExpression"},
		{`{"drop": ["a"]}`, `{"key": {"c": 1}, "name": "i", "partialFilterExpression": {"$expr": true}}`, "", "$expr"},
		{`{"mask": {"a": {"hmac": "env:KEY"}}}`, `{"key": {"a": 1, "b": 1}, "name": "i", "unique": true}`, "same", ""},
		{`{"mask": {"a": {"hmac": "env:KEY"}}, "rename": {"a": "h"}}`, `{"key": {"a": "hashed"}, "name": "i"}`,
			`{"key": {"h": "hashed"}, "name": "i"}`, ""},
		{`{"mask": {"a": {"hmac": "env:KEY"}}}`, `{"key": {"a": 1}, "name": "i", "expireAfterSeconds": 5}`, "", "masked"},
		{`{"mask": {"a": {"hmac": "env:KEY"}}}`, `{"key": {"a": "2dsphere"}, "name": "i"}`, "", "masked"},
		{`{"mask": {"a": {"hmac": "env:KEY"}}}`, `{"key": {"a.b": 1}, "name": "i"}`, "", `mask → "a"`},
		{`{"mask": {"a": {"hmac": "env:KEY"}}}`, `{"key": {"b": 1}, "name": "i", "partialFilterExpression": {"a": "x"}}`,
			"", "masked"},
		{`{"mask": {"a": {"last": 4}}}`, `{"key": {"a": 1}, "name": "i", "unique": true}`, "", `mask → "a"`},
		{`{"mask": {"a": "month"}}`, `{"key": {"a": 1}, "name": "i"}`, "", `mask → "a"`},
		{`{"set": {"a": 1}}`, `{"key": {"a": 1}, "name": "i"}`, "", `set → "a"`},
		{`{"move": {"a": "b.c"}}`, `{"key": {"b": 1}, "name": "i"}`, "", `move → "a"`},
		{`{"drop": ["a"]}`, `{"key": {"_fts": "text", "_ftsx": 1}, "weights": {"a": 1}, "name": "i"}`, "", "weights"},
		{`{"drop": ["a"]}`,
			`{"key": {"_fts": "text", "_ftsx": 1}, "weights": {"b": 1}, "name": "i", "language_override": "language"}`,
			"same", ""},
		{`{"drop": ["language"]}`,
			`{"key": {"_fts": "text", "_ftsx": 1}, "weights": {"b": 1}, "name": "i", "language_override": "language"}`,
			"", "language"},
		{`{"drop": ["a"]}`, `{"key": {"$**": 1}, "name": "i"}`, "same", ""},
		{`{"drop": ["a"]}`, `{"key": {"$**": 1}, "name": "i", "wildcardProjection": {"a": 0}}`, "", "wildcardProjection"},
		{`{"rename": {"a": "b"}}`, `{"key": {"a.$**": 1}, "name": "i"}`, `{"key": {"b.$**": 1}, "name": "i"}`, ""},
		{`{"drop": ["a"]}`, `{"key": {"a.$**": 1}, "name": "i"}`, "", `drop → "a"`},
	} {
		spec := parseDoc(t, c.spec)
		got, why := mustParse(t, c.rules).Index(spec)
		want := spec
		if c.want != "same" {
			want = nil
			if c.want != "" {
				want = parseDoc(t, c.want)
			}
		}
		if !bytes.Equal(got, want) || !strings.Contains(why, c.why) || (why == "") != (c.why == "") {
			t.Errorf("%s, %s: %s %q", c.rules, c.spec, got, why)
		}
	}
}
