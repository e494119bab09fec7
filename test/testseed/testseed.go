// Package testseed gives random tests their seeds. Every random choice of a test follows from
// one, so the same command runs the same test on every machine and day. It is for tests only.
package testseed

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
)

//go:embed seeds
var file string //nolint:gochecknoglobals // that is how files are embedded

// variable is set by make hunt, make soak and make nightly, and by people who repeat a test.
const variable = "MILLRACE_TEST_SEED"

// everyTest is the name of the line for tests that have none.
const everyTest = "*"

// Of returns the seed of a test that plays one: MILLRACE_TEST_SEED, or the seed in the file.
// It fails the test if the file lists several, which need [Each].
func Of(t testing.TB) uint64 {
	t.Helper()
	seeds := All(t)
	if len(seeds) != 1 {
		t.Fatalf("the file seeds lists %d seeds for %s, which plays one: use testseed.Each", len(seeds), t.Name())
	}
	t.Logf("%s=%d", variable, seeds[0])
	return seeds[0]
}

// Each plays a test with MILLRACE_TEST_SEED, or with each seed in the file: several seeds as
// subtests with their numbers as names.
func Each(t *testing.T, play func(t *testing.T, seed uint64)) {
	t.Helper()
	seeds := All(t)
	if len(seeds) == 1 {
		t.Logf("%s=%d", variable, seeds[0])
		play(t, seeds[0])
		return
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Logf("%s=%d", variable, seed)
			play(t, seed)
		})
	}
}

// Rounds returns MILLRACE_TEST_ROUNDS, or usual if that is not set.
func Rounds(t testing.TB, usual int) int {
	t.Helper()
	text := os.Getenv("MILLRACE_TEST_ROUNDS")
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("MILLRACE_TEST_ROUNDS: %v", err)
	}
	return n
}

// Set has a test and its subtests play a seed, as a round of a soak does.
func Set(t *testing.T, seed uint64) {
	t.Helper()
	t.Setenv(variable, strconv.FormatUint(seed, 10))
}

// All returns the seeds that a test plays: MILLRACE_TEST_SEED, or those in the file. The test
// logs them.
func All(t testing.TB) []uint64 {
	t.Helper()
	if text := os.Getenv(variable); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", variable, err)
		}
		return []uint64{seed}
	}
	lines, err := parse(file)
	if err != nil {
		t.Fatal(err)
	}
	pkg, err := testedPackage()
	if err != nil {
		t.Fatal(err)
	}
	return find(lines, pkg+"."+t.Name())
}

// testedPackage returns the path of the package under test, below the module.
func testedPackage() (string, error) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", errors.New("the test has no build information: run it with go test")
	}
	return strings.TrimPrefix(strings.TrimSuffix(info.Path, ".test"), info.Main.Path+"/"), nil
}

// find returns the seeds of the line with a test's name, or the name of what it is part of.
func find(lines map[string][]uint64, test string) []uint64 {
	pkg := strings.LastIndex(test[:strings.Index(test, ".")], "/") + 1
	for {
		if seeds := lines[test]; seeds != nil {
			return seeds
		}
		i := strings.LastIndex(test, "/")
		if i < pkg {
			return lines[everyTest]
		}
		test = test[:i]
	}
}

// parse reads the file: the seeds by the names of tests.
func parse(text string) (map[string][]uint64, error) {
	lines := map[string][]uint64{}
	for i, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		refuse := func(why string) (map[string][]uint64, error) {
			return nil, fmt.Errorf("line %d of the file seeds: %s: %q", i+1, why, line)
		}
		name := words[0]
		if lines[name] != nil || len(words) == 1 {
			return refuse("needs a test that has no other line, and a seed")
		}
		for _, word := range words[1:] {
			seed, err := strconv.ParseUint(word, 10, 64)
			if err != nil || slices.Contains(lines[name], seed) {
				return refuse("needs numbers, each once")
			}
			lines[name] = append(lines[name], seed)
		}
	}
	if len(lines[everyTest]) != 1 {
		return nil, errors.New("the file seeds needs a line with one seed for all tests: * 1")
	}
	return lines, nil
}
