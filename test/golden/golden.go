// Package golden compares long outputs of tests with files. It is for tests
// only, and knows nothing of what it compares.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

//nolint:gochecknoglobals // go test parses flags before a test can register one
var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// Equal compares got with the file of that name in testdata. With -update it
// writes the file.
func Equal(t testing.TB, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; make it with -update", err)
	}
	if want := string(raw); want != got {
		line, w, g := firstDifference(want, got)
		t.Errorf("%s differs in line %d:\nwant %s\ngot  %s\nif the change is meant, run the test with -update", path, line, w,
			g)
	}
}

// Updating reports whether the test runs with -update.
func Updating() bool { return *update }

// firstDifference gives the first lines that differ, and their number from 1.
func firstDifference(want, got string) (line int, w, g string) {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i + 1, a[i], b[i]
		}
	}
	n := min(len(a), len(b))
	return n + 1, strings.Join(a[n:], "\n"), strings.Join(b[n:], "\n")
}
