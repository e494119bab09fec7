package main

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cli"
	clitest "github.com/millrace/millrace/test/cli"
)

// The flags of a sync stand below titles, the ten that most people need first. The help has half
// the words that it had (1403), and no quotes of a usage name another kind than was meant.
func TestHelpGroupsFlags(t *testing.T) {
	text := clitest.Help(t, line, 80, "sync")
	at := 0
	for _, want := range []string{"\nMost used:\n", "--source URI", "--target URI", "--include", "--exclude", "--rename",
		"--mode", "--on-existing", "--until", "--dry-run", "--verify", "\nSource and target:\n", "--write-concern",
		"\nWhat is copied:\n", "--fields pattern=rules", "\nRunning:\n", "--job", "\nSpeed and room:\n", "--readers",
		"--spool-max", "\nControl:\n", "--listen", "\nSettings and output:\n", "--config", "--output", "--help"} {
		next := strings.Index(text[at:], want)
		if next < 0 {
			t.Fatalf("help lacks %q in its place:\n%s", want, text)
		}
		at += next
	}
	first, _, _ := strings.Cut(text, "\nSource and target:\n")
	if n := strings.Count(first, "\n      --"); n != 10 {
		t.Errorf("help leads with %d flags:\n%s", n, first)
	}
	if n := len(strings.Fields(text)); n > 1403/2 {
		t.Errorf("help has %d words", n)
	}
	if strings.Contains(text, "\nFlags:\n") {
		t.Errorf("flags stand below no title:\n%s", text)
	}
}

// What a flag does is said in 15 words: the line in the help, and each part of the details in the reference.
func TestUsagesAreShort(t *testing.T) {
	for _, f := range cli.AllFlags(newApp().rootCommand()) {
		for _, part := range strings.FieldsFunc(f.Usage, func(r rune) bool { return r == '\n' || r == ';' }) {
			if n := len(strings.Fields(part)); n > 15 && !f.Hidden {
				t.Errorf("--%s has %d words: %s", f.Name, n, part)
			}
		}
		if summary, _, _ := strings.Cut(f.Usage, "\n"); len(strings.Fields(summary)) > 15 && !f.Hidden {
			t.Errorf("--%s: %s", f.Name, summary)
		}
	}
}

// Each text of the file belongs to a command.
func TestHelpTextsHaveCommands(t *testing.T) {
	root := newApp().rootCommand()
	for line := range strings.Lines(helpTexts) {
		head, is := strings.CutPrefix(strings.TrimRight(line, "\n"), "# ")
		if !is || strings.HasPrefix(head, "millrace") {
			continue
		}
		parent, use, below := strings.Cut(head, ": ")
		if !below {
			parent, use = "", head
		}
		cmd, _, err := root.Find(append(strings.Fields(parent), strings.Fields(use)[0]))
		if err != nil || cmd.Use != use || cmd.Short == "" {
			t.Errorf("no command has the text of %q: %v", head, err)
		}
	}
}

// No line of a command's flags is longer than the terminal is wide.
func TestHelpFitsTheTerminal(t *testing.T) {
	clitest.HelpFits(t, line, "sync", "verify", "seed local", "topology plan")
}

func TestVersionFlag(t *testing.T) { clitest.VersionFlag(t, line) }
