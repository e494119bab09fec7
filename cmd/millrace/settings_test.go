package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	clitest "github.com/millrace/millrace/test/cli"
)

func TestEveryFlagIsInTheEnvironment(t *testing.T) { clitest.FlagsAreInTheEnvironment(t, line, 120) }

func TestCommandsAreForgotten(t *testing.T) { clitest.CommandsAreForgotten(t, line) }

func TestEveryPasswordInAFlagIsWarnedOf(t *testing.T) { clitest.PasswordsInFlagsAreWarnedOf(t, line) }

func TestUnknownVariablesAreWarnedOf(t *testing.T) {
	environ := []string{"MILLRACE_TARGTE=mongodb://u:hidden@a", "MILLRACE_SOURCE=mongodb://a", "MILLRACE_LAB_DIR=/x",
		"MILLRACE_MONGOD_6_0=/x", "MILLRACE_SET_URI=x", "MILLRACE_YCSB_URL=x", "MILLRACE_ROUNDS=2",
		"MILLRACE_SERVICE_HOST=10.0.0.1", "MILLRACE_XYZZY_PLUGH=1", "MILLRACE_EMPTY=", "OTHER=1"}
	for _, args := range [][]string{{"version"}, {"sync"}, {"jobs", "list", "--output=xml"}} {
		b := newBench(t, nil)
		b.app.Environ = environ
		b.run(t.Context(), args...)
		got := b.stderr.String()
		if !strings.Contains(got, "MILLRACE_TARGTE means nothing") ||
			!strings.Contains(got, "did you mean MILLRACE_TARGET?") ||
			!strings.Contains(got, "MILLRACE_XYZZY_PLUGH means nothing") || strings.Count(got, "WARN") != 2 ||
			strings.Contains(got, "hidden") {
			t.Errorf("%v: %s", args, got)
		}
	}
}

// No variable that the project itself reads is unknown to it.
func TestOwnVariablesAreKnown(t *testing.T) {
	own := regexp.MustCompile(`"?MILLRACE_[A-Z0-9_]*[A-Z0-9]\b`)
	root := newApp().rootCommand()
	flags := cli.AllFlags(root)
	err := filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") && d.Name() != "Makefile" &&
			!strings.HasSuffix(path, ".md") || d.Name() == "settings_test.go" {
			return err
		}
		raw, err := os.ReadFile(path)
		for _, name := range own.FindAllString(string(raw), -1) {
			if p := config.Unknown([]string{strings.Trim(name, `"`) + "=x"}, root.Flags(), flags,
				strings.Fields(workshopVariables)); len(p) > 0 {
				t.Errorf("%s: %s", path, p[0])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestWildPasswords(t *testing.T) { clitest.WildPasswords(t, line, failingArgs(t)) }
