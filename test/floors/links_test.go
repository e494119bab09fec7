package floors_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	fenced  = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	drop    = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	named   = regexp.MustCompile(`<a id="([^"]+)">`)
	marked  = regexp.MustCompile("`([^`]*)`|\\[([^\\]]*)\\]\\([^)]*\\)|[*]+")
)

// anchors are those that a page's headings get where it is rendered.
func anchors(page string) map[string]bool {
	out := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		text := marked.ReplaceAllString(h[1], "$1$2")
		out[strings.ReplaceAll(drop.ReplaceAllString(strings.ToLower(text), ""), " ", "-")] = true
	}
	for _, a := range named.FindAllStringSubmatch(page, -1) {
		out[a[1]] = true
	}
	return out
}

// pages are the names of all pages of the tree.
func pages(t *testing.T) []string {
	t.Helper()
	list, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "*.md").Output()
	if err != nil {
		t.Skip("not a checkout")
	}
	return slices.DeleteFunc(strings.Fields(string(list)), func(name string) bool {
		return strings.Contains(name, "testdata/")
	})
}

// TestLinks follows the links of all pages to files and headings of the tree.
func TestLinks(t *testing.T) {
	followed := 0
	for _, name := range pages(t) {
		path := filepath.Join(root, name)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			to, anchor, _ := strings.Cut(m[1], "#")
			if followed++; to == "" {
				to = path
			} else {
				to = filepath.Join(filepath.Dir(path), to)
			}
			info, err := os.Stat(to)
			if err != nil {
				t.Errorf("%s: %s does not exist", name, m[1])
				continue
			}
			if anchor == "" || info.IsDir() || !strings.HasSuffix(to, ".md") {
				continue
			}
			if page, err := os.ReadFile(to); err != nil || !anchors(string(page))[anchor] {
				t.Errorf("%s: %s has no heading for #%s", name, to, anchor)
			}
		}
	}
	if followed < 50 {
		t.Errorf("only %d links were found", followed)
	}
}
