package main

import (
	"strings"
	"testing"

	clitest "github.com/millrace/millrace/test/cli"
)

// The many flags of a sync stand below titles, in the order of an operator's questions.
func TestHelpGroupsFlags(t *testing.T) {
	text := clitest.Help(t, line, 80, "sync")
	at := 0
	for _, want := range []string{"\nSource and target:\n", "--source", "--target", "\nWhat is copied:\n", "--include",
		"--on-existing", "\nRunning:\n", "--until", "--dry-run", "\nSpeed and room:\n", "--readers", "--spool-max",
		"\nControl:\n", "--listen", "\nSettings and output:\n", "--config", "--output", "--help"} {
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
	clitest.HelpFits(t, line, "sync", "verify", "seed local", "topology plan")
}

func TestVersionFlag(t *testing.T) { clitest.VersionFlag(t, line) }
