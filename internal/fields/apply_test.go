package fields

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/testseed"
)

func testMeta() Meta {
	return Meta{Namespace: "shop.orders", Operation: "insert", ClusterTime: bson.Timestamp{T: 7, I: 3}}
}

type applyCase struct{ rules, doc, want string }

var applyCases = []applyCase{
	{`{}`, `{"_id": 1, "a": 2}`, `{"_id": 1, "a": 2}`},
	{`{"drop": ["a", "b.c"]}`, `{"_id": 1, "a": 2, "b": {"c": 1, "d": 2}, "e": 3}`, `{"_id": 1, "b": {"d": 2}, "e": 3}`},
	{`{"drop": ["b.c"]}`, `{"b": [{"c": 1}, 2, [{"c": 1, "d": 1}]]}`, `{"b": [{}, 2, [{"d": 1}]]}`},
	{`{"drop": ["b.c"]}`, `{"b.c": 1, "b": 5}`, `{"b.c": 1, "b": 5}`},
	{`{"drop": ["a"]}`, `{"a": 1}`, `{}`},
	{`{"keep": ["a", "b.c"]}`, `{"_id": 1, "x": 1, "b": {"x": 1, "c": 2}, "a": 2}`, `{"_id": 1, "b": {"c": 2}, "a": 2}`},
	{`{"keep": ["b.c"]}`, `{"a": 1, "b": 5, "_id": 3}`, `{"_id": 3}`},
	{`{"keep": ["b.c"]}`, `{"_id": 3, "b": [1, {"c": 1, "d": 2}, [2, {"c": 3}]]}`,
		`{"_id": 3, "b": [{"c": 1}, [{"c": 3}]]}`},
	{`{"keep": ["_id"]}`, `{"_id": 3, "b": 1}`, `{"_id": 3}`},
	{`{"keep": ["a"], "mask": {"a.b": "null"}, "set": {"z": 1}}`, `{"_id": 3, "b": 1, "a": {"b": 1, "c": 2}}`,
		`{"_id": 3, "z": 1, "a": {"b": null, "c": 2}}`},
	{`{"rename": {"tel": "phone"}}`, `{"_id": 1, "tel": 2, "x": 3}`, `{"_id": 1, "phone": 2, "x": 3}`},
	{`{"rename": {"tel": "phone"}}`, `{"_id": 1, "phone": 1, "tel": 2, "x": 3}`, `{"_id": 1, "phone": 2, "x": 3}`},
	{`{"rename": {"tel": "phone"}}`, `{"_id": 1, "phone": 1, "x": 3}`, `{"_id": 1, "x": 3}`},
	{`{"rename": {"a": "b", "b": "a"}}`, `{"_id": 1, "a": 1, "b": 2}`, `{"_id": 1, "b": 1, "a": 2}`},
	{`{"rename": {"a": "b"}, "mask": {"a": {"last": 1}}}`, `{"a": "xyz"}`, `{"b": "**z"}`},
	{`{"move": {"c.mail": "mail"}}`, `{"_id": 1, "x": 1, "c": {"mail": "m", "d": 1}}`,
		`{"_id": 1, "mail": "m", "x": 1, "c": {"d": 1}}`},
	{`{"move": {"c.mail": "mail"}}`, `{"_id": 1, "mail": 5, "c": 1}`, `{"_id": 1, "c": 1}`},
	{`{"move": {"a": "b.c", "d": "b.e"}, "set": {"f": 1}}`, `{"_id": 1, "d": 2, "a": 1}`,
		`{"_id": 1, "b": {"c": 1, "e": 2}, "f": 1}`},
	{`{"move": {"a": "b.c"}}`, `{"_id": 1, "a": 1, "x": 2, "b": {"z": 1, "c": 5}}`,
		`{"_id": 1, "x": 2, "b": {"c": 1, "z": 1}}`},
	{`{"move": {"a": "b.c"}}`, `{"_id": 1, "a": 1, "b": null, "x": 2}`, `{"_id": 1, "b": {"c": 1}, "x": 2}`},
	{`{"move": {"a": "b.c"}}`, `{"_id": 1, "b": 5, "x": 2}`, `{"_id": 1, "b": 5, "x": 2}`},
	{`{"move": {"a": "b.c"}}`, `{"_id": 1, "b": [5, {"c": 1}], "x": 2}`, `{"_id": 1, "b": [5, {}], "x": 2}`},
	{`{"move": {"a": "a.b"}}`, `{"_id": 1, "x": 2, "a": {"y": 1}}`, `{"_id": 1, "a": {"b": {"y": 1}}, "x": 2}`},
	{`{"move": {"a": "b"}, "mask": {"a": "null"}}`, `{"_id": 1, "x": 2, "a": 1}`, `{"_id": 1, "b": null, "x": 2}`},
	{`{"set": {"t": {"x": 1}, "a": 2, "m.n.o": 3, "m.p": 4}}`, `{"_id": 1, "a": 1, "z": 1}`,
		`{"_id": 1, "t": {"x": 1}, "a": 2, "m": {"n": {"o": 3}, "p": 4}, "z": 1}`},
	{`{"set": {"m.n.o": 3, "m.p": 4}}`, `{"_id": 1, "z": 1, "m": {"q": 1, "n": {"r": 1}}}`,
		`{"_id": 1, "z": 1, "m": {"p": 4, "q": 1, "n": {"o": 3, "r": 1}}}`},
	{`{"set": {"m.n": 3}, "drop": ["m"]}`, `{"_id": 1, "z": 1, "m": 5}`, `{"_id": 1, "m": {"n": 3}, "z": 1}`},
	{`{"set": {"m.n": 3}, "keep": ["m.o"]}`, `{"_id": 1, "z": 1, "m": 5}`, `{"_id": 1, "m": {"n": 3}}`},
	{`{"set": {"m.n": 3}, "keep": ["a"]}`, `{"_id": 1, "a": 1, "m": {"z": 1}}`, `{"_id": 1, "m": {"n": 3}, "a": 1}`},
	{`{"set": {"m.n": 3}, "rename": {"m": "o"}}`, `{"_id": 1, "a": 1, "m": {"z": 1}}`,
		`{"_id": 1, "m": {"n": 3}, "a": 1, "o": {"z": 1}}`},
	{`{"from": {"o": "$namespace", "w": "$clusterTime", "p": "$operation", "t": "a.b", "i": "_id", "n": "x.y"}}`,
		`{"_id": 1, "a": {"b": 2}, "w": 1, "x": 1}`,
		`{"_id": 1, "o": "shop.orders", "w": {"$timestamp": {"t": 7, "i": 3}}, "p": "insert", "t": 2, "i": 1, "a": {"b": 2}, "x": 1}`},
	{`{"convert": {"a": {"to": "long"}, "b.c": {"to": "int", "otherwise": "drop"}}}`,
		`{"a": "5", "b": [{"c": "x"}, {"c": "7"}]}`, `{"a": {"$numberLong": "5"}, "b": [{}, {"c": 7}]}`},
	{`{"convert": {"a": {"to": "int", "otherwise": "keep"}, "b": {"to": "int", "otherwise": "null"}}}`,
		`{"a": "x", "b": "x"}`, `{"a": "x", "b": null}`},
	{`{"mask": {"a": {"last": 2}, "b": {"first": 2}, "c": {"last": 4}, "d": {"last": 1}}}`,
		`{"a": "äöüß", "b": "日本語", "c": "abcd", "d": 5}`,
		`{"a": "**üß", "b": "日本*", "c": "****", "d": null}`},
	{`{"mask": {"a": "null", "b": "month", "c": "year", "d": "day", "e": "day"}}`,
		`{"a": {"x": 1}, "b": {"$date": "2026-03-17T10:00:00Z"}, "c": {"$date": "2026-03-17T10:00:00Z"}, "d": {"$date": "1969-12-31T10:00:00Z"}, "e": "x"}`,
		`{"a": null, "b": {"$date": "2026-03-01T00:00:00Z"}, "c": {"$date": "2026-01-01T00:00:00Z"}, "d": {"$date": "1969-12-31T00:00:00Z"}, "e": null}`},
	{`{"compute": {"sum": "doc.price * double(doc.count)", "big": "doc.count > 2 ? 'many' : 'few'", "all": "doc.l + [1]"}}`, `{"_id": 1, "price": 1.5, "count": 3, "l": ["x"]}`,
		`{"_id": 1, "sum": 4.5, "big": "many", "all": ["x", {"$numberLong": "1"}], "price": 1.5, "count": 3, "l": ["x"]}`},
	{`{"compute": {"a": {"expr": "doc.x", "otherwise": "drop"}, "b": {"expr": "doc.x", "otherwise": "null"}, "c": "doc.o", "d": "doc.n", "e": "string(doc.o) + '!'", "f": "double(doc.n) + 1.0", "g": "doc.s", "h": "doc.s.map(k, k)"}}`,
		`{"_id": 1, "o": {"$oid": "0123456789abcdef01234567"}, "n": {"$numberDecimal": "1.50"}, "s": {"z": 1, "a": 2}}`,
		`{"_id": 1, "b": null, "c": {"$oid": "0123456789abcdef01234567"}, "d": {"$numberDecimal": "1.50"}, "e": "0123456789abcdef01234567!", "f": 2.5, "g": {"z": 1, "a": 2}, "h": ["z", "a"], "o": {"$oid": "0123456789abcdef01234567"}, "n": {"$numberDecimal": "1.50"}, "s": {"z": 1, "a": 2}}`},
	{`{"compute": {"m.a": "timestamp('2026-01-01T00:00:00Z')", "m.b": "doc.d + duration('1h')", "m.c": "b'ab'", "m.e": "doc.d < timestamp('2027-01-01T00:00:00Z')"}}`, `{"_id": 1, "d": {"$date": "2026-03-17T10:00:00Z"}}`,
		`{"_id": 1, "m": {"a": {"$date": "2026-01-01T00:00:00Z"}, "b": {"$date": "2026-03-17T11:00:00Z"}, "c": {"$binary": {"base64": "YWI=", "subType": "00"}}, "e": true}, "d": {"$date": "2026-03-17T10:00:00Z"}}`},
}

