package transform

import (
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/test/testseed"
)

func mustSet(t *testing.T, c Config) *Set {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatalf("%+v: %v", c, err)
	}
	return s
}

func TestOverlap(t *testing.T) {
	in := func(p ...string) Config { return Config{Include: p} }
	out := func(p ...string) Config { return Config{Exclude: p} }
	for _, c := range []struct {
		a, b Config
		want string // "" for none
	}{
		{Config{}, Config{}, "*.*"},
		{Config{}, in("shop"), "shop.*"},
		{in("shop.*"), in("crm.*"), ""},
		{in("shop.orders"), in("shop.people"), ""},
		{in("shop.o*"), in("shop.*s"), "shop.*s"},
		{in("shop.o*"), in("shop.p?"), ""},
		{in("shop.??"), in("shop.a*b"), "shop.??"},
		{in("shop.?"), in("shop.a*b"), ""},
		// A big collection in a job of its own, and a database.
		{out("shop.big"), in("shop.big"), ""},
		{out("shop.*"), in("shop.big*"), ""},
		{out("shop.big"), in("shop.big*"), "shop.big*"},
		{in("sh*.o*"), out("sh*.*"), ""},
		// Renames lead elsewhere, or to the same place.
		{Config{Rename: []string{"shop=store"}}, in("shop.*"), ""},
		{Config{Rename: []string{"shop=store"}}, in("store.x"), "store.x"},
		{Config{Include: []string{"shop.*"}, Rename: []string{"shop=store"}},
			Config{Include: []string{"crm.*"}, Rename: []string{"crm=store"}}, "store.*"},
		{Config{Include: []string{"shop.*"}, Exclude: []string{"shop.x"}, Rename: []string{"shop=store"}}, in("store.x"), ""},
		{Config{Include: []string{"shop.*"}, Rename: []string{"shop.x=crm.y"}}, in("crm.*"), "crm.y"},
		{Config{Include: []string{"shop.*"}, Rename: []string{"shop.x=crm.y"}}, in("shop.x"), ""},
		{Config{Include: []string{"shop.*"}, Rename: []string{"shop=store", "shop.x=crm.y"}}, in("store.x"), ""},
		{Config{Include: []string{"shop.z"}, Rename: []string{"shop.x=crm.y"}}, in("crm.*"), ""},
		{in(`shop.a\*`), in("shop.ab"), ""},
		{in(`shop.a\*`), in("shop.a*"), `shop.a\*`},
	} {
		a, b := mustSet(t, c.a), mustSet(t, c.b)
		for _, pair := range [][2]*Set{{a, b}, {b, a}} {
			if got, found := Overlap(pair[0], pair[1]); got != c.want || found != (c.want != "") {
				t.Errorf("%s and %s: %q %v, want %q", pair[0], pair[1], got, found, c.want)
			}
		}
	}
	if _, found := Overlap(nil, nil); !found {
		t.Error("no rules keep everything")
	}
}

// TestOverlapMissesNothing: whatever two sets of random rules both lead to, they
// are said to overlap; and what is written of them is read again as the same.
func TestOverlapMissesNothing(t *testing.T) { testseed.Each(t, overlaps) }

func overlaps(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	name := func(runes string) string {
		out := ""
		for range 1 + r.IntN(3) {
			out += string(runes[r.IntN(len(runes))])
		}
		return out
	}
	draw := func() *Set {
		for {
			var c Config
			for range r.IntN(3) {
				c.Include = append(c.Include, name("ab*?")+"."+name("ab*?;"))
			}
			for range r.IntN(3) {
				c.Exclude = append(c.Exclude, name("ab*?")+"."+name("ab*?"))
			}
			for range r.IntN(3) {
				c.Rename = append(c.Rename, name("ab")+"="+name("ab"), name("ab")+"."+name("ab")+"="+name("ab")+"."+name("ab"))
			}
			if s, err := New(c); err == nil {
				return s
			}
		}
	}
	var words []string
	for _, w := range []string{"a", "b"} {
		words = append(words, w)
		for _, x := range []string{"a", "b"} {
			words = append(words, w+x, w+x+"a", w+x+"b")
		}
	}
	for range 500 {
		a, b := draw(), draw()
		for _, s := range []*Set{a, b} {
			if again, err := Parse(s.String()); err != nil || again.String() != s.String() {
				t.Fatalf("%s: %v, %v", s, again, err)
			}
		}
		_, found := Overlap(a, b)
		meet := ""
		for _, db := range words {
			for _, coll := range words {
				if ns := db + "." + coll; len(a.Sources(ns)) > 0 && len(b.Sources(ns)) > 0 {
					meet = ns
				}
			}
		}
		if meet != "" && !found {
			t.Fatalf("%s and %s both lead to %s", a, b, meet)
		}
	}
}

// TestParseForeign: rules in a form that is not String's are no rules.
func TestParseForeign(t *testing.T) {
	for _, text := range []string{"", "r", "include a", "include a.b;c.d", "include a.b;", "; include a.b",
		"include b.*; include a.*", "include a.*; merge b.*", "include a\\"} {
		if s, err := Parse(text); err == nil {
			t.Errorf("%q is read as %s", text, s)
		}
	}
}
