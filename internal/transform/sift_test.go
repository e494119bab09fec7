package transform

import (
	"bytes"
	"testing"
)

func TestFilterRules(t *testing.T) {
	for text, want := range map[string]string{
		`shop.orders={"status":"open"}`:            `shop.orders={"status":"open"}`,
		`shop={"a":{"$gt":5},"b":";x\\;"}`:         `shop.*={"a":{"$gt":{"$numberInt":"5"}},"b":"\u003bx\\\u003b"}`,
		`a\=b.c={"x":null}`:                        `a\=b.c={"x":null}`,
		`a.*={"$or":[{"b":1.0},{"b":{"$in":[]}}]}`: `a.*={"$or":[{"b":{"$numberDouble":"1.0"}},{"b":{"$in":[]}}]}`,
	} {
		s, err := New(Config{Filter: []string{text}})
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := s.String(); got != "filter "+want {
			t.Errorf("%s is written as %s", text, got)
		}
		again, err := Parse(s.String())
		if err != nil || again.String() != s.String() || again.Hash() != s.Hash() {
			t.Errorf("%s is read as %v, %v", s, again, err)
		}
	}
	for text, want := range map[string]string{
		`shop.orders`:                            "the =",
		`shop.orders={status}`:                   "JSON",
		`={"a":1}`:                               "database",
		`shop.orders={"$where":"1"}`:             "$where",
		`shop.orders={"a":{"$foo":1}}`:           "$foo",
		`shop.orders={"a":{"$regex":"(?<=a)b"}}`: "regex",
	} {
		if _, err := New(Config{Filter: []string{text}}); err == nil || !bytes.Contains([]byte(err.Error()), []byte(want)) {
			t.Errorf("%s: %v, want something of %q", text, err, want)
		}
	}
	s := mustNew(t, Config{Filter: []string{`a.b={"x":1}`, `a.*={"x":2}`}})
	for ns, want := range map[string]string{"a.b": `{"x": {"$numberInt":"1"}}`, "a.c": `{"x": {"$numberInt":"2"}}`,
		"b.b": "", "a.system.buckets.b": ""} {
		got := ""
		if q := s.Route(ns).Filter; q != nil {
			got = q.Raw().String()
		}
		if got != want {
			t.Errorf("%s is filtered by %q, want %q", ns, got, want)
		}
	}
	if s.Route("a.b").SameDocuments(s.Route("a.c")) || !s.Route("a.c").SameDocuments(s.Route("a.d")) ||
		!s.Route("b.b").SameDocuments(s.Route("c.c")) {
		t.Error("which namespaces have the same filter")
	}
	s = mustNew(t, Config{SoftDelete: []string{`a.b=x`, `a.c=x`, `a.d=y`},
		Skip: []string{`b.b=delete`, `b.c=delete,collMod`, `b.d=delete,insert`, `b.e=ttl`}})
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"a.b", "a.c", true}, {"a.b", "a.d", false}, {"a.b", "c.c", false}, {"c.c", "a.b", true},
		{"b.b", "b.c", true}, {"b.c", "b.b", true}, {"b.b", "b.d", true}, {"b.d", "b.b", false}, {"b.b", "c.c", false},
		{"c.c", "b.b", true},
		{"b.e", "b.b", true}, {"b.b", "b.e", false}, {"b.e", "c.c", false}, {"c.c", "b.e", true},
	} {
		if got := s.Route(c.a).SameDocuments(s.Route(c.b)); got != c.want {
			t.Errorf("a rename of %s to %s keeps what is there: %v", c.a, c.b, got)
		}
	}
}
