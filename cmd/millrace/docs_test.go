package main

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
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

// The schema in docs is the one that the command writes.
func TestSchemaIsUpToDate(t *testing.T) {
	b := newBench(t, nil)
	if code := b.run(t.Context(), "config", "schema"); code != exitOK {
		t.Fatal(code, b.stderr.String())
	}
	raw, err := os.ReadFile("../../docs/millrace.schema.json")
	if err != nil || string(raw) != b.stdout.String() {
		t.Errorf("docs/millrace.schema.json is out of date (%v); run make docs", err)
	}
	for _, command := range []string{"sync", "verify"} {
		cmd, _, err := newApp().rootCommand().Find([]string{command})
		if err != nil {
			t.Fatal(err)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "config" && f.Name != "help" && !strings.Contains(string(raw), "\n  \""+f.Name+"\": {") {
				t.Errorf("the schema lacks %s", f.Name)
			}
		})
	}
}

// Each command has a man page that a formatter takes without a warning, and that
// names its flags as they are typed.
func TestManPages(t *testing.T) {
	root := newApp().rootCommand()
	pages := manPages(root, "2026-01-02")
	if len(pages) != len(docPages(root)) {
		t.Errorf("%d man pages, %d of Markdown", len(pages), len(docPages(root)))
	}
	sync := string(pages["millrace-sync.1"])
	for _, want := range []string{".TH MILLRACE\\-SYNC 1 \"2026-01-02\"", `.SS What is copied`, `\fB\-\-on\-existing\fR \fIpolicy\fR`, "(default fail)", ".BR millrace (1)"} {
		if !strings.Contains(sync, want) {
			t.Errorf("the page of sync lacks %q:\n%s", want, sync)
		}
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Log("groff is not installed: the pages are not formatted")
		return
	}
	var all bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		all.Write(pages[name])
	}
	cmd := exec.CommandContext(t.Context(), groff, "-man", "-ww", "-Tutf8", "-z", "-k")
	cmd.Stdin = &all
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("groff: %v: %s", err, out)
	}
}
