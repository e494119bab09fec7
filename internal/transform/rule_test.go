package transform

import (
	"strings"
	"testing"
)

func mustNew(t *testing.T, c Config) *Set {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMatch(t *testing.T) {
	cases := []struct {
		name       string
		c          Config
		keep, drop []string
	}{
		{"everything", Config{}, []string{"a.b", "a.b.c", "a.system.js", "a.system.buckets.x", "a.fs.files"},
			[]string{"admin.x", "local.x", "config.x", "millrace.x", "a.system.views", "a.system.profile", "a.$cmd", "a.",
				"a", "", "a.system.buckets."}},
		{"one database", Config{Include: []string{"a"}}, []string{"a.b", "a.c.d", "a.system.buckets.x"},
			[]string{"ab.c", "b.a"}},
		{"one collection", Config{Include: []string{"a.b"}}, []string{"a.b", "a.system.buckets.b"},
			[]string{"a.bc", "a.b.c", "a.system.js", "a.tmp123.renameCollection"}},
		{"star", Config{Include: []string{"a.*"}}, []string{"a.b", "a.b.c"}, []string{"b.b"}},
		{"globs in both parts", Config{Include: []string{"t?st.or*s"}}, []string{"test.orders", "tast.ors", "test.or.x.s"},
			[]string{"tst.orders", "test.order", "teest.orders"}},
		{"exclude wins", Config{Include: []string{"a.*"}, Exclude: []string{"*.tmp*"}}, []string{"a.b"},
			[]string{"a.tmp", "a.tmp.x"}},
		{"several", Config{Include: []string{"a.x", "b"}}, []string{"a.x", "b.z"}, []string{"a.y"}},
		{"escaped", Config{Include: []string{`a.x\*`}}, []string{"a.x*"}, []string{"a.xy"}},
		{"unicode", Config{Include: []string{"a.?b"}}, []string{"a.äb", "a.xb"}, []string{"a.b", "a.xxb"}},
		{"system.js by name", Config{Exclude: []string{"a.system.js"}}, []string{"a.b"}, []string{"a.system.js"}},
		{"everything of a database out", Config{Exclude: []string{"a"}}, []string{"b.b"}, []string{"a.b"}},
		{"internal never", Config{Include: []string{"*", "admin.*"}}, []string{"b.b"}, []string{"admin.b", "config.b"}},
	}
	for _, c := range cases {
		s := mustNew(t, c.c)
		for _, ns := range c.keep {
			if !s.Match(ns) {
				t.Errorf("%s: %s is not kept", c.name, ns)
			}
		}
		for _, ns := range c.drop {
			if s.Match(ns) {
				t.Errorf("%s: %s is kept", c.name, ns)
			}
		}
	}
}

func TestZeroAndNil(t *testing.T) {
	var none *Set
	for _, s := range []*Set{none, {}} {
		if !s.Match("a.b") || s.Match("admin.b") || !s.MatchDB("a") || s.MatchDB("local") {
			t.Error("zero set does not keep everything but the internal databases")
		}
		if s.Target("a.b") != "a.b" || s.Renames() {
			t.Error("zero set renames")
		}
		if ns, ok := s.Source("a.b"); !ok || ns != "a.b" {
			t.Error("zero set has no inverse")
		}
		if s.Collisions([]string{"a.b", "c.d"}) != nil || s.Hash() != mustNew(t, Config{}).Hash() {
			t.Error("zero set differs from empty rules")
		}
	}
}

func TestMatchDB(t *testing.T) {
	s := mustNew(t, Config{Include: []string{"a.b", "c*"}, Exclude: []string{"cx", "cy.z"}})
	for db, want := range map[string]bool{"a": true, "b": false, "cc": true, "cx": false, "cy": true, "admin": false,
		"": false} {
		if s.MatchDB(db) != want {
			t.Errorf("MatchDB(%q) = %v", db, !want)
		}
	}
}

func TestRename(t *testing.T) {
	s := mustNew(t, Config{Exclude: []string{"old.secret"},
		Rename: []string{"shop=store", "shop.orders=archive.orders2", "old=new", `we.i\=rd=we.\*`}})
	for ns, want := range map[string]string{
		"shop.a": "store.a", "shop.a.b": "store.a.b", "shop.orders": "archive.orders2", "other.x": "other.x",
		"we.i=rd":               "we.*",
		"shop.system.buckets.a": "store.system.buckets.a", "shop.system.buckets.orders": "archive.system.buckets.orders2",
	} {
		if got := s.Target(ns); got != want {
			t.Errorf("Target(%s) = %s, want %s", ns, got, want)
		}
		if got, ok := s.Source(want); !ok || got != ns {
			t.Errorf("Source(%s) = %s, %v, want %s", want, got, ok, ns)
		}
	}
	for _, ns := range []string{"shop.a", "old.x", "we.i=rd"} {
		if got, ok := s.Source(ns); ok {
			t.Errorf("Source(%s) = %s, want none", ns, got)
		}
	}
}

func TestMatchTargetDB(t *testing.T) {
	s := mustNew(t, Config{Include: []string{"shop*", "crm.*", "log.a"}, Exclude: []string{"shop_old"},
		Rename: []string{"shop=store", "crm.people=hr.staff", "other=elsewhere", "log.b=logs.b"}})
	for db, want := range map[string]bool{
		"store": true, "hr": true, "crm": true, "shop2": true, "log": true, // by their own names, or renamed
		"shop": false, "shop_old": false, "elsewhere": false, "other": false, "logs": false, "x": false, "admin": false,
		"millrace": false, "": false,
	} {
		if got := s.MatchTargetDB(db); got != want {
			t.Errorf("MatchTargetDB(%q) = %v", db, got)
		}
	}
	if all := (*Set)(nil); !all.MatchTargetDB("x") || all.MatchTargetDB("local") {
		t.Error("nil keeps all but internal databases")
	}
}

func TestSwap(t *testing.T) {
	s := mustNew(t, Config{Rename: []string{"a=b", "b=a"}})
	if s.Target("a.x") != "b.x" || s.Target("b.x") != "a.x" {
		t.Error("swap of two databases")
	}
	if ns, ok := s.Source("a.x"); !ok || ns != "b.x" {
		t.Errorf("Source = %s", ns)
	}
	if err := s.Collisions([]string{"a.x", "b.x"}); err != nil {
		t.Error(err)
	}
}

func TestErrors(t *testing.T) {
	largeFilter := func(ns string) string { return ns + `={"x": {"$regex": "` + strings.Repeat(".{1000}", 120) + `"}}` }
	for _, c := range []struct {
		c    Config
		want string
	}{
		{Config{Include: []string{""}}, "database is missing"},
		{Config{Include: []string{".x"}}, "database is missing"},
		{Config{Exclude: []string{"x."}}, `exclude pattern "x."`},
		{Config{Include: []string{`x\`}}, "backslash"},
		{Config{Rename: []string{"a"}}, "= is missing"},
		{Config{Rename: []string{"a=b.c"}}, "one side"},
		{Config{Rename: []string{"a=b=c"}}, "more than one ="},
		{Config{Rename: []string{"a=admin"}}, "internal"},
		{Config{Rename: []string{"a=millrace"}}, "internal"},
		{Config{Rename: []string{"a*=b"}}, "wildcards"},
		{Config{Rename: []string{"a=b", "a=c"}}, "already"},
		{Config{Rename: []string{"a=b c"}}, "space"},
		{Config{Rename: []string{"a.b=a.system.x"}}, "system."},
		{Config{Rename: []string{"a=" + strings.Repeat("x", 64)}}, "at most 63"},
		{Config{Filter: []string{largeFilter("a.b"), largeFilter("a.c")}}, "too large together"},
	} {
		_, err := New(c.c)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q in it", c.c, err, c.want)
		}
	}
}

func TestCollisions(t *testing.T) {
	s := mustNew(t, Config{Exclude: []string{"a.out"}, Rename: []string{"a=c", "Up=low"}})
	for _, c := range []struct {
		nss  []string
		want string
	}{
		{[]string{"a.x", "c.x"}, "a.x and c.x would both become c.x"},
		{[]string{"a.x", "c.y"}, ""},
		{[]string{"a.out", "c.out"}, ""},
		{[]string{"Up.x", "Low.y"}, "differ in case alone"},
		{[]string{"a." + strings.Repeat("x", 300)}, "more than 255"},
	} {
		err := s.Collisions(c.nss)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v: %v, want %q", c.nss, err, c.want)
		}
	}
}

func TestHash(t *testing.T) {
	a := mustNew(t, Config{Include: []string{"b", "a.*", "a"}, Rename: []string{"x=y", "p.q=r.s"}})
	b := mustNew(t, Config{Include: []string{"a", "b.*"}, Rename: []string{"p.q=r.s", "x=y"}})
	if a.String() != b.String() || a.Hash() != b.Hash() {
		t.Errorf("equal rules differ: %s / %s", a, b)
	}
	if c := mustNew(t, Config{Exclude: []string{"a", "b"}}); c.Hash() == a.Hash() || len(c.Hash()) != 16 {
		t.Error("different rules have one hash")
	}
}

func TestMatchAllocates(t *testing.T) {
	s := mustNew(t, Config{Include: []string{"a.b*", "c.d?"}, Exclude: []string{"*.tmp*"}})
	if n := testing.AllocsPerRun(100, func() { s.Match("c.dx"); s.Match("q.w") }); n > 0 {
		t.Errorf("Match allocates %v times", n)
	}
}

// matchSlow is the obvious recursion over a pattern that the glob is held against.
func matchSlow(g, s []rune) bool {
	switch {
	case len(g) == 0:
		return len(s) == 0
	case g[0] == '*':
		return matchSlow(g[1:], s) || len(s) > 0 && matchSlow(g, s[1:])
	case g[0] == '?':
		return len(s) > 0 && matchSlow(g[1:], s[1:])
	case g[0] == '\\':
		g = g[1:]
	}
	return len(s) > 0 && g[0] == s[0] && matchSlow(g[1:], s[1:])
}

func FuzzPattern(f *testing.F) {
	for _, seed := range [][2]string{{"a.b", "a.b"}, {"a*b?c.*x*", "axxbyc.zxz"}, {`a.\*`, "a.*"}, {"*.*", "db.c.d"},
		{"**?a.b", "xa.b"}, {"ä?.ö*", "äx.öy"}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, text, ns string) {
		p, err := compile(text)
		if err != nil || len(text) > 24 || len(ns) > 24 || strings.ToValidUTF8(ns, "") != ns {
			return
		}
		db, coll, _ := strings.Cut(ns, ".")
		ofDB, ofColl, dotted := strings.Cut(text, ".")
		if !dotted {
			ofColl = "*"
		}
		for g, s := range map[struct {
			glob *glob
			of   string
		}]string{{&p.db, ofDB}: db, {&p.coll, ofColl}: coll} {
			if want := matchSlow([]rune(g.of), []rune(s)); g.glob.matches(s) != want {
				t.Fatalf("pattern %q on %q: %v, want %v", g.of, s, !want, want)
			}
		}
		// The canonical text means the same.
		again, err := compile(p.String())
		if err != nil {
			t.Fatalf("canonical %q of %q: %v", p, text, err)
		}
		if again.String() != p.String() || again.db.matches(db) != p.db.matches(db) ||
			again.coll.matches(coll) != p.coll.matches(coll) {
			t.Fatalf("canonical %q of %q means something else", p, text)
		}
	})
}
