package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/verify"
	clitest "github.com/millrace/millrace/test/cli"
	"github.com/millrace/millrace/test/jobtest"
)

// fakeJob stands for the engine where only the commands are looked at.
type fakeJob struct {
	*jobtest.Job
	plan    job.Plan
	planErr error
	runErr  error
	differ  []string

	started   chan struct{} // closed when Run begins
	finalized chan struct{} // closed by Finalize; nil ends Run at once
	fails     chan error    // ends Run
	closed    atomic.Bool
}

func newFakeJob() *fakeJob {
	f := &fakeJob{
		Job: jobtest.New(job.Status{Phase: job.PhaseFollowing, Follow: job.FollowStatus{Applied: "7:1", Source: "7:1"}}),
		plan: job.Plan{Job: "orders", Mode: job.ModeAll,
			Checks: precheck.List{{Name: "versions", Level: precheck.OK, Message: "fine"}}},
		started: make(chan struct{}), finalized: make(chan struct{})}
	f.CancelFails = &job.Refusal{Code: job.CodeNotWanted, Text: "nobody has asked"}
	f.OnFinalize = func(ctx context.Context) error {
		close(f.finalized)
		for f.Status().Phase != job.PhaseFinalized {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Millisecond):
			}
		}
		return nil
	}
	return f
}

func (f *fakeJob) Plan(context.Context) (*job.Plan, error) { return &f.plan, f.planErr }

func (f *fakeJob) Run(ctx context.Context) error {
	close(f.started)
	if f.runErr != nil {
		return f.runErr
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-f.fails:
		return err
	case <-f.finalized:
	}
	f.Set(func(s *job.Status) { s.Phase, s.Differences = job.PhaseFinalized, f.differ })
	return nil
}

func (f *fakeJob) Close() { f.closed.Store(true) }

// bench is a command line in a world of its own.
type bench struct {
	t              *testing.T
	app            *app
	stdout, stderr *clitest.Output
	env            map[string]string
	spec           job.Spec
}

func newBench(t *testing.T, j *fakeJob) *bench {
	t.Helper()
	b := &bench{t: t, env: map[string]string{"XDG_STATE_HOME": t.TempDir()}}
	b.app = &app{
		Program: cli.Program{
			Name:      name,
			LookupEnv: func(name string) (string, bool) { v, ok := b.env[name]; return v, ok },
			Foreign:   strings.Fields(workshopVariables),
			Columns:   func() int { return 80 },
		},
		screen: func() *screen { return nil },
		open: func(_ context.Context, spec job.Spec) (syncJob, error) {
			b.spec = spec
			if j == nil {
				return nil, mongo.WithHint(errors.New("source: nobody answers"), "start it")
			}
			return j, nil
		},
	}
	return b
}

// line is the command line where no engine is needed.
func line(set func(*cli.Program)) clitest.Line {
	a := newApp()
	a.screen = func() *screen { return nil }
	set(&a.Program)
	return clitest.Line{Root: a.rootCommand, Run: a.run}
}

// run executes a command line and returns its exit code; what it printed is
// in stdout and stderr.
func (b *bench) run(ctx context.Context, args ...string) int {
	a := *b.app
	b.stdout, b.stderr = new(clitest.Output), new(clitest.Output)
	a.Stdout, a.Stderr = b.stdout, b.stderr
	return a.run(ctx, args)
}

// other runs a second command while the first is under way.
func (b *bench) other(args ...string) (code int, stdout, stderr string) {
	second := &bench{t: b.t, app: b.app}
	code = second.run(b.t.Context(), args...)
	return code, second.stdout.String(), second.stderr.String()
}

func uris() []string { return []string{"sync", "--source=mongodb://a", "--target=mongodb://b"} }

func with(args ...string) []string { return append(uris(), args...) }

