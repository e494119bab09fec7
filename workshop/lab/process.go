package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/spawn"
)

// stopGrace is how long a clean shutdown may take before it is forced.
const stopGrace = 60 * time.Second

// Child is a command that was started, and who waits for its end.
type Child struct {
	done chan struct{} // closed when it has ended and was waited for
	err  error         // how it ended; read only after done
}

// Done is closed when the child has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Wait waits for the child's end and returns how it ended.
func (c *Child) Wait() error {
	<-c.done
	return c.err
}

// StartChild starts a command that dies with this process, where the system can
// see to that. The terminal's Ctrl-C does not reach it: its end is the starter's
// business.
func StartChild(cmd *exec.Cmd) (*Child, error) { return startChild(cmd, false, nil) }

// startChild starts a child that, detached, outlives this process.
//
// The kernel ties "kill the child when the parent dies" to the thread that
// forked, so one locked goroutine starts the child and stays with it until it
// has ended. That goroutine ends with the child; whoever starts a process
// ends it and waits on done.
//
// confine, if there is one, is called on that thread before: what it does to
// the thread the child inherits, and nothing else.
func startChild(cmd *exec.Cmd, detached bool, confine func() error) (*Child, error) {
	cmd.SysProcAttr = childAttr(detached)
	c := &Child{done: make(chan struct{})}
	started := make(chan error)
	run := func() {
		var err error
		if confine != nil {
			err = confine()
		}
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			c.err = cmd.Wait()
			close(c.done)
		}
	}
	if confine != nil {
		onOwnThread(run)
	} else {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			run()
		}()
	}
	return c, <-started
}

// onOwnThread runs a goroutine on a thread that ends with it, which is never
// the first one of this process: that one cannot end.
func onOwnThread(do func()) {
	go func() {
		runtime.LockOSThread()
		if !onFirstThread() {
			do()
			return // locked, so that the thread ends
		}
		defer runtime.UnlockOSThread()
		others := make(chan struct{})
		onOwnThread(func() {
			close(others)
			do()
		})
		<-others // until then this thread is taken
	}()
}

// process is one running server, or its guard.
type process struct {
	*Child
	pid int
}

// startProcess starts a command with its output in the file outName.
func startProcess(cmd *exec.Cmd, outName string, detached bool, confine func() error) (*process, error) {
	out, err := os.OpenFile(outName, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close() // the child has its own copy
	cmd.Stdout, cmd.Stderr = out, out
	c, err := startChild(cmd, detached, confine)
	if err != nil {
		return nil, err
	}
	return &process{Child: c, pid: cmd.Process.Pid}, nil
}

// running reports whether the process has not ended yet.
func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// signal sends a signal unless the process has ended.
func (p *process) signal(sig syscall.Signal) error {
	if !p.running() {
		return nil
	}
	// Not yet waited for or just now: the pid cannot belong to another
	// process before done is closed, but may do so right after.
	if err := syscall.Kill(p.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("lab: signal process %d: %w", p.pid, err)
	}
	return nil
}

// kill ends the process at once and waits for its end.
func (p *process) kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// terminate asks the process to end, by a signal, waits, and kills it when it does not.
func (p *process) terminate(how syscall.Signal, grace time.Duration) error {
	if err := p.signal(how); err != nil {
		return err
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
	}
	if err := p.kill(); err != nil {
		return err
	}
	return fmt.Errorf("lab: process %d did not end within %s and was killed", p.pid, grace)
}

// launch is what a mongod is started with.
type launch struct {
	path     string
	env      []string
	args     []string
	outName  string // file for what it writes before it has a log
	logName  string
	detached bool
	confine  func() error // see startChild
}

// startMongod starts a mongod.
func startMongod(l launch) (*process, error) {
	cmd := spawn.Command(l.path, l.args...)
	cmd.Env = append(cmd.Env, l.env...)
	cmd.Dir = filepath.Dir(l.outName)
	p, err := startProcess(cmd, l.outName, l.detached, l.confine)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", l.path, err)
	}
	return p, nil
}

// waitListening waits until a mongod listens. Its log tells, from the offset
// on: a connection could be answered by another process on the same port, and
// to try to listen there would take the port from the mongod itself.
func (p *process) waitListening(ctx context.Context, l launch, logged int64) error {
	err := Poll(ctx, 10*time.Millisecond, func() (bool, error) {
		if !p.running() {
			return false, endedEarly(p, l)
		}
		return logSays(l.logName, logged, "waiting for connections"), nil
	})
	if err != nil {
		return fmt.Errorf("wait for mongod to listen: %w", err)
	}
	return nil
}

// exitAddressInUse is how mongod (4.2 to 7.0) exits when it cannot listen.
const exitAddressInUse = 48

// endedEarly explains the end of a mongod that never listened.
func endedEarly(p *process, l launch) error {
	var exit *exec.ExitError
	if errors.As(p.err, &exit) && exit.ExitCode() == exitAddressInUse {
		return errPortTaken
	}
	out, err := os.ReadFile(l.outName)
	if err != nil {
		out = nil
	}
	return fmt.Errorf("mongod ended (%w): %w", p.err, explainOutput(tailOf(string(out), 2000)))
}

// fileSize is the size of a file, 0 if there is none.
func fileSize(name string) int64 {
	info, err := os.Stat(name)
	if err != nil {
		return 0
	}
	return info.Size()
}

// logSays reports whether a log holds a text, in any case of letters, after the offset.
func logSays(name string, offset int64, text string) bool {
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	data, err := io.ReadAll(io.NewSectionReader(f, offset, 1<<20))
	return err == nil && bytes.Contains(bytes.ToLower(data), []byte(text))
}
