package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/service"
	clitest "github.com/millrace/millrace/test/cli"
)

// TestJobsLog: the newest entries, the oldest of them first; with --follow also what comes
// then, once.
func TestJobsLog(t *testing.T) {
	b := newServiceBench(t)
	file := filepath.Join(t.TempDir(), "orders.yaml")
	if err := os.WriteFile(file, []byte("source: env:A\ntarget: env:B\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.expect(cli.ExitOK, "jobs create --name orders -f "+file)
	b.until(func() bool { return b.view.Job("orders") != nil })
	uid := b.view.Job("orders").Definition.UID
	add := func(kind service.EntryKind, text string) {
		t.Helper()
		e := &service.Entry{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Kind: kind, Level: "warn", Text: text,
			Worker: "w1", Lost: 2, Fields: []service.Field{{Name: "ns", Value: "a\x1b[2J.b"}}}
		if err := b.hub.Records.AddEntry(t.Context(), uid, text, e); err != nil {
			t.Fatal(err)
		}
	}
	add(service.KindEvent, "first")
	add(service.KindLog, "second")
	out := b.expect(cli.ExitOK, "jobs log --job orders", `2026-01-02 03:04:05 * warning: first ns=a\u001b[2J.b (w1)`,
		"(2 lines before this could not be kept)", "05 warning: second")
	if strings.Contains(out, "\x1b") || strings.Index(out, "first") > strings.Index(out, "second") {
		t.Errorf("%q", out)
	}
	if out := b.expect(cli.ExitOK, "jobs log --job orders --events --output json",
		`"text": "first"`); strings.Contains(out, "second") {
		t.Errorf("%s", out)
	}
	b.expect(cli.ExitOK, "jobs log --job orders --limit 1", "second")
	b.expect(cli.ExitUsage, "jobs log --job orders --limit 0", "1 to 1000")
	b.expect(cli.ExitUsage, "jobs log --job orders --follow --output json", "cannot go with")
	b.expect(cli.ExitUsage, "jobs log --job none", `there is no job "none"`)

	var printed clitest.Output
	a := newApp()
	a.Stdout, a.Stderr = &printed, &printed
	a.screen = func() *screen { return nil }
	a.Environ, a.LookupEnv = nil, func(name string) (string, bool) { v, ok := b.env[name]; return v, ok }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() { ended <- a.run(ctx, strings.Fields("jobs log --job orders --follow --limit 1")) }()
	await := func(text string) {
		t.Helper()
		for !strings.Contains(printed.String(), text) {
			select {
			case code := <-ended:
				t.Fatalf("it ended with %d: %s", code, &printed)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	await("second")
	for i := range 3 {
		add(service.KindLog, fmt.Sprint("more", i))
	}
	await("more2")
	cancel()
	if code := <-ended; code != cli.ExitOK {
		t.Errorf("exit code %d", code)
	}
	if text := printed.String(); strings.Contains(text, "first") || strings.Count(text, "second") != 1 ||
		strings.Count(text, "more1") != 1 || strings.Index(text, "more0") > strings.Index(text, "more1") {
		t.Errorf("%s", text)
	}
}
