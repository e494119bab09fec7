package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/workshop/published"
)

// inventedResults are made-up results of a test beside the package.
func inventedResults(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "workshop", "published", "testdata", "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "results.json")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestPublishedRender writes page and charts from results, without servers.
func TestPublishedRender(t *testing.T) {
	results := inventedResults(t)
	page := filepath.Join(filepath.Dir(results), "side.md")
	b := newBench(t)
	if code := b.run(t.Context(), "bench", "published", "render", "--results="+results,
		"--page="+page); code != cli.ExitOK || !strings.Contains(b.stdout.String(), "+43.5 %") {
		t.Fatalf("code %d\n%s%s", code, b.stdout, b.stderr)
	}
	text := read(t, page)
	charts, err := filepath.Glob(filepath.Join(filepath.Dir(page), "img", "side-*.svg"))
	if err != nil || len(charts) == 0 || len(charts) != strings.Count(text, "](img/side-") {
		t.Errorf("charts %q, %v; the page names %d", charts, err, strings.Count(text, "](img/side-"))
	}
}

// TestPublishedCompare: the exit code says whether figures differ.
func TestPublishedCompare(t *testing.T) {
	results := inventedResults(t)
	var all published.Results
	if err := json.Unmarshal([]byte(read(t, results)), &all); err != nil {
		t.Fatal(err)
	}
	var one strings.Builder
	if err := (&published.Results{Tables: map[string]*published.Measured{"1": all.Of(1)}}).Write(&one); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(results, []byte(one.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(filepath.Dir(results), "other.json")
	for _, c := range []struct {
		from, to string
		code     int
		says     string
	}{
		{"", "", cli.ExitOK, "0 of 2 ratios changed"},
		{`"full-one/millrace": [200, 220, 250]`, `"full-one/millrace": [400, 410, 420]`, cli.ExitOK,
			"table 1, full-one/millrace: 410 (400–420), then 220 (200–250)"},
		{"[200, 220, 250]", "[400, 410, 420]", cli.ExitFailure, "2 of 2 ratios changed"},
		{`"cores": 4`, `"cores": 8`, cli.ExitTrouble, "the machines differ"},
	} {
		if err := os.WriteFile(other, []byte(strings.ReplaceAll(read(t, results), c.from, c.to)), 0o600); err != nil {
			t.Fatal(err)
		}
		if c.from == "" {
			other = results
		}
		b := newBench(t)
		if code := b.run(t.Context(), "bench", "published", "compare", other, "--results="+results); code != c.code ||
			!strings.Contains(b.stdout.String(), c.says) {
			t.Errorf("code %d, want %d and %q\n%s%s", code, c.code, c.says, b.stdout, b.stderr)
		}
		other = filepath.Join(filepath.Dir(results), "other.json")
	}
}

// TestPublishedUsage: what is wrong is found before any work.
func TestPublishedUsage(t *testing.T) {
	results := "--results=" + inventedResults(t)
	page := "--page=" + filepath.Join(t.TempDir(), "page.md")
	for flag, want := range map[string]string{
		"--table=0": "there is no table 0", "--scale=huge": "scale", "--rounds=0": "--rounds",
		"--peer=pcsm=/bin/true": "no published table has the peer",
		"--peer=ycsb=/no/such":  "there is nothing at", "--peer=mongoshake": "there is no program",
	} {
		b := newBench(t)
		if code := b.run(t.Context(), "bench", "published", flag, results, page); code != cli.ExitUsage ||
			!strings.Contains(b.stderr.String(), want) {
			t.Errorf("%s: code %d\n%s", flag, code, b.stderr)
		}
	}
	b := newBench(t)
	other := filepath.Join(t.TempDir(), "other.json")
	if err := os.WriteFile(other, []byte(`{"cases": []}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if code := b.run(t.Context(), "bench", "published", "--results="+other, page); code != cli.ExitUsage ||
		!strings.Contains(b.stderr.String(), "have no table") {
		t.Errorf("another document: code %d\n%s", code, b.stderr)
	}
}
