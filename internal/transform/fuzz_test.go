package transform

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/mongo"
)

// FuzzRename: what is accepted are two names that a server accepts, which map
// into each other and back and are written so that they are read as the same.
func FuzzRename(f *testing.F) {
	for _, s := range []string{"a=b", "a.b=c.d", `a\==b`, `a\\=b`, "a=b=c", "a=", "=", "a.b=c", "a=admin",
		"a.system.x=b.c", "a.*=b.*", "ü=ö", "a\xff=b", `a\`, "x.a;b=y.c d"} {
		f.Add(s, "db.coll")
	}
	f.Fuzz(func(t *testing.T, text, ns string) {
		s, err := New(Config{Rename: []string{text}})
		if err != nil {
			if !strings.Contains(err.Error(), "rename") {
				t.Errorf("%q: the error does not name the rule: %v", text, err)
			}
			return
		}
		from, to, err := SplitRename(text)
		if err != nil || !utf8.ValidString(from+to) || !utf8.ValidString(text) {
			t.Fatalf("%q: %q to %q, %v", text, from, to, err)
		}
		canonical := Literal(from) + "=" + Literal(to)
		again, err := New(Config{Rename: []string{canonical}})
		if err != nil || again.String() != s.String() || again.Hash() != s.Hash() {
			t.Errorf("%q is written as %q, which is %v, %v", text, canonical, again, err)
		}
		for _, ns := range []string{ns, from, from + ".x", to, to + ".x"} {
			target := s.Target(ns)
			if back, ok := s.Source(target); ok && s.Target(back) != target {
				t.Errorf("%q: %q becomes %q, which comes from %q", text, ns, target, back)
			}
			if db, _ := mongo.SplitNS(ns); s.Match(ns) && !s.MatchDB(db) {
				t.Errorf("%q: %q is kept, its database is not", text, ns)
			}
			if db, _ := mongo.SplitNS(target); s.Match(ns) && !s.MatchTargetDB(db) {
				t.Errorf("%q: %q becomes %q, whose database is not expected", text, ns, target)
			}
		}
		_ = s.Collisions([]string{ns, from, to})
	})
}
