package floors_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What a reader meets at most.
const (
	mostWords      = 22_000
	mostGuideWords = 800
	mostCellWords  = 12
	readmeLines    = 120
	pageColumns    = 100
)

var (
	dashes = regexp.MustCompile(`--+`)
	code   = regexp.MustCompile("`[^`]*`")
	target = regexp.MustCompile(`\]\([^)]*\)`)
	word   = regexp.MustCompile(`[\w'-]+`)
)

// userPages are the pages for users, except those that are made from the code.
func userPages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, pattern := range []string{
		"README.md", "docs/README.md", "docs/install.md", "docs/start/*.md", "docs/guides/*.md", "docs/reference/*.md",
	} {
		list, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(list) == 0 {
			t.Fatalf("%s: %d pages, %v", pattern, len(list), err)
		}
		for _, path := range list {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			out[strings.TrimPrefix(filepath.ToSlash(path), root+"/")] = string(text)
		}
	}
	delete(out, "docs/reference/errors.md")
	return out
}

// words counts all of a page, its commands and outputs, too.
func words(text string) int {
	return len(strings.Fields(dashes.ReplaceAllString(strings.ReplaceAll(text, "|", " "), "")))
}

// TestPagesAreShort: users can read all pages in two hours, and each guide at once.
func TestPagesAreShort(t *testing.T) {
	total := 0
	for name, text := range userPages(t) {
		n := words(text)
		if total += n; strings.HasPrefix(name, "docs/guides/") && n > mostGuideWords {
			t.Errorf("%s has %d words, more than %d", name, n, mostGuideWords)
		}
		if lines := strings.Count(text, "\n"); name == "README.md" && lines > readmeLines {
			t.Errorf("%s has %d lines, more than %d", name, lines, readmeLines)
		}
	}
	if t.Logf("%d words", total); total > mostWords {
		t.Errorf("the pages for users have %d words, more than %d: keep each fact on one page", total, mostWords)
	}
}

// TestPagesFit: all pages have short lines, those for users have short cells, too.
func TestPagesFit(t *testing.T) {
	users := userPages(t)
	for _, name := range pages(t) {
		if strings.HasPrefix(name, "docs/cli/") || name == "docs/reference/errors.md" { // made from the code
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range wide(string(text), users[name] != "") {
			t.Errorf("%s: %s", name, problem)
		}
	}
}

// wide are the lines that are too long, and the cells of tables with too many words.
func wide(text string, cells bool) (out []string) {
	fence := false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			fence = !fence
		case fence:
		case strings.HasPrefix(line, "|") && !cells:
		case strings.HasPrefix(line, "|"):
			plain := target.ReplaceAllString(code.ReplaceAllString(line, "code"), "]")
			for cell := range strings.SplitSeq(plain, "|") {
				if len(word.FindAllString(cell, -1)) > mostCellWords {
					out = append(out, "a cell of a table with more than 12 words:"+cell)
				}
			}
		case len([]rune(line)) > pageColumns:
			out = append(out, "a line of more than 100 columns: "+line)
		}
	}
	return out
}

// TestWide: the check finds what it is for.
func TestWide(t *testing.T) {
	long := strings.Repeat("word ", 30)
	text := long + "\n```\n" + long + "\n```\n| one | " + long + "|\n| `" + long + "` | two |\n"
	if got := wide(text, true); len(got) != 2 || words("| --flag | a-b |\n|---|---|\n") != 2 {
		t.Errorf("%q, %d", got, words("| --flag | a-b |"))
	}
}
