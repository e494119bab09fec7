package testseed

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestFile: each line is of a test that exists.
func TestFile(t *testing.T) {
	lines, err := parse(file)
	if err != nil {
		t.Fatal(err)
	}
	for name := range lines {
		if name == everyTest {
			continue
		}
		pkg, test, _ := strings.Cut(name, ".")
		test, _, _ = strings.Cut(test, "/")
		sources, err := filepath.Glob(filepath.Join("..", "..", pkg, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		is := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(test) + `\(t \*testing\.T\)`)
		if !slices.ContainsFunc(sources, func(source string) bool {
			text, err := os.ReadFile(source)
			return err == nil && is.Match(text)
		}) {
			t.Errorf("%s: there is no such test", name)
		}
	}
}

func TestFind(t *testing.T) {
	lines, err := parse("# a comment\n*  1\n\na/b.TestX 2 3\na/b.TestX/6.0/one 4\n")
	if err != nil {
		t.Fatal(err)
	}
	for test, want := range map[string][]uint64{
		"a/b.TestX": {2, 3}, "a/b.TestX/6.0": {2, 3}, "a/b.TestX/6.0/one": {4}, "a/b.TestX/6.0/one/more": {4},
		"a/b.TestY": {1}, "a/c.TestX": {1}, "b.TestX/6.0/one": {1}, "a/b.TestXY/z": {1},
	} {
		if got := find(lines, test); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", test, got, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{"", "a.TestX 1", "* 1 2", "* 1\na.TestX", "* 1\na.TestX one", "* 1\na.TestX 2 2", "* 1\na.TestX 2\na.TestX 3", "* 1\na.TestX -1"} {
		if lines, err := parse(text); err == nil {
			t.Errorf("%q: %v", text, lines)
		}
	}
}

// TestSeed: the file decides, and MILLRACE_TEST_SEED does where it is set.
func TestSeed(t *testing.T) {
	t.Setenv(variable, "")
	pkg, err := testedPackage()
	if err != nil || pkg != "internal/testseed" {
		t.Fatalf("the package is %q, %v", pkg, err)
	}
	lines, err := parse(file)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := Of(t), lines[everyTest][0]; got != want {
		t.Errorf("seed %d, the file has %d", got, want)
	}
	t.Setenv(variable, "18446744073709551615")
	var played []uint64
	Each(t, func(_ *testing.T, seed uint64) { played = append(played, seed) })
	if got := Of(t); got != 1<<64-1 || !slices.Equal(played, []uint64{got}) {
		t.Errorf("seeds %d, %d", got, played)
	}
}
