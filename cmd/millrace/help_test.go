package main

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// help runs the help of a command for a terminal of some columns.
func help(t *testing.T, columns int, args ...string) string {
	t.Helper()
	var out, errs output
	a := newApp()
	a.stdout, a.stderr = &out, &errs
	a.columns = func() int { return columns }
	if code := a.run(t.Context(), append(args, "--help")); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &errs)
	}
	return out.String()
}

// The many flags of a sync stand below titles, in the order of an operator's questions.
func TestHelpGroupsFlags(t *testing.T) {
	text := help(t, 80, "sync")
	at := 0
	for _, want := range []string{"\nSource and target:\n", "--source", "--target", "\nWhat is copied:\n", "--include", "--on-existing", "\nRunning:\n",
		"--until", "--dry-run", "\nSpeed and room:\n", "--readers", "--spool-max", "\nControl:\n", "--listen", "\nSettings and output:\n", "--config", "--output", "--help"} {
		next := strings.Index(text[at:], want)
		if next < 0 {
			t.Fatalf("help lacks %q in its place:\n%s", want, text)
		}
		at += next
	}
	if strings.Contains(text, "\nFlags:\n") {
		t.Errorf("flags stand below no title:\n%s", text)
	}
}

// No line of a command's flags is longer than the terminal is wide.
func TestHelpFitsTheTerminal(t *testing.T) {
	for _, columns := range []int{80, 100, 200} {
		for _, command := range []string{"sync", "verify", "seed local", "ycsb run", "bench", "topology plan"} {
			longest := 0
			for line := range strings.Lines(help(t, columns, strings.Fields(command)...)) {
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

// The flag says what the command says.
func TestVersionFlag(t *testing.T) {
	var texts []string
	for _, args := range [][]string{{"version"}, {"--version"}} {
		var out, errs output
		a := newApp()
		a.stdout, a.stderr = &out, &errs
		if code := a.run(t.Context(), args); code != exitOK {
			t.Fatalf("%v: exit code %d: %s", args, code, &errs)
		}
		texts = append(texts, out.String())
	}
	if texts[0] != texts[1] || !strings.HasPrefix(texts[1], "millrace ") {
		t.Errorf("got %q", texts)
	}
}
