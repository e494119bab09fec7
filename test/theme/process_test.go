package theme

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/replicate"
	"github.com/millrace/millrace/internal/server"
)

// process is a running millrace.
type process struct {
	cmd    *exec.Cmd
	out    output
	done   chan struct{}
	rec    server.Registry
	client *server.Client
}

func startProcess(bin, state string, args []string) (*process, error) {
	p := &process{cmd: exec.Command(bin, args...), done: make(chan struct{}), rec: server.Registry{Dir: filepath.Join(state, "millrace", "run")}} //nolint:noctx // ended by kill
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+state)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// code is the exit code of one that has ended.
func (p *process) code() int { return p.cmd.ProcessState.ExitCode() }

func (p *process) signal(ctx context.Context, s os.Signal) error {
	_ = p.cmd.Process.Signal(s)
	select {
	case <-p.done:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("the process does not end on %s", s)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// api is the process's control API, nil while it has none.
func (p *process) api(ctx context.Context) *server.Client {
	if p.client == nil {
		rec, err := p.rec.Find(ctx, "", "")
		if err != nil || rec.PID != p.cmd.Process.Pid {
			return nil
		}
		p.client = server.NewClient(rec.Address, rec.Token)
	}
	return p.client
}

func (p *process) status(ctx context.Context) (s replicate.Status, ok bool) {
	c := p.api(ctx)
	if c == nil {
		return s, false
	}
	s, err := c.Status(ctx)
	return s, err == nil
}

// errEnded says that the process ended by itself; errStuck that it does not go on.
var (
	errEnded = errors.New("the job has ended")
	errStuck = errors.New("the job does not go on")
)

// until waits for a condition of the status.
func (p *process) until(ctx context.Context, what string, reached func(replicate.Status) bool) error {
	deadline := time.Now().Add(patience)
	for {
		s, ok := p.status(ctx)
		if ok && reached(s) {
			return nil
		}
		if p.ended() {
			return errEnded
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w to %s within %s: phase %s, it waits for %q", errStuck, what, patience, s.Phase, s.Waiting)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-p.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func phaseNo(phase string) int {
	return slices.Index([]string{"starting", "catalog", "creating", "copying", "indexing", "overlap", "following", "finalizing", "finalized"}, phase)
}

// reach waits for a phase.
func (p *process) reach(ctx context.Context, phase string) error {
	return p.until(ctx, "phase "+phase, func(s replicate.Status) bool { return phaseNo(string(s.Phase)) >= phaseNo(phase) })
}

type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) tail(lines int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := strings.Split(strings.TrimSpace(strings.ToValidUTF8(o.b.String(), "?")), "\n")
	all = all[max(0, len(all)-lines):]
	for i, l := range all {
		all[i] = fmt.Sprintf("%.600s", l)
	}
	return strings.Join(all, "\n")
}
