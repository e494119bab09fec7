package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/api"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/service/operate"
	"github.com/millrace/millrace/internal/state/deadletter"
	clitest "github.com/millrace/millrace/test/cli"
	"github.com/millrace/millrace/test/hubtest"
)

// serviceBench is a service without a worker, and the commands that ask it.
type serviceBench struct {
	t    *testing.T
	hub  *hub.Hub
	view *hub.View
	url  string
	env  map[string]string
}

func newServiceBench(t *testing.T) *serviceBench {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	b := &serviceBench{t: t}
	b.hub, b.view = hubtest.Start(t, time.Minute)
	a, err := api.New(api.Options{Desk: &operate.Desk{Hub: b.hub, View: b.view, Now: time.Now},
		Tokens: api.OneToken("op", "right"), Log: log, Loopback: true, Ready: b.hub.Ready})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	b.url = s.URL
	b.env = map[string]string{"MILLRACE_SERVER": s.URL, "MILLRACE_TOKEN": "right"}
	return b
}

// expect runs a command and wants its exit code, and texts in what it prints.
func (b *serviceBench) expect(code int, line string, texts ...string) string {
	b.t.Helper()
	return b.expectIn(b.t.Context(), code, line, texts...)
}

func (b *serviceBench) expectIn(ctx context.Context, code int, line string, texts ...string) string {
	b.t.Helper()
	var out, errs clitest.Output
	a := newApp()
	a.Stdout, a.Stderr = &out, &errs
	a.screen = func() *screen { return nil }
	a.Environ, a.LookupEnv = nil, func(name string) (string, bool) { v, ok := b.env[name]; return v, ok }
	if got := a.run(ctx, strings.Fields(line)); got != code {
		b.t.Errorf("%s: exit code %d, want %d\n%s%s", line, got, code, &out, &errs)
	}
	for _, w := range texts {
		if !strings.Contains(out.String()+errs.String(), w) {
			b.t.Errorf("%s: no %q in\n%s%s", line, w, &out, &errs)
		}
	}
	return out.String()
}

// report has a worker say how a job stands, and waits until that is seen.
func (b *serviceBench) report(name string, r service.Report) {
	b.t.Helper()
	r.UID, r.Run, r.Worker, r.At = b.view.Job(name).Definition.UID, "r1", "w1", time.Now().UTC()
	if err := b.hub.Jobs.Report(b.t.Context(), name, &r); err != nil {
		b.t.Fatal(err)
	}
	b.until(func() bool { j := b.view.Job(name); return j.Report != nil && j.Report.At.Equal(r.At) })
}

func (b *serviceBench) until(holds func() bool) {
	b.t.Helper()
	for {
		changed, _ := b.view.Changed()
		if holds() {
			return
		}
		select {
		case <-changed:
		case <-b.t.Context().Done():
			b.t.Fatal("it does not happen")
		}
	}
}

