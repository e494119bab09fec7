package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cli"
	clitest "github.com/millrace/millrace/test/cli"
	"github.com/millrace/millrace/test/golden"
)

// line is the command line of the program.
func line(set func(*cli.Program)) clitest.Line {
	a := newApp()
	set(&a.Program)
	return clitest.Line{Root: a.rootCommand, Run: a.run}
}

// bench runs command lines in a world of its own.
type bench struct {
	env            map[string]string
	stdout, stderr *clitest.Output // of the last one
}

func newBench(t *testing.T) *bench {
	t.Helper()
	return &bench{env: map[string]string{"XDG_STATE_HOME": t.TempDir()}}
}

// run executes a command line and returns its exit code.
func (b *bench) run(ctx context.Context, args ...string) int {
	b.stdout, b.stderr = new(clitest.Output), new(clitest.Output)
	return line(func(p *cli.Program) {
		p.Stdout, p.Stderr, p.Environ = b.stdout, b.stderr, nil
		p.LookupEnv = func(name string) (string, bool) { v, ok := b.env[name]; return v, ok }
	}).Run(ctx, args)
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// failingArgs are arguments with which each command fails, by its path.
func failingArgs(t *testing.T) map[string]string {
	missing := filepath.Join(t.TempDir(), "none")
	return map[string]string{
		"ycsb load":               "mongodb -p workload=x",
		"ycsb run":                "mongodb -p workload=x",
		"ycsb matrix":             "--rounds=0",
		"bench":                   "nothing",
		"bench list":              "surplus",
		"bench show":              missing,
		"bench published":         "--table=6",
		"bench published render":  "--results=" + missing,
		"bench published compare": missing,
		"lab up":                  "--for=-1s",
		"lab up ":                 "--port=x",
		"lab list":                "surplus",
		"lab nothing":             "",
		"version":                 "surplus",
		"nothing":                 "",
	}
}

func TestFailuresAreJSON(t *testing.T) { clitest.FailuresAreJSON(t, line, failingArgs(t)) }

func TestCommandsAreForgotten(t *testing.T) { clitest.CommandsAreForgotten(t, line) }

func TestEveryFlagIsInTheEnvironment(t *testing.T) { clitest.FlagsAreInTheEnvironment(t, line, 70) }

func TestEveryPasswordInAFlagIsWarnedOf(t *testing.T) { clitest.PasswordsInFlagsAreWarnedOf(t, line) }

func TestWildPasswords(t *testing.T) { clitest.WildPasswords(t, line, failingArgs(t)) }

func TestDocsAreUpToDate(t *testing.T) {
	clitest.DocsAreUpToDate(t, line, "../millrace/workshop.variables")
}

func TestManPages(t *testing.T) { clitest.ManPages(t, line) }

func TestVersionFlag(t *testing.T) { clitest.VersionFlag(t, line) }

func TestHelpFitsTheTerminal(t *testing.T) { clitest.HelpFits(t, line, "ycsb run", "bench") }

func TestUsageErrors(t *testing.T) {
	b := newBench(t)
	for want, args := range map[string][]string{
		`unknown command "sink" for "millrace-bench lab"`: {"lab", "sink"},
		"--topology sharded:2x1":                          {"lab", "up", "--routers=2"},
		"--routers 0":                                     {"lab", "up", "--topology=sharded:2x1", "--routers=0"},
	} {
		if code := b.run(t.Context(), args...); code != cli.ExitUsage || !strings.Contains(b.stderr.String(), want) {
			t.Errorf("%q: code %d, want %q\n%s", args, code, want, b.stderr)
		}
		if n := strings.Count(b.stderr.String(), name+": "); n != 1 {
			t.Errorf("%q: reported %d times", args, n)
		}
	}
}

// No work begins whose report could not be written.
func TestReportIsCheckedFirst(t *testing.T) {
	b := newBench(t)
	for _, args := range [][]string{
		{"bench", "full-one", "--report=/no/such/dir/r.json", "--output=json"},
		{"bench", "published", "--results=/no/such/dir/r.json"},
		{"bench", "published", "--results=" + filepath.Join(t.TempDir(), "r.json"), "--page=/no/such/dir/p.md"},
		{"ycsb", "run", "mongodb", "--chart=/no/such/dir/r.html"},
		{"ycsb", "load", "mongodb", "-p", "exportfile=/no/such/dir/r"},
		{"ycsb", "matrix", "--chart=/no/such/dir/r.html"},
	} {
		if code := b.run(t.Context(), args...); code != cli.ExitUsage ||
			!strings.Contains(b.stderr.String(), "cannot be written") {
			t.Errorf("%v: code %d, %s", args, code, b.stderr)
		}
	}
}

// Variables of millrace mean something, those of nobody do not.
func TestUnknownVariablesAreWarnedOf(t *testing.T) {
	w := clitest.Start(t, func(set func(*cli.Program)) clitest.Line {
		return line(func(p *cli.Program) {
			set(p)
			p.Environ = []string{"MILLRACE_SOURCE=mongodb://a", "MILLRACE_JOB=x", "MILLRACE_SPOOL_MAX=1GB",
				"MILLRACE_LAB_DIR=/x", "MILLRACE_" + "ROUNDZ=2"}
		})
	})
	w.Run(t.Context(), []string{"version"})
	if got := w.Stderr.String(); strings.Count(got, "WARN") != 1 ||
		!strings.Contains(got, "did you mean MILLRACE_ROUNDS?") {
		t.Error(got)
	}
}

func TestCompletionOfValues(t *testing.T) {
	clitest.Completes(t, line, map[string]clitest.Completion{
		"lab up --dir |":         {Words: "", Directive: clitest.AnyDir},
		"ycsb load |":            {Words: "mongodb mongodb-async", Directive: clitest.Nothing},
		"ycsb load mongodb -P |": {Words: "", Directive: clitest.AnyFile},
		"bench show |":           {Words: "", Directive: clitest.AnyFile},
		"bench show --output |":  {Words: "text json html svg", Directive: clitest.Nothing},
	})
	w := clitest.Start(t, line)
	if got := clitest.Completed(t, w.Line, w.Stdout, "bench", "full"); !slices.Contains(strings.Fields(got.Words),
		"full-one") || got.Directive != clitest.Nothing {
		t.Errorf("bench: got %q", got)
	}
}

// TestGoldenOutputs compares what commands without a server print with files.
func TestGoldenOutputs(t *testing.T) {
	for file, args := range map[string]string{
		"help.txt":        "help",
		"bench-list.txt":  "bench list",
		"bench-list.json": "bench list --output json",
	} {
		t.Run(file, func(t *testing.T) {
			b := newBench(t)
			if code := b.run(t.Context(), strings.Fields(args)...); code != cli.ExitOK {
				t.Fatalf("exit code %d: %s", code, b.stderr)
			}
			golden.Equal(t, file, b.stdout.String())
		})
	}
}