func TestApply(t *testing.T) {
	for _, c := range applyCases {
		got, err := mustParse(t, c.rules).Apply([]byte("ab"), parseDoc(t, c.doc), testMeta())
		if err != nil {
			t.Errorf("%s on %s: %v", c.rules, c.doc, err)
			continue
		}
		if want := parseDoc(t, c.want); !bytes.Equal(got[2:], want) {
			t.Errorf("%s on %s:\n%s\nwant %s", c.rules, c.doc, bson.Raw(got[2:]), want)
		}
	}
}

// TestMisfit: what has no place is told with the path and without the value.
func TestMisfit(t *testing.T) {
	for _, c := range []struct{ rules, doc, path, says string }{
		{`{"convert": {"a.b": {"to": "int"}}}`, `{"a": [{"b": "secret"}]}`, "a.b", "not a number"},
		{`{"convert": {"a": {"to": "objectId"}}}`, `{"a": 1}`, "a", "no conversion"},
		{`{"move": {"a.b": "c"}}`, `{"a": [{"b": "secret"}]}`, "a.b", "array"},
		{`{"from": {"c": "a.b"}}`, `{"a": []}`, "a.b", "array"},
		{`{"set": {"a.b": 1}}`, `{"a": "secret"}`, "a", "not a document"},
		{`{"set": {"a.b": 1}}`, `{"a": [{"b": 1}]}`, "a", "not a document"},
		{`{"compute": {"c": "doc.a + 1"}}`, `{"a": "secret"}`, "c", "types"},
		{`{"compute": {"c": "doc.b"}}`, `{"a": "secret"}`, "c", "missing"},
		{`{"compute": {"c": "int(doc.a)"}}`, `{"a": "secret"}`, "c", "cannot be computed"},
		{`{"compute": {"c": "doc.a / 0"}}`, `{"a": {"$numberLong": "5"}}`, "c", "zero"},
		{`{"compute": {"c": "9223372036854775808u"}}`, `{}`, "c", "out of range"},
		{`{"compute": {"c": "duration('1h')"}}`, `{}`, "c", "BSON has not"},
		{`{"compute": {"c": "doc.a.map(x, doc.a.map(y, doc.a.map(z, doc.a.map(w, x + y + z + w))))"}}`,
			`{"a": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23]}`, "c", "too many steps"},
	} {
		_, err := mustParse(t, c.rules).Apply(nil, parseDoc(t, c.doc), Meta{})
		var misfit *Misfit
		if !errors.As(err, &misfit) || misfit.Path != c.path || !strings.Contains(misfit.Why, c.says) ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("%s on %s: %v", c.rules, c.doc, err)
		}
	}
}

