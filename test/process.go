package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service/api"
	"github.com/millrace/millrace/test/clock"
)

// BuildMillrace builds the program under test into a temporary directory. It is
// MILLRACE_TEST_PROGRAM, with -race MILLRACE_TEST_PROGRAM_RACE, with -tags failpoint
// MILLRACE_TRIAL_PROGRAM, where that is set: make test builds them.
func BuildMillrace(t *testing.T, args ...string) string {
	t.Helper()
	made := map[string]string{"": "MILLRACE_TEST_PROGRAM", "-race": "MILLRACE_TEST_PROGRAM_RACE",
		"-tags failpoint": "MILLRACE_TRIAL_PROGRAM"}
	if bin := os.Getenv(made[strings.Join(args, " ")]); bin != "" {
		return bin
	}
	bin := t.TempDir() + "/millrace"
	args = append([]string{"build", "-o", bin}, args...)
	out, err := exec.CommandContext(t.Context(), "go", append(args, "github.com/millrace/millrace/cmd/millrace")...).
		CombinedOutput()
	if err != nil {
		t.Fatalf("build millrace: %v\n%s", err, out)
	}
	return bin
}

// Process is a running millrace. It is killed at the end of the test.
type Process struct {
	t       *testing.T
	bin     string
	cmd     *exec.Cmd
	running server.Registry // where it says how to reach it
	out     lockedBuffer
	done    chan struct{}
	err     error
	peak    int64
}

// Start runs the program with its own state directory.
func Start(t *testing.T, bin string, args ...string) *Process {
	t.Helper()
	return StartWith(t, nil, bin, args...)
}

// StartWith is Start with more in the environment.
func StartWith(t *testing.T, env []string, bin string, args ...string) *Process {
	t.Helper()
	return start(t, env, bin, args, (*exec.Cmd).Start)
}

// StartClocked is StartWith with a wall clock that the test may set. It skips the test
// where there can be none.
func StartClocked(t *testing.T, env []string, bin string, args ...string) (p *Process, c *clock.Clock) {
	t.Helper()
	p = start(t, env, bin, args, func(cmd *exec.Cmd) (err error) {
		if c, err = clock.Start(cmd); errors.Is(err, clock.ErrNone) {
			t.Skip(err)
		}
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	return p, c
}

func start(t *testing.T, env []string, bin string, args []string, begin func(*exec.Cmd) error) *Process {
	t.Helper()
	p := &Process{t: t, bin: bin, done: make(chan struct{})}
	p.cmd = exec.Command(bin, args...) //nolint:noctx // ended by Kill
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	state := t.TempDir()
	p.cmd.Env = append(append(os.Environ(), env...), "XDG_STATE_HOME="+state)
	p.running = server.Registry{Dir: filepath.Join(state, "millrace", "run")}
	if err := begin(p.cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.watch()
		close(p.done)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			p.tell()
		}
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

// tell logs what the process printed and, where it still runs, what its goroutines wait
// for, which ends it.
func (p *Process) tell() {
	printed := p.Output()
	p.t.Logf("%s printed:\n%s", p.bin, printed[max(0, len(printed)-8<<10):])
	select {
	case <-p.done:
		return
	default:
	}
	_ = p.cmd.Process.Signal(syscall.SIGQUIT)
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
	}
	stacks := p.Output()[len(printed):]
	p.t.Logf("its goroutines:\n%s", stacks[:min(len(stacks), 48<<10)])
}

// Command runs another command of the program, such as status, that finds this
// process. It returns what that printed.
func (p *Process) Command(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, p.bin, args...)
	cmd.Env = p.cmd.Env
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("millrace %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

// Status is what the process says of its job; its zero value while the process
// does not answer. Tests ask often: no command is started for it.
func (p *Process) Status(ctx context.Context) job.Status {
	rec, err := p.running.Find(ctx, server.Wanted{})
	if err != nil {
		return job.Status{} // it starts or ends
	}
	c := api.NewRecordClient(rec)
	defer c.Close()
	j, err := c.Job(ctx, rec.Job)
	if err != nil {
		return job.Status{}
	}
	return *j.Report.Status
}

// Finalize asks the process to finalize as soon as it can, and waits for that.
func (p *Process) Finalize(ctx context.Context) error {
	rec, err := p.running.Find(ctx, server.Wanted{})
	if err != nil {
		return err
	}
	c := api.NewRecordClient(rec)
	defer c.Close()
	_, err = c.Finalize(ctx, rec.Job, true)
	return err
}

// Pid is the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// PeakMemory is the largest resident memory so far in bytes, 0 after the end and where the system does not say.
func (p *Process) PeakMemory() (peak int64) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(raw), "VmHWM:")
	_, _ = fmt.Sscan(rest, &peak)
	return peak << 10
}

// Children are the ids of the processes that a process has started and that run.
func Children(pid int) (children []int) {
	threads, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	for _, name := range threads {
		raw, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended
		}
		for _, text := range strings.Fields(string(raw)) {
			if child, err := strconv.Atoi(text); err == nil {
				children = append(children, child)
			}
		}
	}
	return children
}

