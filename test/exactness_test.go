package test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every test that docs/internals/exactness.md names exists.
func TestExactnessPageNamesTests(t *testing.T) {
	page, err := os.ReadFile("../docs/internals/exactness.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, sc := range scenarios() {
		known[sc.name] = true
	}
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err = filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range function.FindAllSubmatch(source, -1) {
			known[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	// Themes of trials and rules of the model stand in tables: {"name", …
	entry := regexp.MustCompile(`(?m)^\t\t\{"([\w-]+)", `)
	for _, dir := range []string{"trial", "../docs/internals/model"} {
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			source, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range entry.FindAllSubmatch(source, -1) {
				known[string(m[1])] = true
			}
		}
	}
	trials, err := filepath.Glob("trial/testdata/*.trial")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range trials {
		known[strings.TrimSuffix(filepath.Base(name), ".trial")] = true
	}
	names := 0
	for _, line := range strings.Split(string(page), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		for _, m := range regexp.MustCompile("`([\\w-]+)`").FindAllStringSubmatch(cells[len(cells)-2], -1) {
			names++
			if !known[m[1]] {
				t.Errorf("there is no test %s", m[1])
			}
		}
	}
	if names < 50 {
		t.Errorf("only %d names found on the page", names)
	}
	for name := range known {
		if strings.HasPrefix(name, "known_") && !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("the page does not name %s", name)
		}
	}
}