// TestJobsOfAService: a job from its definition to its end, by the command line.
func TestJobsOfAService(t *testing.T) {
	b := newServiceBench(t)
	file := filepath.Join(t.TempDir(), "orders.yaml")
	put := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("source: env:A\ntarget: env:B\n")
	b.expect(cli.ExitOK, "jobs list", "has no job")
	b.expect(cli.ExitOK, "jobs create --name orders --label dc=east -f "+file, "orders: created (waiting)")
	b.expect(cli.ExitOK, "jobs create --name orders --label dc=east -f "+file, "orders: exists already")
	put("source: env:A\ntarget: mongodb://u:hidden@b/\nmoed: all\n")
	b.expect(cli.ExitUsage, "jobs create --name orders -f "+file, "line 3", "line 2", "password")
	put("source: env:A\ntarget: env:C\n")
	b.expect(cli.ExitUsage, "jobs create --name orders -f "+file, "there is another job", "hint:")
	b.expect(cli.ExitUsage, "jobs create --name a/b -f "+file, "not a name of a job")
	b.expect(cli.ExitUsage, "jobs create --name a -f "+file+"x", "no such file")
	b.expect(cli.ExitUsage, "jobs create --name a --label x -f "+file, "key=value")
	b.until(func() bool { return b.view.Job("orders") != nil })

	b.expect(cli.ExitOK, "pause --job orders", "orders: will pause (paused)")
	b.expect(cli.ExitOK, "resume --job orders", "orders: will resume")
	b.expect(cli.ExitUsage, "pause --job none", `there is no job "none"`)
	b.expect(cli.ExitUsage, "throttle --job orders", "max-rate-docs is missing")
	b.expect(cli.ExitUsage, "throttle --job orders --max-rate-bytes lots", "not an amount of bytes")
	b.expect(cli.ExitUsage, "throttle --job orders --source-load lots", "lots")
	b.expect(cli.ExitOK, "throttle --job orders --max-rate-bytes 20MB --source-load low",
		"limits changed: at most 20 MB a second; load: source low, target normal")
	if d, err := b.hub.Jobs.Definition(t.Context(), "orders"); err != nil || d.Desired.Limits.Bytes != 20e6 ||
		d.Desired.Loads.Source != "low" || d.Desired.Loads.Target != "normal" {
		t.Errorf("%+v %v", d, err)
	}

	if _, err := b.hub.Leases.Take(t.Context(), hub.Control("orders"),
		service.Lease{Worker: "w1", Run: "r1"}); err != nil {
		t.Fatal(err)
	}
	st := &job.Status{Job: "orders", Phase: job.PhaseCopying, CannotFinalize: "it copies"}
	b.report("orders", service.Report{State: service.Running, Status: st})
	b.until(func() bool { j := b.view.Job("orders"); return j.State() == service.Running })
	b.expect(cli.ExitOK, "jobs list", "orders", "running, copying", "w1", "0%")
	b.expect(cli.ExitOK, "jobs show", "orders", "dc=east", "by op")
	b.expect(cli.ExitUsage, "finalize --job orders", "it copies")
	b.expect(cli.ExitUsage, "finalize --job orders --cancel", "nobody has asked")
	b.expect(cli.ExitOK, "finalize --job orders --when-caught-up",
		"is to be finalized (running, copying, to be finalized)")
	b.expect(cli.ExitOK, "finalize --job orders --cancel", "taken back")
	b.expect(cli.ExitUsage, "finalize --job orders --cancel --wait", "cannot go with")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b.expectIn(ctx, cli.ExitFailure, "finalize --job orders --when-caught-up --wait")
	ended := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		b.until(func() bool { return b.view.Job("orders").Definition.Desired.Finalize })
		b.report("orders", service.Report{State: service.Finished, Status: &job.Status{Job: "orders",
			Phase: job.PhaseFinalized, FinalizedAt: &ended, TargetPosition: "7:1", Differences: []string{"an index"},
			Conflicts: progress.Conflicts{Stats: deadletter.Stats{Open: 1}}}})
	})
	b.expect(cli.ExitFailure, "finalize --job orders --when-caught-up --wait", "finalized at",
		"choose Reverse in the console, or POST to /api/v1/jobs/orders/reverse", "an index",
		"1 not on the target; see millrace deadletters list --job orders")
	waiting.Wait()
	b.expect(cli.ExitFailure, "finalize --job orders", "2026-05-01T12:00:00Z")
	b.expect(cli.ExitOK, "jobs show --job orders", "target position", "7:1", "2026-05-01T12:00:00Z")
	var j api.Job
	if err := json.Unmarshal([]byte(b.expect(cli.ExitOK, "jobs show --job orders --output json")), &j); err != nil ||
		j.State != service.Finished {
		t.Errorf("%+v %v", j, err)
	}
	b.expect(cli.ExitOK, "jobs remove --job orders", "will be removed")
}

