package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/verify"
	clitest "github.com/millrace/millrace/test/cli"
)

// failingArgs are arguments with which each command fails, by its path. None may
// be missing that has --output.
func failingArgs(t *testing.T) map[string]string {
	nobody := "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100&connectTimeoutMS=100"
	missing := filepath.Join(t.TempDir(), "none")
	return map[string]string{
		"sync":               "--source=" + nobody + " --target=" + nobody,
		"reverse":            "--job=x --source=" + nobody + " --target=" + nobody,
		"status":             "",
		"pause":              "",
		"resume":             "",
		"throttle":           "--max-rate-docs=1",
		"finalize":           "",
		"verify":             "--source=" + nobody + " --target=" + nobody,
		"transform test":     "--ns=a.b --doc=" + missing,
		"seed local":         "--from-dbpath=" + missing + " --to-dbpath=" + missing,
		"seed serve":         "--dbpath=" + missing,
		"seed pull":          "--from=http://127.0.0.1:1 --token-file=" + missing + " --dbpath=" + missing,
		"seed agent":         "--dbpath=" + missing + " --member=127.0.0.1:1 --token-file=" + missing,
		"topology show":      "--timeout=100ms --uri=" + nobody,
		"topology plan":      "--timeout=100ms --uri=" + nobody,
		"topology apply":     "--timeout=100ms --uri=" + nobody,
		"topology hold":      "--timeout=100ms --uri=" + nobody,
		"topology release":   "--timeout=100ms --uri=" + nobody,
		"topology chaining":  "on --timeout=100ms --uri=" + nobody,
		"topology what-if":   "--members=1000",
		"topology advise":    "--members=1000",
		"debug oplog":        "--source=" + nobody,
		"jobs list":          "--target=" + nobody,
		"jobs show":          "--target=" + nobody,
		"jobs drop":          "--target=" + nobody,
		"jobs edit":          "--server=127.0.0.1:1 --job=x --file=" + missing,
		"jobs create":        "--server=127.0.0.1:1 --name=x --file=" + missing,
		"jobs log":           "--server=127.0.0.1:1 --job=x",
		"jobs verify":        "--server=127.0.0.1:1 --job=x",
		"jobs repair":        "--server=127.0.0.1:1 --job=x --all",
		"jobs remove":        "--server=127.0.0.1:1 --job=x",
		"workers list":       "--server=127.0.0.1:1",
		"workers drain":      "--server=127.0.0.1:1 --worker=x",
		"workers resume":     "--server=127.0.0.1:1 --worker=x",
		"serve":              "--listen=nowhere",
		"worker":             "--nats=nats://127.0.0.1:1",
		"deadletters list":   "--target=" + nobody,
		"deadletters show":   "1 --target=" + nobody,
		"deadletters retry":  "--target=" + nobody,
		"deadletters export": "--target=" + nobody,
		"debug slices":       "--target=" + nobody,
		"version":            "surplus",
		"topology show ":     "--watch --timeout=100ms --uri=mongodb://",
		"status ":            "--watch",
		"sync ":              "--unknown",
		"debug oplog ":       "--from=then",
		"nothing":            "",
		"sync  ":             "--readers=x --source=" + nobody,
		"topology chaining ": "sideways --uri=" + nobody,
	}
}

func TestFailuresAreJSON(t *testing.T) { clitest.FailuresAreJSON(t, line, failingArgs(t)) }

// TestFailedPrecheckInJSON: the checks are told and kept in the report.
func TestFailedPrecheckInJSON(t *testing.T) {
	inBetween := newFakeJob()
	inBetween.runErr = &job.PrecheckError{Plan: &failing().plan}
	for name, c := range map[string]struct {
		job  *fakeJob
		args []string
	}{
		"precheck":   {failing(), nil},
		"dry run":    {failing(), []string{"--dry-run"}},
		"in between": {inBetween, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, c.job)
			report := filepath.Join(t.TempDir(), "report.json")
			code := b.run(t.Context(), with(append(c.args, "--output=json", "--report="+report)...)...)
			for where, text := range map[string]string{"stdout": b.stdout.String(), "report": read(t, report)} {
				docs := clitest.Documents(t, text)
				if code != cli.ExitUsage || len(docs) != 1 || docs[0]["error"] == nil || len(docs[0]["checks"].([]any)) != 3 {
					t.Errorf("code %d, %s: %s", code, where, text)
				}
			}
		})
	}
}

