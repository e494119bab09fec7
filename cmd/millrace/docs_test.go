package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// The pages in docs/cli are what the commands say of themselves.
func TestDocsAreUpToDate(t *testing.T) {
	dir := filepath.Join("..", "..", "docs", "cli")
	pages := docPages(newApp().rootCommand())
	for name, page := range pages {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(raw) != string(page) {
			t.Errorf("%s is out of date (%v); run: go run ./cmd/millrace docs", name, err)
		}
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		if !slices.Contains(slices.Collect(maps.Keys(pages)), filepath.Base(path)) {
			t.Errorf("%s belongs to no command; run: go run ./cmd/millrace docs", path)
		}
	}
}