// TestKeyedSum: it is the HMAC of the standard library, of the type and the value.
func TestKeyedSum(t *testing.T) {
	for _, key := range []string{testKey, strings.Repeat("k", 64), strings.Repeat("long", 40)} {
		for _, v := range []value{{Type: bson.TypeString, Value: []byte("\x02\x00\x00\x00a\x00")},
			{Type: bson.TypeInt32, Value: []byte{1, 2, 3, 4}}, {Type: bson.TypeNull},
			{Type: bson.TypeBinary, Value: bytes.Repeat([]byte("x"), 1000)}} {
			sum := hmac.New(sha256.New, []byte(key))
			sum.Write([]byte{byte(v.Type)})
			sum.Write(v.Value)
			want := appendText([]byte("ab"), hex.EncodeToString(sum.Sum(nil)))
			if got := newKeyedSum([]byte(key)).append([]byte("ab"), v); !bytes.Equal(got, want) {
				t.Errorf("%q: %q, want %q", key, got, want)
			}
		}
	}
	got, err := mustParse(t, `{"mask": {"a": {"hmac": "env:KEY"}}}`).Apply(nil, parseDoc(t, `{"a": "x"}`), Meta{})
	if text := bson.Raw(got).Lookup("a").StringValue(); err != nil || len(text) != 64 {
		t.Error(text, err)
	}
}