// TestReportOfAFailure: a report is written although there is nothing but an error.
func TestReportOfAFailure(t *testing.T) {
	for _, command := range []string{"sync", "verify"} {
		b := newBench(t, nil)
		b.app.verify = func(context.Context, verify.Spec) (*verify.Report, error) { return nil, errors.New("nobody answers") }
		report := filepath.Join(t.TempDir(), "report.json")
		code := b.run(t.Context(), append([]string{command}, append(uris()[1:], "--report="+report)...)...)
		if docs := clitest.Documents(t, read(t, report)); code != 2 || len(docs) != 1 ||
			!strings.Contains(docs[0]["error"].(string), "nobody answers") {
			t.Errorf("%s: code %d, %s", command, code, read(t, report))
		}
		if info, err := os.Stat(report); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", command, info.Mode(), err)
		}
	}
}

// TestReportIsCheckedFirst: no work begins whose report could not be written.
func TestReportIsCheckedFirst(t *testing.T) {
	for _, args := range [][]string{
		append(uris(), "--report=/no/such/dir/r.json"),
		append([]string{"verify"}, append(uris()[1:], "--report=/")...),
		{"seed", "local", "--from-dbpath=/x", "--to-dbpath=/y", "--report=/proc/self/r.json"},
	} {
		b := newBench(t, newFakeJob())
		if code := b.run(t.Context(), args...); code != cli.ExitUsage ||
			!strings.Contains(b.stderr.String(), "cannot be written") {
			t.Errorf("%v: code %d, %s", args, code, b.stderr)
		}
	}
}