// ExitCode is that of the process, after its end.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// watch waits for the process and keeps its peak memory.
func (p *Process) watch() {
	p.err = p.cmd.Wait()
	if u, ok := p.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		p.peak = u.Maxrss << 10 // Linux counts in KiB
	}
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Output is what the process has printed so far.
func (p *Process) Output() string { return p.out.String() }

// Peak is the largest resident memory in bytes, after the end.
func (p *Process) Peak() int64 { return p.peak }

// CPU is the processor time used, after the end.
func (p *Process) CPU() time.Duration {
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}

// Killed reports that the process was ended by SIGKILL, as a failpoint does it, too.
func (p *Process) Killed() bool {
	select {
	case <-p.done:
		how, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
		return ok && how.Signaled() && how.Signal() == syscall.SIGKILL
	default:
		return false
	}
}

// Kill sends SIGKILL and waits. A process that failed before is fatal.
func (p *Process) Kill() {
	p.t.Helper()
	select {
	case <-p.done:
		if p.err != nil && !p.Killed() {
			p.t.Fatalf("millrace ended by itself: %v\n%s", p.err, p.Output())
		}
	default:
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// Freeze stops the process where it is (SIGSTOP).
func (p *Process) Freeze() { _ = p.cmd.Process.Signal(syscall.SIGSTOP) }

// Interrupt asks for a graceful end and waits for it.
func (p *Process) Interrupt() {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(2 * time.Minute):
		p.t.Fatalf("millrace did not end on SIGTERM\n%s", p.Output())
	}
}

// Wait waits for the end and returns how it ended.
func (p *Process) Wait(limit time.Duration) error {
	select {
	case <-p.done:
		return p.err
	case <-time.After(limit):
		return fmt.Errorf("still running after %s\n%s", limit, p.Output())
	}
}

// phaseOrder numbers the phases of a checkpoint.
func phaseOrder(phase string) int {
	for i, p := range []string{"catalog", "creating", "copying", "indexing", "overlap", "following", "finalizing",
		"finalized"} {
		if p == phase {
			return i
		}
	}
	return -1
}

// AwaitPhase waits until the checkpoint of a job says that it is in the phase
// or past it, or the process has ended well.
func (p *Process) AwaitPhase(target *mongo.Client, live, phase string) {
	p.t.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	for time.Now().Before(deadline) {
		var doc struct{ Phase string }
		err := target.Database("millrace").Collection("jobs").FindOne(p.t.Context(), bson.D{{Key: "_id", Value: live}}).
			Decode(&doc)
		if err == nil && phaseOrder(doc.Phase) >= phaseOrder(phase) {
			if doc.Phase != phase {
				p.t.Logf("waited for phase %s, the job is in %s", phase, doc.Phase)
			}
			return
		}
		select {
		case <-p.done:
			if p.err != nil {
				p.t.Fatalf("millrace ended before phase %s: %v\n%s", phase, p.err, p.Output())
			}
			return
		case <-time.After(8 * time.Millisecond):
		}
	}
	p.t.Fatalf("phase %s was not reached\n%s", phase, p.Output())
}

// Megabytes shows a size for logs.
func Megabytes(n int64) string { return strconv.FormatInt(n>>20, 10) + " MB" }

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String is what was written so far.
func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.ToValidUTF8(l.b.String(), "?")
}
