package testseed

import (
	"io/fs"
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

// TestSeedsAreFixed: no test takes a seed from the clock, or none.
func TestSeedsAreFixed(t *testing.T) {
	clock := regexp.MustCompile(`uint64\(time\.Now\(\)\.Unix|NewPCG\([^)]*time\.Now`)
	unseeded := regexp.MustCompile(
		`(^|[^.\w])rand\.(ExpFloat64|Float\w+|Int\w*|N|NormFloat64|Perm|Shuffle|Uint\w+)(\[\w+\])?\(`)
	for _, dir := range []string{"cmd", "demo", "docs", "internal", "test", "workshop"} {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(name string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(name, "_test.go") || filepath.Base(name) == "testseed_test.go" {
				return err
			}
			text, err := os.ReadFile(name)
			for i, line := range strings.Split(string(text), "\n") {
				if clock.MatchString(line) || unseeded.MatchString(line) && strings.Contains(string(text), `"math/rand`) {
					t.Errorf("%s:%d: take the seed from package testseed: %s", name, i+1, strings.TrimSpace(line))
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
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
	for _, text := range []string{"", "a.TestX 1", "* 1 2", "* 1\na.TestX", "* 1\na.TestX one", "* 1\na.TestX 2 2",
		"* 1\na.TestX 2\na.TestX 3", "* 1\na.TestX -1"} {
		if lines, err := parse(text); err == nil {
			t.Errorf("%q: %v", text, lines)
		}
	}
}

// TestSeed: the file decides, and MILLRACE_TEST_SEED does where it is set.
func TestSeed(t *testing.T) {
	t.Setenv(variable, "")
	pkg, err := testedPackage()
	if err != nil || pkg != "test/testseed" {
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