func TestUsageErrors(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"frobnicate"}, []string{`millrace: unknown command "frobnicate"`, "hint: see millrace --help"}},
		{[]string{"snyc"}, []string{"millrace: unknown command \"snyc\" for \"millrace\"\n" +
			"hint: did you mean sync? see millrace --help\n"}},
		{[]string{"jobs", "lst"}, []string{"hint: did you mean list? see millrace jobs --help"}},
		{[]string{"sync", "--dryrun"}, []string{"unknown flag: --dryrun\n" +
			"hint: did you mean --dry-run? see millrace sync --help"}},
		{[]string{"seed", "sink"}, []string{`unknown command "sink" for "millrace seed"`}},
		{[]string{"sync", "--frobnicate"}, []string{"unknown flag", "hint: see millrace sync --help"}},
		{[]string{"sync", "surplus"}, []string{`millrace sync takes no argument: "surplus"`}},
		{[]string{"deadletters", "show"}, []string{"no dead letter is given",
			"hint: see millrace deadletters show --help"}},
		{[]string{"sync", "--readers=x"}, []string{"invalid argument"}},
		{[]string{"sync"}, []string{"2 settings", "source is missing", "MILLRACE_SOURCE", "target is missing"}},
		{with("--mode=x", "--until=y"), []string{`mode "x"`, `until "y"`}},
		{[]string{"verify", "--source=mongodb://a"}, []string{"target is missing", "hint: see millrace verify --help"}},
		{[]string{"status", "--interval=1ns", "--watch"}, []string{"interval"}},
		{[]string{"version", "--output=xml"}, []string{"xml"}},
	} {
		b := newBench(t, nil)
		if code := b.run(t.Context(), c.args...); code != cli.ExitUsage {
			t.Errorf("%v: code %d", c.args, code)
		}
		for _, w := range c.want {
			if !strings.Contains(b.stderr.String(), w) {
				t.Errorf("%v: %q is not in\n%s", c.args, w, b.stderr)
			}
		}
		if n := strings.Count(b.stderr.String(), "millrace: "); n != 1 {
			t.Errorf("%v: told %d times", c.args, n)
		}
	}
}

func TestSyncThatCannotConnect(t *testing.T) {
	b := newBench(t, nil)
	if code := b.run(t.Context(), uris()...); code != cli.ExitUsage {
		t.Errorf("code %d", code)
	}
	if got := b.stderr.String(); !strings.HasSuffix(got, "\nmillrace: source: nobody answers\nhint: start it\n") {
		t.Errorf("%q", got)
	}
}