// TestStars: of a text of any bytes as many characters are hidden as there are beyond
// those that are kept.
func TestStars(t *testing.T) {
	g := newGen(testseed.Of(t))
	for range 5000 {
		text := strings.Repeat(pick(g, "a", "ä", "日", "\xff", "\xe4\xb8", "😀", ""), g.IntN(50)) +
			pick(g, "x", "\x80", "é", "\xf0\x9f", "") + pick(g, "abcd", "日本語", "")
		runes := []rune(text)
		n := 1 + g.IntN(5)
		keep := n
		if len(runes) <= n {
			keep = 0
		}
		hidden := len(runes) - keep
		for kind, want := range map[ruleKind]string{
			maskFirst: string(runes[:keep]) + strings.Repeat("*", hidden),
			maskLast:  strings.Repeat("*", hidden) + string(runes[hidden:]),
		} {
			got, _ := (&valueRule{kind: kind, n: n}).stars(nil, value{Type: bson.TypeString, Value: appendText(nil, text)})
			if shown := string([]rune(string(value{Type: bson.TypeString, Value: got}.Text()))); shown != want {
				t.Fatalf("%q, %d: %q, want %q", text, n, shown, want)
			}
		}
	}
}

func TestVolatile(t *testing.T) {
	m := mustParse(t, `{"from": {"o": "$namespace", "w": "$clusterTime", "p": "$operation"}}`)
	if got := strings.Join(m.Volatile(), " "); got != "w p" {
		t.Error(got)
	}
	got, err := m.Strip([]byte("x"), parseDoc(t, `{"_id": 1, "o": "a", "w": 1, "p": 2, "z": {"w": 1}}`))
	if want := parseDoc(t, `{"_id": 1, "o": "a", "z": {"w": 1}}`); err != nil || !bytes.Equal(got[1:], want) {
		t.Error(got, err)
	}
	plain := mustParse(t, `{"drop": ["a"]}`)
	if got, _ := plain.Strip(nil, parseDoc(t, `{"a": 1}`)); len(plain.Volatile()) != 0 ||
		!bytes.Equal(got, parseDoc(t, `{"a": 1}`)) {
		t.Error(got)
	}
}

func TestTouchesPath(t *testing.T) {
	for _, c := range []struct {
		rules, yes, no string
	}{
		{`{"drop": ["a.b"]}`, "a a.b a.b.c", "b a.c _id ab"},
		{`{"rename": {"a": "b"}}`, "a b a.x b.x", "c"},
		{`{"keep": ["a.b"]}`, "a c a.c", "a.b a.b.c _id"},
		{`{"set": {"m.n": 1}}`, "m m.n m.n.o", "m.o n"},
		{`{"move": {"a.b": "c"}, "mask": {"d": "null"}}`, "a a.b c d", "a.c e"},
	} {
		m := mustParse(t, c.rules)
		for _, p := range strings.Fields(c.yes) {
			if !m.TouchesPath(p) {
				t.Errorf("%s: %s is not touched", c.rules, p)
			}
		}
		for _, p := range strings.Fields(c.no) {
			if m.TouchesPath(p) {
				t.Errorf("%s: %s is touched", c.rules, p)
			}
		}
	}
}
