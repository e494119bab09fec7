package cli

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/test/golden"
)

//nolint:gochecknoglobals // go test parses flags before a test can register one
var (
	manDir     = flag.String("man", "", "write the man pages to this directory")
	manDate    = flag.String("man-date", "2026-01-02", "the day that man pages bear")
	manVersion = flag.String("man-version", "", "the version that man pages bear")
)

// DocsAreUpToDate checks that the pages in docs/cli, and the file of a program's variables, are what its commands say.
// With -update it writes them. Tests run two directories below the top.
func DocsAreUpToDate(t *testing.T, program New, variables string) {
	root := Start(t, program).Root()
	dir := filepath.Join("..", "..", "docs", "cli")
	pages, names := docPages(root), variablesOf(root)
	found, err := filepath.Glob(filepath.Join(dir, root.Name()+"_*.md"))
	if golden.Updating() {
		// Pages of commands that are no more are removed, those of other programs stay.
		for _, path := range found {
			err = errors.Join(err, os.Remove(path))
		}
		err = errors.Join(err, writePages(dir, pages), os.WriteFile(variables, names, 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, page := range pages {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(raw) != string(page) {
			t.Errorf("%s is out of date (%v); run: make docs", name, err)
		}
	}
	for _, path := range found {
		if pages[filepath.Base(path)] == nil && !golden.Updating() {
			t.Errorf("%s belongs to no command; run: make docs", path)
		}
	}
	raw, err := os.ReadFile(variables)
	if err != nil || string(raw) != string(names) {
		t.Errorf("%s is out of date (%v); run: make docs", variables, err)
	}
}

// ManPages checks that each command has a man page that a formatter takes without a warning. It returns the pages by
// file name, and writes them where -man says.
func ManPages(t *testing.T, program New) map[string][]byte {
	root := Start(t, program).Root()
	root.Version = cmp.Or(*manVersion, root.Version)
	pages := manPages(root, *manDate)
	if len(pages) != len(docPages(root)) {
		t.Errorf("%d man pages, %d of Markdown", len(pages), len(docPages(root)))
	}
	if *manDir != "" {
		if err := writePages(*manDir, pages); err != nil {
			t.Fatal(err)
		}
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Log("groff is not installed: the pages are not formatted")
		return pages
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
	return pages
}

// Help returns the help of a command for a terminal of some columns.
func Help(t *testing.T, program New, columns int, args ...string) string {
	t.Helper()
	var stdout, stderr Output
	line := program(func(p *cli.Program) {
		p.Stdout, p.Stderr, p.Columns = &stdout, &stderr, func() int { return columns }
	})
	if code := line.Run(t.Context(), append(args, "--help")); code != cli.ExitOK {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	return stdout.String()
}

// HelpFits checks that no line of the commands' flags is longer than the terminal is wide.
func HelpFits(t *testing.T, program New, commands ...string) {
	for _, columns := range []int{80, 100, 200} {
		for _, command := range commands {
			longest := 0
			for line := range strings.Lines(Help(t, program, columns, strings.Fields(command)...)) {
				if strings.HasPrefix(line, "      ") || strings.HasPrefix(line, "  -") { // of a flag
					longest = max(longest, utf8.RuneCountInString(strings.TrimRight(line, "\n")))
				}
			}
			if longest > columns {
				t.Errorf("%s: a line of %d in %d columns", command, longest, columns)
			}
			if columns == 200 && longest < 100 {
				t.Errorf("%s: lines of %d at most in 200 columns", command, longest)
			}
		}
	}
}

// VersionFlag checks that the flag says what the command says, and that both begin with
// the program's name.
func VersionFlag(t *testing.T, program New) {
	var texts []string
	for _, args := range [][]string{{"version"}, {"--version"}} {
		w := Start(t, program)
		if code := w.Run(t.Context(), args); code != cli.ExitOK {
			t.Fatalf("%v: exit code %d: %s", args, code, w.Stderr)
		}
		texts = append(texts, w.Stdout.String())
	}
	if texts[0] != texts[1] || !strings.HasPrefix(texts[1], Start(t, program).Root().Name()+" ") {
		t.Errorf("got %q", texts)
	}
}

// What a shell goes on with after the words that it is offered.
const (
	AnyFile = ":0"
	Nothing = ":4"
	AnyDir  = ":16"
)

// Completion is what a shell is offered.
type Completion struct{ Words, Directive string }

// Completed returns what the shell is offered for the last of args.
func Completed(t *testing.T, line Line, stdout *Output, args ...string) Completion {
	t.Helper()
	if code := line.Run(t.Context(), append([]string{cobra.ShellCompNoDescRequestCmd}, args...)); code != cli.ExitOK {
		t.Fatalf("%q: exit code %d", args, code)
	}
	words := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	return Completion{strings.Join(words[:len(words)-1], " "), words[len(words)-1]}
}

// Completes checks what the shell is offered for lines, each up to its last character, |.
func Completes(t *testing.T, program New, cases map[string]Completion) {
	for line, want := range cases {
		w := Start(t, program)
		if got := Completed(t, w.Line, w.Stdout, strings.Split(strings.TrimSuffix(line, "|"), " ")...); got != want {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}