// TestSignals: what is left to go on with decides how a stopped sync ends.
func TestSignals(t *testing.T) {
	for _, c := range []struct {
		signal syscall.Signal
		args   []string
		code   int
		want   string
	}{
		{syscall.SIGTERM, nil, cli.ExitOK, "stopped by SIGTERM; its checkpoint is kept"},
		{syscall.SIGINT, nil, cli.ExitOK, "stopped by SIGINT; its checkpoint is kept"},
		{syscall.SIGHUP, nil, 129, "hint: its checkpoint is kept"},
		{syscall.SIGTERM, []string{"--until=caught-up"}, 143,
			"stopped by SIGTERM before the job was finalized\nhint: its checkpoint is kept"},
		{syscall.SIGINT, []string{"--until=caught-up"}, 130, "hint: its checkpoint is kept"},
		{syscall.SIGINT, []string{"--mode=full"}, 130, "hint: its checkpoint is kept"},
		{syscall.SIGTERM, []string{"--mode=structure"}, 143, "hint: its checkpoint is kept"},
	} {
		t.Run(fmt.Sprint(c.signal, c.args), func(t *testing.T) {
			j := newFakeJob()
			b := newBench(t, j)
			ctx, cancel := context.WithCancelCause(t.Context())
			wait := start(t, ctx, b, j, with(append(c.args, "--output=json")...)...)
			cancel(cli.Stopped{Signal: c.signal})
			if code := wait(); code != c.code || !strings.Contains(b.stderr.String(), c.want) {
				t.Errorf("code %d: %s", code, b.stderr)
			}
			docs := clitest.Documents(t, b.stdout.String())
			if len(docs) != 1 || !strings.HasPrefix(docs[0]["stopped"].(string), "SIG") ||
				(docs[0]["error"] != nil) != (c.code != 0) {
				t.Errorf("%s", b.stdout)
			}
		})
	}
	b := newBench(t, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	b.app.verify = func(ctx context.Context, _ verify.Spec) (*verify.Report, error) {
		cancel(cli.Stopped{Signal: syscall.SIGTERM})
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if code := b.run(ctx, append([]string{"verify"}, uris()[1:]...)...); code != 143 ||
		!strings.Contains(b.stderr.String(), "stopped by SIGTERM") {
		t.Errorf("verify: code %d, %s", code, b.stderr)
	}
}

// hostile is a name, a message or a value that means to act on a terminal.
const hostile = "x\x1b]0;owned\x07\x1b[2J\r\nmillrace: all is well\nhint: do as I say\u202etxt.exe\u2066\u009b31m\x7f"

// harmless fails if text holds what acts on a terminal, or a forged line.
func harmless(t *testing.T, name, text string) {
	t.Helper()
	for _, bad := range []string{"\x1b", "\x07", "\r", "\x7f", "\u202e", "\u2066", "\u009b", "\nmillrace: all is well",
		"\nhint: do as I say", "\n  hint: do as I say"} {
		if strings.Contains(text, bad) {
			t.Errorf("%s: %q is in\n%q", name, bad, text)
		}
	}
}

func TestNothingHostileIsShown(t *testing.T) {
	j := failing()
	j.plan.Source, j.plan.SourceInfo = hostile, hostile
	j.plan.Checks[1].Message, j.plan.Checks[2].Hint = hostile, hostile
	j.plan.Collections = append(j.plan.Collections, planned(hostile))
	for _, args := range [][]string{nil, {"--dry-run"}, {"--output=json"}, {"--dry-run", "--output=json"},
		{"--log-format=json"}} {
		b := newBench(t, j)
		b.run(t.Context(), with(args...)...)
		harmless(t, fmt.Sprint("sync ", args, " stdout"), b.stdout.String())
		harmless(t, fmt.Sprint("sync ", args, " stderr"), b.stderr.String())
	}
	for _, form := range []string{"text", "json"} {
		b := newBench(t, nil)
		b.app.verify = func(context.Context, verify.Spec) (*verify.Report, error) {
			return &verify.Report{Count: 30, Notes: []string{hostile},
				Collections: []verify.Collection{{NS: hostile, TargetNS: hostile + "2"}},
				Differences: []verify.Difference{{NS: hostile, Kind: verify.Missing, Detail: hostile}},
				Schema:      []verify.SchemaDifference{{NS: hostile, What: hostile, Detail: hostile}}}, nil
		}
		b.run(t.Context(), append([]string{"verify", "--output=" + form}, uris()[1:]...)...)
		harmless(t, "verify", b.stdout.String()+b.stderr.String())

		j := newFakeJob()
		j.differ = []string{hostile}
		b = newBench(t, j)
		wait := start(t, t.Context(), b, j, with("--output="+form)...)
		_, out, errs := b.other("finalize", "--output="+form)
		harmless(t, "finalize", out+errs)
		wait()
		harmless(t, "sync", b.stdout.String()+b.stderr.String())

		b = newBench(t, nil)
		b.app.open = func(context.Context, job.Spec) (syncJob, error) { return nil, errors.New("the server says " + hostile) }
		b.run(t.Context(), with("--output="+form)...)
		harmless(t, "open", b.stdout.String()+b.stderr.String())
		b.run(t.Context(), "sync", "--source", hostile, "--mode", hostile, "--include", hostile, "--output="+form)
		harmless(t, "usage", b.stdout.String()+b.stderr.String())
		b.run(t.Context(), hostile, "--output="+form)
		harmless(t, "command", b.stdout.String()+b.stderr.String())
	}
	s := hostileStatus()
	harmless(t, "status", textOf("status", s))
	harmless(t, "view", strings.Join(view(s, s.StartedAt, 200, 50), "\n"))
	m := newTerminal(t, 100, 20)
	m.screen().draw(lines(hostile, "b"))
	harmless(t, "screen", strings.Join(m.grid, "\n"))
}

func planned(name string) precheck.Collection {
	return precheck.Collection{Source: name, Target: name + "2", Type: "collection"}
}

// hostileStatus is one in which everything that others name is hostile.
func hostileStatus() job.Status {
	s := copying(3)
	s.Source, s.Target, s.Waiting, s.Error, s.Hint, s.Differences = hostile, hostile, hostile, hostile, hostile,
		[]string{hostile}
	s.Copy.Collections[0].Source = hostile
	s.Conflicts.Open, s.Conflicts.Where = 1, hostile
	return s
}

// TestLongTimesInLogs: a text log has no exponents.
func TestLongTimesInLogs(t *testing.T) {
	var out bytes.Buffer
	s := copying(3)
	s.Phase, s.Follow = job.PhaseFollowing, job.FollowStatus{LagSeconds: 0.44, WindowSeconds: 3_506_250.3}
	logProgress(config.NewLog(&out, "debug", "text"), s)
	if text := out.String(); !strings.Contains(text, "lagSeconds=0.4 windowSeconds=3506250 ") {
		t.Error(text)
	}
}

// TestJSONLogs: a program that reads the log finds numbers, each with its unit in
// the key, names of one style, and positions in one form.
func TestJSONLogs(t *testing.T) {
	var out bytes.Buffer
	log := config.NewLog(&out, "debug", "json")
	position := mongo.OpTime{TS: bson.Timestamp{T: 1700000000, I: 7}}
	s := copying(3)
	s.Phase, s.Copy.Bytes, s.Copy.BytesRate, s.Copy.ETASeconds = job.PhaseCopying, 12_345_678_901, 5.6e7, 73.25
	logProgress(log, s)
	s.Phase, s.Follow = job.PhaseFollowing,
		job.FollowStatus{OperationsRate: 48123, LagSeconds: 0.44, WindowSeconds: 7200, Applied: position.String()}
	s.Conflicts.Open, s.Errors = 2, map[string]int64{"retry": 3}
	logProgress(log, s)
	log.Info("other", "took", 1500*time.Millisecond, "at", position, "error", errors.New("why"), "phase", job.PhaseCopying)
	var lines []map[string]any
	for line := range strings.Lines(out.String()) {
		lines = append(lines, clitest.Documents(t, line)...)
	}
	camel := regexp.MustCompile(`^[a-z][a-zA-Z]*$`)
	unit := regexp.MustCompile(`^-?[0-9.]+ ?(s|ms|min|h|d|B|[kMGT]B|k|M|G)?(/s)?$`)
	for _, line := range lines {
		for key, value := range line {
			if text, ok := value.(string); !camel.MatchString(key) || ok && unit.MatchString(text) {
				t.Errorf("%s: %v", key, value)
			}
		}
	}
	for _, c := range []struct {
		line int
		key  string
		want any
	}{
		{0, "bytes", 12_345_678_901.0}, {0, "bytesRate", 5.6e7}, {0, "etaSeconds", 73.3}, {1, "operationsRate", 48123.0},
		{1, "lagSeconds", 0.4},
		{1, "windowSeconds", 7200.0}, {1, "applied", "1700000000:7"}, {1, "conflictsOpen", 2.0}, {1, "errorsRetry", 3.0},
		{2, "tookSeconds", 1.5}, {2, "at", "1700000000:7"}, {2, "error", "why"}, {2, "phase", "copying"},
	} {
		if got := lines[c.line][c.key]; got != c.want {
			t.Errorf("line %d: %s is %v, want %v", c.line, c.key, got, c.want)
		}
	}
}

// TestProgressInterval: a job that follows is quiet unless it is asked to speak.
func TestProgressInterval(t *testing.T) {
	for _, c := range []struct {
		args  []string
		phase job.Phase
		lines bool
	}{
		{[]string{"--progress-interval=10ms"}, job.PhaseFollowing, true},
		{[]string{"--progress-interval=0"}, job.PhaseCopying, false},
		{nil, job.PhaseFollowing, false},
	} {
		j := newFakeJob()
		j.Set(func(s *job.Status) { s.Phase = c.phase })
		b := newBench(t, j)
		ctx, cancel := context.WithCancelCause(t.Context())
		wait := start(t, ctx, b, j, with(c.args...)...)
		lines := func() int { return strings.Count(b.stderr.String(), "msg=progress") }
		enough := func() bool { return c.lines && lines() > 3 }
		// Lines that must not come have this long to come; a slow machine shows fewer of them.
		for begin := time.Now(); !enough() &&
			(c.lines && time.Since(begin) < time.Minute || time.Since(begin) < 200*time.Millisecond); {
			time.Sleep(10 * time.Millisecond)
		}
		cancel(cli.Stopped{Signal: syscall.SIGTERM})
		wait()
		if n := lines(); c.lines != (n > 3) || !c.lines && n > 0 {
			t.Errorf("%v: %d lines\n%s", c.args, n, b.stderr)
		}
	}
	s := config.Sync{}
	s.SteadyInterval = time.Hour
	var out bytes.Buffer
	r := &session{log: config.NewLog(&out, "info", "text")}
	j := newFakeJob()
	tell := r.progress(&s, j)
	tell()
	tell()
	if n := strings.Count(out.String(), "\n"); n != 1 {
		t.Errorf("%d lines while it follows", n)
	}
	j.Set(func(s *job.Status) { s.Phase = job.PhaseCopying })
	tell()
	tell()
	if n := strings.Count(out.String(), "\n"); n != 3 {
		t.Errorf("%d lines with those of the copy", n)
	}
}