func TestSettingsReachTheJob(t *testing.T) {
	b := newBench(t, newFakeJob())
	file := filepath.Join(t.TempDir(), "sync.yaml")
	if err := os.WriteFile(file, []byte("target: mongodb://u:hidden@b\nsync:\n  include: [x.*]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.env["MILLRACE_SOURCE"] = "mongodb://u:hidden@a"
	if code := b.run(t.Context(), "sync", "--config="+file, "--dry-run", "--job=orders"); code != cli.ExitOK {
		t.Fatalf("code %d: %s", code, b.stderr)
	}
	if b.spec.Source != "mongodb://u:hidden@a" || b.spec.Target != "mongodb://u:hidden@b" ||
		b.spec.Rules.Include[0] != "x.*" || b.spec.Log == nil {
		t.Errorf("%+v", b.spec)
	}
	if got := b.stderr.String(); !strings.Contains(got, "chmod 600") || strings.Contains(got, "hidden") {
		t.Errorf("%s", got)
	}
}

func TestPasswordInFlagIsWarnedOf(t *testing.T) {
	b := newBench(t, newFakeJob())
	if code := b.run(t.Context(), "sync", "--source=mongodb://u:hidden@a", "--target=mongodb://b",
		"--dry-run"); code != cli.ExitOK {
		t.Fatalf("code %d", code)
	}
	if got := b.stderr.String(); !strings.Contains(got, "MILLRACE_SOURCE") || strings.Contains(got, "hidden") ||
		strings.Contains(b.stdout.String(), "hidden") {
		t.Errorf("%s", got)
	}
}

func failing() *fakeJob {
	j := newFakeJob()
	j.plan.Checks = append(j.plan.Checks,
		precheck.Check{Name: "target collections", Level: precheck.Fail, Message: "shop.users exists",
			Hint: "use --on-existing"},
		precheck.Check{Name: "privileges", Level: precheck.Fail, Message: "may not write", Hint: "grant a role"})
	return j
}

func TestDryRun(t *testing.T) {
	j := newFakeJob()
	j.plan.Collections = []precheck.Collection{{Source: "shop.users", Target: "shop2.users", Type: "collection", Docs: 12,
		Bytes: 3400, Indexes: 2}}
	b := newBench(t, j)
	if code := b.run(t.Context(), with("--dry-run")...); code != cli.ExitOK {
		t.Errorf("code %d", code)
	}
	for _, w := range []string{"orders", "shop.users", "shop2.users", "12", "3.40 kB", "versions", "fine"} {
		if !strings.Contains(b.stdout.String(), w) {
			t.Errorf("%q is not in\n%s", w, b.stdout)
		}
	}
	b = newBench(t, failing())
	if code := b.run(t.Context(), with("--dry-run", "--output=json")...); code != cli.ExitUsage {
		t.Errorf("code %d", code)
	}
	var p job.Plan
	if err := json.Unmarshal([]byte(b.stdout.String()), &p); err != nil || len(p.Checks) != 3 {
		t.Errorf("%v: %s", err, b.stdout)
	}
	if !strings.Contains(b.stderr.String(), "2 checks failed") {
		t.Errorf("%s", b.stderr)
	}
}

func TestFailedPrecheckRunsNothing(t *testing.T) {
	j := failing()
	b := newBench(t, j)
	if code := b.run(t.Context(), uris()...); code != cli.ExitUsage {
		t.Errorf("code %d", code)
	}
	for _, w := range []string{"shop.users exists", "hint: use --on-existing", "may not write", "hint: grant a role",
		"nothing was written"} {
		if !strings.Contains(b.stderr.String(), w) {
			t.Errorf("%q is not in\n%s", w, b.stderr)
		}
	}
	select {
	case <-j.started:
		t.Error("the job ran")
	default:
	}
	if !j.closed.Load() {
		t.Error("the job stays open")
	}
}

func TestPrecheckThatFailsInBetween(t *testing.T) {
	j := newFakeJob()
	j.runErr = &job.PrecheckError{Plan: &failing().plan}
	b := newBench(t, j)
	if code := b.run(t.Context(), uris()...); code != cli.ExitUsage || b.stdout.String() != "" {
		t.Errorf("code %d, %s", code, b.stdout)
	}
}

// start runs a sync until the returned function says how it ended.
func start(t *testing.T, ctx context.Context, b *bench, j *fakeJob, args ...string) (wait func() int) {
	t.Helper()
	codes := make(chan int, 1)
	go func() { codes <- b.run(ctx, args...) }()
	select {
	case <-j.started:
	case code := <-codes:
		t.Fatalf("ended early with %d: %s", code, b.stderr)
	}
	return func() int { return <-codes }
}

func TestControlOfARunningSync(t *testing.T) {
	j := newFakeJob()
	b := newBench(t, j)
	report := filepath.Join(t.TempDir(), "report.json")
	wait := start(t, t.Context(), b, j, with("--report="+report, "--output=json")...)

	j.Set(func(s *job.Status) { s.Capture = job.CaptureStreams })
	if code, out, stderr := b.other("status"); code != cli.ExitOK || !strings.Contains(out, "following") ||
		!strings.Contains(out, "change-streams") {
		t.Errorf("status: %d %s %s", code, out, stderr)
	}
	if code, out, _ := b.other("pause"); code != cli.ExitOK ||
		!strings.Contains(out, "orders: paused (paused, following, applied up to 7:1, ") {
		t.Errorf("pause: %d %s", code, out)
	}
	if code, out, _ := b.other("status", "--output=json", "--job=orders"); code != cli.ExitOK ||
		!strings.Contains(out, `"paused": true`) || !strings.Contains(out, `"capture": "change-streams"`) {
		t.Errorf("status: %d %s", code, out)
	}
	if code, out, _ := b.other("resume", "--output=json"); code != cli.ExitOK ||
		!strings.Contains(out, `"paused": false`) {
		t.Errorf("resume: %d %s", code, out)
	}
	if code, out, _ := b.other("throttle", "--source-load=low"); code != cli.ExitOK ||
		!strings.Contains(out, "no limit; load: source low, target normal (running, following, ") {
		t.Errorf("throttle: %d %s", code, out)
	}
	if code, out, _ := b.other("status"); code != cli.ExitOK || !strings.Contains(out, "source low, target normal") {
		t.Errorf("status: %d %s", code, out)
	}
	if code, _, stderr := b.other("throttle", "--target-load=heavy"); code == cli.ExitOK ||
		!strings.Contains(stderr, "target-load") {
		t.Errorf("throttle: %d %s", code, stderr)
	}
	if code, _, stderr := b.other("status", "--job=users"); code != cli.ExitFailure ||
		!strings.Contains(stderr, "orders at http://127.0.0.1:") {
		t.Errorf("another job: %d %s", code, stderr)
	}
	if code, _, stderr := b.other("finalize", "--cancel"); code != cli.ExitUsage ||
		!strings.Contains(stderr, "nobody has asked") {
		t.Errorf("cancel: %d %s", code, stderr)
	}
	if code, _, stderr := b.other("finalize", "--cancel", "--when-caught-up"); code != cli.ExitUsage ||
		!strings.Contains(stderr, "--when-caught-up") {
		t.Errorf("cancel: %d %s", code, stderr)
	}
	if code, out, stderr := b.other("finalize"); code != cli.ExitOK || !strings.Contains(out, "orders: finalized at 7:1") {
		t.Errorf("finalize: %d %s %s", code, out, stderr)
	}
	if code := wait(); code != cli.ExitOK {
		t.Errorf("sync: %d %s", code, b.stderr)
	}
	for name, text := range map[string]string{"standard output": b.stdout.String(), "report": read(t, report)} {
		var sum summary
		if err := json.Unmarshal([]byte(text), &sum); err != nil || !sum.Finalized ||
			sum.Status.Phase != job.PhaseFinalized || sum.Plan == nil {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
	}
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"status", cli.ExitOK, "finalized"},
		{"status --watch --output=json", cli.ExitOK, `"state": "finished"`},
		{"finalize", cli.ExitOK, "orders: already finalized at 20"},
		{"finalize --cancel", cli.ExitUsage, "cannot take back finalize of job orders: it was finalized at 20"},
		{"pause", cli.ExitUsage, "cannot pause job orders: it was finalized at 20"},
		{"resume --output=json", cli.ExitUsage, `"state": "finished"`},
		{"throttle --max-rate-docs=1", cli.ExitUsage, "cannot throttle job orders"},
		{"status --job=users", cli.ExitFailure, "no sync runs"},
	} {
		if code, out, stderr := b.other(strings.Fields(c.args)...); code != c.code || !strings.Contains(out+stderr, c.want) {
			t.Errorf("%s after the end: %d %s%s", c.args, code, out, stderr)
		}
	}
}

func TestWatchedToTheEnd(t *testing.T) {
	j := newFakeJob()
	b := newBench(t, j)
	wait := start(t, t.Context(), b, j, uris()...)
	watcher := &bench{t: t, app: b.app}
	watched := make(chan int, 1)
	watcher.stdout, watcher.stderr = new(clitest.Output), new(clitest.Output)
	a := *b.app
	a.Stdout, a.Stderr = watcher.stdout, watcher.stderr
	go func() {
		watched <- a.run(t.Context(), []string{"status", "--watch", "--interval=100ms", "--output=json"})
	}()
	for strings.Count(watcher.stdout.String(), "\n") < 2 {
		time.Sleep(time.Millisecond)
	}
	// While it finalizes, the watcher sees its phase or its end.
	if code, _, stderr := b.other("finalize"); code != cli.ExitOK {
		t.Errorf("finalize: %d %s", code, stderr)
	}
	if code := wait(); code != cli.ExitOK {
		t.Errorf("sync: %d", code)
	}
	if code := <-watched; code != cli.ExitOK {
		t.Errorf("watch: %d %s", code, watcher.stderr)
	}
	var st jobStatus
	for line := range strings.Lines(watcher.stdout.String()) {
		st = jobStatus{}
		if err := json.Unmarshal([]byte(line), &st); err != nil {
			t.Errorf("%v: %s", err, line)
		}
	}
	if st.State != service.Finished {
		t.Errorf("last seen: %+v", st)
	}
}

// TestWatchedToItsFailure: whoever watches a sync learns why it failed, also after its process has ended.
func TestWatchedToItsFailure(t *testing.T) {
	j := newFakeJob()
	b := newBench(t, j)
	j.fails = make(chan error)
	wait := start(t, t.Context(), b, j, uris()...)
	var watched sync.WaitGroup
	watched.Go(func() {
		if code, _, stderr := b.other("status", "--watch", "--interval=100ms"); code != cli.ExitFailure ||
			!strings.Contains(stderr, "out of the oplog") {
			t.Errorf("watch: %d %s", code, stderr)
		}
	})
	j.fails <- mongo.WithHint(errors.New("the position fell out of the oplog"), "begin anew with --restart")
	if code := wait(); code != cli.ExitFailure {
		t.Errorf("sync: %d", code)
	}
	watched.Wait()
	if code, _, stderr := b.other("status"); code != cli.ExitFailure ||
		!strings.Contains(stderr, "job orders has failed: the position fell out of the oplog\nhint: begin anew") {
		t.Errorf("status: %d %s", code, stderr)
	}
}

func TestSyncOnATerminal(t *testing.T) {
	j := newFakeJob()
	b := newBench(t, j)
	m := newTerminal(t, 60, 15)
	b.app.screen = m.screen
	wait := start(t, t.Context(), b, j, uris()...)
	if code, _, stderr := (&bench{t: t, app: &app{Program: cli.Program{Name: name, LookupEnv: b.app.LookupEnv},
		screen: func() *screen { return nil }}}).other("finalize"); code != cli.ExitOK {
		t.Errorf("finalize: %d %s", code, stderr)
	}
	if code := wait(); code != cli.ExitOK {
		t.Errorf("sync: %d", code)
	}
	if got := m.all(); !strings.Contains(got, "job runs") || strings.Contains(got, "orders: following") {
		t.Errorf("the block stays, or the log is lost:\n%s", got)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestDifferencesAreAFailure(t *testing.T) {
	j := newFakeJob()
	j.differ = []string{"shop.users: index a_1: missing"}
	b := newBench(t, j)
	wait := start(t, t.Context(), b, j, uris()...)
	if code, out, stderr := b.other("finalize"); code != cli.ExitFailure || !strings.Contains(out, "index a_1") ||
		!strings.Contains(stderr, "differs") {
		t.Errorf("finalize: %d %s %s", code, out, stderr)
	}
	if code := wait(); code != cli.ExitFailure ||
		!strings.Contains(b.stdout.String(), "differs: shop.users: index a_1: missing") {
		t.Errorf("sync: %d %s", code, b.stdout)
	}
}

func TestVerifyAfterSync(t *testing.T) {
	for _, same := range []bool{true, false} {
		j := newFakeJob()
		close(j.finalized)
		b := newBench(t, j)
		b.app.verify = func(_ context.Context, s verify.Spec) (*verify.Report, error) {
			if s.Source != "mongodb://a" || !s.Online || s.Rules.Include[0] != "x" {
				t.Errorf("%+v", s)
			}
			return &verify.Report{Same: same, Count: 3}, nil
		}
		code := b.run(t.Context(), with("--verify", "--include=x", "--until=caught-up")...)
		if want := map[bool]int{true: cli.ExitOK, false: cli.ExitFailure}[same]; code != want {
			t.Errorf("same %v: code %d, %s", same, code, b.stderr)
		}
		if strings.Contains(b.stdout.String(), "nothing differs") != same ||
			strings.Contains(b.stderr.String(), "the clusters differ: 3 documents") == same {
			t.Errorf("same %v:\n%s%s", same, b.stdout, b.stderr)
		}
	}
}

func TestSignalKeepsTheCheckpoint(t *testing.T) {
	j := newFakeJob()
	b := newBench(t, j)
	ctx, cancel := context.WithCancelCause(t.Context())
	wait := start(t, ctx, b, j, uris()...)
	cancel(cli.Stopped{Signal: syscall.SIGTERM})
	if code := wait(); code != cli.ExitOK || !strings.Contains(b.stderr.String(), "its checkpoint is kept") {
		t.Errorf("code %d: %s", code, b.stderr)
	}
	if !strings.Contains(b.stdout.String(), "ended in phase following") {
		t.Errorf("no summary: %s", b.stdout)
	}
	entries, err := os.ReadDir(filepath.Join(b.env["XDG_STATE_HOME"], "millrace", "run"))
	if err != nil || len(entries) != 0 {
		t.Errorf("a record stays: %v, %v", entries, err)
	}
}

func TestRunThatFails(t *testing.T) {
	j := newFakeJob()
	j.runErr = mongo.WithHint(errors.New("the position fell out of the oplog"), "begin anew with --restart")
	b := newBench(t, j)
	if code := b.run(t.Context(), with("--output=json")...); code != cli.ExitFailure {
		t.Errorf("code %d", code)
	}
	var sum struct {
		summary
		Hint string
	}
	if err := json.Unmarshal([]byte(b.stdout.String()), &sum); err != nil || sum.Finalized ||
		sum.Hint != "begin anew with --restart" {
		t.Errorf("%v: %s", err, b.stdout)
	}
	if !strings.HasSuffix(b.stderr.String(),
		"millrace: the position fell out of the oplog\nhint: begin anew with --restart\n") {
		t.Errorf("%s", b.stderr)
	}
}

func TestBusyAddressWritesNothing(t *testing.T) {
	j, k := newFakeJob(), newFakeJob()
	b := newBench(t, j)
	wait := start(t, t.Context(), b, j, with("--listen=127.0.0.1:0")...)
	_, out, _ := b.other("status", "--output=json")
	_, stderr, _ := strings.Cut(b.stderr.String(), "control=")
	address, _, _ := strings.Cut(stderr, "\n")
	address = server.HostPort(address)
	second := newBench(t, k)
	if code := second.run(t.Context(), with("--listen="+address)...); code != cli.ExitUsage ||
		!strings.Contains(second.stderr.String(), "--listen") {
		t.Errorf("code %d: %s%s", code, second.stderr, out)
	}
	if second.spec.Source != "" {
		t.Error("the clusters were asked before the address")
	}
	select {
	case <-k.started:
		t.Error("the second job ran")
	default:
	}
	if code, _, _ := b.other("finalize", "--address="+address); code != cli.ExitOK {
		t.Errorf("finalize by address: %d", code)
	}
	wait()
}

// The commands find a sync that listens with TLS, whoever its certificate is for;
// one that knows no record asks for the authority.
func TestControlOverTLS(t *testing.T) {
	example := httptest.NewTLSServer(nil)
	example.Close()
	pair := example.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	if err := errors.Join(os.WriteFile("cert.pem",
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}), 0o600),
		os.WriteFile("key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o644)); err != nil {
		t.Fatal(err)
	}
	j := newFakeJob()
	b := newBench(t, j)
	b.env["MILLRACE_TOKEN"] = "0123456789abcdef"
	wait := start(t, t.Context(), b, j,
		with("--listen=127.0.0.1:0", "--listen-tls-cert=cert.pem", "--listen-tls-key=key.pem")...)
	_, logged, _ := strings.Cut(b.stderr.String(), "control=")
	address, _, _ := strings.Cut(logged, "\n")
	if !strings.HasPrefix(address, "https://") || !strings.Contains(b.stderr.String(), "chmod 600 key.pem") {
		t.Errorf("%s", b.stderr)
	}
	t.Chdir(t.TempDir()) // commands are given where they like
	b.env["MILLRACE_TOKEN"] = ""
	if code, _, stderr := b.other("status"); code != cli.ExitOK {
		t.Errorf("by record: %d %s", code, stderr)
	}
	b.env["MILLRACE_TOKEN"], b.env["XDG_STATE_HOME"] = "0123456789abcdef", t.TempDir()
	if code, _, stderr := b.other("status", "--address="+address); code != cli.ExitFailure ||
		!strings.Contains(stderr, "--ca-file") {
		t.Errorf("by address: %d %s", code, stderr)
	}
	if code, _, stderr := b.other("finalize", "--address="+address, "--ca-file=nowhere.pem"); code != cli.ExitUsage ||
		!strings.Contains(stderr, "nowhere.pem") {
		t.Errorf("without the file: %d %s", code, stderr)
	}
	close(j.finalized)
	if code := wait(); code != cli.ExitOK {
		t.Errorf("sync: %d", code)
	}
}

func TestVerifyCommand(t *testing.T) {
	for _, c := range []struct {
		name   string
		report verify.Report
		err    error
		code   int
		want   []string
	}{
		{"same", verify.Report{Same: true, Collections: []verify.Collection{{NS: "a.b", TargetNS: "a.b", SourceDocs: 7,
			TargetDocs: 7}}}, nil, cli.ExitOK, []string{"a.b", "nothing differs"}},
		{"different", verify.Report{Count: 30, Differences: []verify.Difference{{NS: "a.b", Kind: verify.Missing}},
			Schema: []verify.SchemaDifference{{NS: "a.b", What: "index x_1", Detail: "source has it"}}}, nil, cli.ExitFailure,
			[]string{"missing: a.b", "index x_1", "and 29 documents more",
				"millrace: the clusters differ: 30 documents, 1 difference"}},
		{"failed", verify.Report{}, mongo.WithHint(errors.New("cut off"), "again"), cli.ExitTrouble,
			[]string{"millrace: cut off", "hint: again"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, nil)
			b.app.verify = func(_ context.Context, s verify.Spec) (*verify.Report, error) {
				if !s.Online || s.Recheck.For != time.Minute || s.Workers != 3 {
					t.Errorf("%+v", s)
				}
				s.Observe(func() verify.Stats { return verify.Stats{} })
				return &c.report, c.err
			}
			if code := b.run(t.Context(), "verify", "--source=mongodb://a", "--target=mongodb://b",
				"--workers=3"); code != c.code {
				t.Errorf("code %d", code)
			}
			for _, w := range c.want {
				if !strings.Contains(b.stdout.String()+b.stderr.String(), w) {
					t.Errorf("%q is not in\n%s%s", w, b.stdout, b.stderr)
				}
			}
		})
	}
}

func TestVersion(t *testing.T) {
	b := newBench(t, nil)
	if code := b.run(t.Context(), "version"); code != cli.ExitOK || !strings.HasPrefix(b.stdout.String(), "millrace ") {
		t.Errorf("%d %s", code, b.stdout)
	}
}

func TestCompletion(t *testing.T) {
	b := newBench(t, nil)
	if code := b.run(t.Context(), "completion", "bash"); code != cli.ExitOK ||
		!strings.Contains(b.stdout.String(), "millrace") {
		t.Errorf("%d", code)
	}
}