// TestOneSetOfCommands: those of a running sync take a job of a service, too. Where a sync of
// this machine runs, the service of the environment is not meant.
func TestOneSetOfCommands(t *testing.T) {
	b := newServiceBench(t)
	file := filepath.Join(t.TempDir(), "orders.yaml")
	if err := os.WriteFile(file, []byte("source: env:A\ntarget: env:B\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.env["XDG_STATE_HOME"] = t.TempDir()
	b.expect(cli.ExitUsage, "status", "has 0 jobs")
	b.expect(cli.ExitOK, "jobs create --name orders -f "+file)
	b.until(func() bool { return b.view.Job("orders") != nil })
	var st jobStatus
	if err := json.Unmarshal([]byte(b.expect(cli.ExitOK, "status --output json")), &st); err != nil ||
		st.Name != "orders" || st.State != service.Waiting {
		t.Errorf("%+v %v", st, err)
	}
	b.expect(cli.ExitOK, "status --job orders", "orders", "waiting", "by op")
	b.expect(cli.ExitUsage, "status --job none", `there is no job "none"`)
	b.expect(cli.ExitOK, "pause --job orders", "orders: will pause (paused)")
	b.expect(cli.ExitOK, "resume --server "+b.url, "orders: will resume")
	b.expect(cli.ExitOK, "throttle --max-rate-docs 7 --job orders", "at most 7 documents a second")
	b.expect(cli.ExitUsage, "finalize --job orders", "it does not run")
	b.expect(cli.ExitUsage, "finalize --job orders --cancel", "nobody has asked")
	b.expect(cli.ExitUsage, "status --server "+b.url+" --address 127.0.0.1:1", "cannot go with --address")
	b.expect(cli.ExitUsage, "pause --server "+b.url+" --target mongodb://b", "cannot go with --address or --server")
	b.expect(cli.ExitUsage, "status --server mongodb://u:hidden@b", "server cannot be used")
	b.expect(cli.ExitFailure, "status --target mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=1", "127.0.0.1:1")
	b.expect(cli.ExitFailure, "status --server 127.0.0.1:1", "request to http://127.0.0.1:1")

	j := newFakeJob()
	own := newBench(t, j)
	own.env["XDG_STATE_HOME"] = b.env["XDG_STATE_HOME"]
	wait := start(t, t.Context(), own, j, uris()...)
	delete(b.env, "MILLRACE_TOKEN") // that of the service
	b.expect(cli.ExitOK, "pause", "orders: paused (paused, following, applied up to 7:1")
	b.expect(cli.ExitUsage, "pause --server "+b.url+" --job orders", "MILLRACE_TOKEN")
	_, stderr, _ := strings.Cut(own.stderr.String(), "control=")
	address, _, _ := strings.Cut(stderr, "\n")
	b.expect(cli.ExitOK, "jobs list --server "+address+" --token "+own.token(t), "orders", "paused")
	b.expect(cli.ExitOK, "finalize --server "+address, "orders: finalized at 7:1")
	if code := wait(); code != cli.ExitOK {
		t.Errorf("sync: %d %s", code, own.stderr)
	}
}

// token is that of the one sync that runs.
func (b *bench) token(t *testing.T) string {
	t.Helper()
	registry, err := server.NewRegistry(b.app.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	rec, err := registry.Find(t.Context(), server.Wanted{})
	if err != nil {
		t.Fatal(err)
	}
	return rec.Token
}

// TestFailedWhileItIsAwaited: the reason is the job's.
func TestFailedWhileItIsAwaited(t *testing.T) {
	b := newServiceBench(t)
	file := filepath.Join(t.TempDir(), "orders.yaml")
	if err := os.WriteFile(file, []byte("source: env:A\ntarget: env:B\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.expect(cli.ExitOK, "jobs create --name a -f "+file)
	b.until(func() bool { return b.view.Job("a") != nil })
	b.report("a", service.Report{State: service.Failed, Error: "no \x1b[2Jroom\nno time", Hint: "make some"})
	if out := b.expect(cli.ExitFailure, "finalize --job a --when-caught-up --wait", `no \u001b[2Jroom`,
		"make some"); strings.Contains(out, "\x1b") {
		t.Errorf("%q", out)
	}
	b.expect(cli.ExitOK, "jobs show --job a", `no \u001b[2Jroom `, "│ no time ")
	b.expect(cli.ExitFailure, "status --job a", "job a has failed: no \\u001b[2Jroom\nno time\nhint: make some")
}

// TestServiceOrTarget: one has to be named; a flag wins over the environment.
func TestServiceOrTarget(t *testing.T) {
	b := newServiceBench(t)
	b.expect(cli.ExitUsage, "jobs list --target mongodb://x/ --server "+b.url+"/", "both a service and a target")
	b.env["MILLRACE_TARGET"] = "mongodb://x:1/?serverSelectionTimeoutMS=1"
	b.expect(cli.ExitUsage, "jobs list", "both MILLRACE_SERVER and MILLRACE_TARGET are set")
	b.expect(cli.ExitOK, "jobs list --server "+b.url+"/", "has no job")
	b.expect(cli.ExitFailure, "jobs list --target mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=1", "127.0.0.1:1")
	b.env = map[string]string{}
	b.expect(cli.ExitUsage, "jobs list", "neither a service nor a target", "--server or --target")
	b.expect(cli.ExitUsage, "jobs remove --job a", "no service is given")
	b.expect(cli.ExitUsage, "jobs list --server "+b.url, "token is missing or wrong", "MILLRACE_TOKEN")
	b.expect(cli.ExitFailure, "jobs list --server 127.0.0.1:1", "check that millrace serve runs")
	b.expect(cli.ExitFailure, "jobs list --server "+strings.Replace(b.url, "http:", "https:", 1), "http://")
	b.expect(cli.ExitUsage, "jobs list --server "+b.url+" --ca-file /nothing", "certificate authority")
	b.env = map[string]string{"MILLRACE_SERVER": b.url, "MILLRACE_TOKEN": "right"}
	if out := b.expect(cli.ExitOK, "__complete pause --job "); !strings.Contains(out, ":4") {
		t.Errorf("%s", out)
	}
}
