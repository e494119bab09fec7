package main

import (
	"context"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
	clitest "github.com/millrace/millrace/test/cli"
)

func TestCompletionOfValues(t *testing.T) {
	clitest.Completes(t, line, map[string]clitest.Completion{
		"sync --on-existing |":           {Words: "fail merge drop", Directive: clitest.Nothing},
		"sync --mode |":                  {Words: "all full incremental structure", Directive: clitest.Nothing},
		"sync --until |":                 {Words: "never caught-up", Directive: clitest.Nothing},
		"sync --log-level |":             {Words: "debug info warn error", Directive: clitest.Nothing},
		"sync --config |":                {Words: "", Directive: clitest.AnyFile},
		"sync --report |":                {Words: "", Directive: clitest.AnyFile},
		"sync --spool-dir |":             {Words: "", Directive: clitest.AnyDir},
		"sync --source |":                {Words: "", Directive: clitest.Nothing},
		"sync --readers |":               {Words: "", Directive: clitest.Nothing},
		"sync |":                         {Words: "", Directive: clitest.Nothing},
		"verify --method |":              {Words: "auto ranges digest", Directive: clitest.Nothing},
		"verify --output |":              {Words: "text json", Directive: clitest.Nothing},
		"version --output |":             {Words: "text json", Directive: clitest.Nothing},
		"throttle --source-load |":       {Words: "low normal max", Directive: clitest.Nothing},
		"seed local --way |":             {Words: "auto backup-cursor fsync-lock stopped", Directive: clitest.Nothing},
		"seed local --to-dbpath |":       {Words: "", Directive: clitest.AnyDir},
		"seed local --mongod |":          {Words: "", Directive: clitest.AnyFile},
		"seed local --start -- mongod |": {Words: "", Directive: clitest.AnyFile},
		"seed serve --token-file |":      {Words: "", Directive: clitest.AnyFile},
		"topology plan --policy |":       {Words: "balanced latency fan-out", Directive: clitest.Nothing},
	})
}

// What a shell shows beside a flag is plain text.
func TestCompletionDescribesFlags(t *testing.T) {
	for line, want := range map[string]string{
		"sync --mo":          "--mode\tmode of the job: all, ",
		"seed local --to-db": "--to-dbpath\t",
		"verify --outp":      "--output\tform of the ",
	} {
		a := newApp()
		var out, errs clitest.Output
		a.Stdout, a.Stderr = &out, &errs
		if code := a.run(t.Context(),
			append([]string{cobra.ShellCompRequestCmd}, strings.Fields(line)...)); code != cli.ExitOK {
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
	offered := func(args ...string) clitest.Completion {
		a, out := *b.app, new(clitest.Output)
		a.Stdout, a.Stderr = out, new(clitest.Output)
		return clitest.Completed(t, clitest.Line{Root: a.rootCommand, Run: a.run}, out, args...)
	}
	for _, command := range []string{"status", "pause", "resume", "throttle", "finalize"} {
		if got := offered(command, "--job", ""); got != (clitest.Completion{Words: "orders", Directive: clitest.Nothing}) {
			t.Errorf("%s: got %q", command, got)
		}
	}
	// A second sync of a job that runs would be refused.
	if got := offered("sync", "--job", ""); got != (clitest.Completion{Directive: clitest.Nothing}) {
		t.Errorf("sync: got %q", got)
	}
	stop()
	<-ended
}
