//go:build failpoint

package failpoint

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRules(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules")
	write := func(s string) {
		t.Helper()
		next := file + ".next"
		if err := os.WriteFile(next, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, file); err != nil {
			t.Fatal(err)
		}
	}
	write("a:2=error; b/x=error ;c:2+=error")
	t.Setenv("MILLRACE_FAILPOINTS", "@"+file)
	var p points
	failed := func(point, what string) bool { return p.hit(point, what) != nil }
	for i, want := range []bool{false, true, false} {
		if got := failed("a", ""); got != want {
			t.Errorf("hit %d of a: %t", i+1, got)
		}
	}
	if failed("b", "y") || !failed("b", "x") {
		t.Error("b/x is not told from b/y")
	}
	for i, want := range []bool{false, true, true} {
		if got := failed("c", ""); got != want {
			t.Errorf("hit %d of c: %t", i+1, got)
		}
	}
	write("*:2=error")
	if failed("a", "") || !failed("b", "") || failed("c", "") {
		t.Error("the second hit of all is not the one that fails")
	}
	for _, bad := range []string{"a", "a=", "a:x=kill", "a:0=kill", "a=sleep:long", "a=die"} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
