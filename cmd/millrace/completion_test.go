package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// completed is what the shell is offered for the last of args, and how it goes on.
func completed(t *testing.T, a *app, args ...string) (words []string, directive string) {
	t.Helper()
	var out, errs output
	a.stdout, a.stderr = &out, &errs
	if code := a.run(t.Context(), append([]string{cobra.ShellCompNoDescRequestCmd}, args...)); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &errs)
	}
	words = strings.Split(strings.TrimSpace(out.String()), "\n")
	return words[:len(words)-1], words[len(words)-1]
}

// What follows the last colon of a completion.
const (
	anyFile  = ":0"
	nothing  = ":4"
	anyDir   = ":16"
	wordOnly = nothing
)

func TestCompletionOfValues(t *testing.T) {
	for line, want := range map[string]struct{ words, directive string }{
		"sync --on-existing |":           {"fail merge drop", wordOnly},
		"sync --mode |":                  {"all full incremental structure", wordOnly},
		"sync --until |":                 {"never caught-up", wordOnly},
		"sync --log-level |":             {"debug info warn error", wordOnly},
		"sync --config |":                {"", anyFile},
		"sync --report |":                {"", anyFile},
		"sync --spool-dir |":             {"", anyDir},
		"sync --source |":                {"", nothing},
		"sync --readers |":               {"", nothing},
		"sync |":                         {"", nothing},
		"verify --method |":              {"auto ranges digest", wordOnly},
		"verify --output |":              {"text json", wordOnly},
		"version --output |":             {"text json", wordOnly},
		"throttle --source-load |":       {"low normal max", wordOnly},
		"seed local --way |":             {"auto backup-cursor fsync-lock stopped", wordOnly},
		"seed local --to-dbpath |":       {"", anyDir},
		"seed local --mongod |":          {"", anyFile},
		"seed local --start -- mongod |": {"", anyFile},
		"seed serve --token-file |":      {"", anyFile},
		"topology plan --policy |":       {"balanced latency fan-out", wordOnly},
		"lab up --dir |":                 {"", anyDir},
		"ycsb load |":                    {"mongodb mongodb-async", wordOnly},
		"ycsb load mongodb -P |":         {"", anyFile},
		"bench show |":                   {"", anyFile},
		"bench show --output |":          {"text json html markdown svg", wordOnly},
		"bench full|":                    {"full-one", wordOnly},
	} {
		words, directive := completed(t, newApp(), strings.Split(strings.TrimSuffix(line, "|"), " ")...)
		got := strings.Join(words, " ")
		if line == "bench full|" {
			if !slices.Contains(words, want.words) || directive != want.directive {
				t.Errorf("%s: got %q %s, want one of them to be %q %s", line, got, directive, want.words, want.directive)
			}
			continue
		}
		if got != want.words || directive != want.directive {
			t.Errorf("%s: got %q %s, want %q %s", line, got, directive, want.words, want.directive)
		}
	}
}

// What a shell shows beside a flag is plain text.
func TestCompletionDescribesFlags(t *testing.T) {
	for line, want := range map[string]string{
		"sync --mo":          "--mode\tmode of the job: all ",
		"seed local --to-db": "--to-dbpath\t",
		"verify --outp":      "--output\tform of the ",
	} {
		a := newApp()
		var out, errs output
		a.stdout, a.stderr = &out, &errs
		if code := a.run(t.Context(), append([]string{cobra.ShellCompRequestCmd}, strings.Fields(line)...)); code != exitOK {
			t.Fatalf("%s: exit code %d: %s", line, code, &errs)
		}
		if got := out.String(); !strings.HasPrefix(got, want) || strings.Contains(got, "`") {
			t.Errorf("%s: got %q, want it to begin with %q and to have no marks", line, got, want)
		}
	}
}

// The commands that talk to a running sync are offered those that run.
func TestCompletionOfJobs(t *testing.T) {
	j := newFakeJob()
	b := newBench(t, j)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int)
	go func() { ended <- b.run(ctx, uris()...) }()
	<-j.started
	for _, command := range []string{"status", "pause", "resume", "throttle", "finalize"} {
		a := *b.app
		if words, directive := completed(t, &a, command, "--job", ""); !slices.Equal(words, []string{"orders"}) || directive != wordOnly {
			t.Errorf("%s: got %q %s", command, words, directive)
		}
	}
	// A second sync of a job that runs would be refused.
	a := *b.app
	if words, directive := completed(t, &a, "sync", "--job", ""); len(words) != 0 || directive != nothing {
		t.Errorf("sync: got %q %s", words, directive)
	}
	stop()
	<-ended
}
