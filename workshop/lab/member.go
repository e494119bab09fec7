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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/spawn"
)

// Member is one mongod of a cluster.
type Member struct {
	Index  int    // Index of the member in the cluster, from 0.
	Port   int    // Port the mongod listens on.
	DBPath string // DBPath is the mongod's data directory.

	cluster *Cluster
	dir     string
	proxy   *Proxy
	front   Front // between the proxy and the mongod; nil without Options.Front
	disk    *Disk
	slow    *slowDisk    // of the process that was started last
	unlimit func() error // takes the processors' limit back; used with mu

	mu    sync.Mutex              // keeps Start, Stop and Kill apart
	proc  atomic.Pointer[process] // the last one started; read without mu, which a shutdown holds for long
	ended atomic.Bool             // by Stop or Kill, or about to be
}

// Host is the mongod's own host:port, never that of its proxy.
func (m *Member) Host() string { return hostPort(m.Port) }

// LogPath is the mongod's log file.
func (m *Member) LogPath() string { return filepath.Join(m.dir, "mongod.log") }

// Proxy is the fault proxy before the member, nil without Options.Proxy.
func (m *Member) Proxy() *Proxy { return m.proxy }

// publicHost is the address that clients and other members use.
func (m *Member) publicHost() string {
	if m.proxy != nil {
		return m.proxy.Addr()
	}
	if m.front != nil {
		return m.front.Host()
	}
	return m.Host()
}

// Pid is the process id, 0 while the member is down.
func (m *Member) Pid() int {
	p := m.proc.Load()
	if p == nil || !p.running() {
		return 0
	}
	return p.pid
}

// Crashed reports a mongod that has ended by itself.
func (m *Member) Crashed() bool {
	p := m.proc.Load()
	return p != nil && !m.ended.Load() && !p.running()
}

// Kill ends the mongod with SIGKILL, as a crash does, and waits for its end.
func (m *Member) Kill() error { return m.end((*process).kill) }

// Stop shuts the mongod down cleanly and waits for its end.
func (m *Member) Stop() error {
	how := syscall.SIGTERM
	if m.cluster.byWine() {
		how = syscall.SIGINT // the other would be its end at once
	}
	return m.end(func(p *process) error { return p.terminate(how, stopGrace) })
}

// end ends the process, if there is one, by the way given.
func (m *Member) end(how func(*process) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.proc.Load()
	if p == nil {
		return nil
	}
	m.ended.Store(true)
	return Wrap(errors.Join(how(p), m.freed()), "lab: end member %d of %s", m.Index, m.cluster.Name())
}

// Start starts the mongod again, on the same port and data, and waits until it is primary or secondary.
func (m *Member) Start(ctx context.Context) error {
	if err := m.launch(ctx); err != nil {
		return err
	}
	return m.cluster.waitMember(ctx, m.Index)
}

func (m *Member) launch(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Pid() != 0 {
		return nil
	}
	if err := os.MkdirAll(m.DBPath, 0o700); err != nil {
		return fmt.Errorf("lab: make the data directory: %w", err)
	}
	c := m.cluster
	l := launch{
		path: c.mongod, env: c.env, args: c.arguments(m),
		outName: filepath.Join(m.dir, "mongod.out"), logName: m.LogPath(), detached: c.opts.detached,
	}
	if c.opts.DiskSpeed.Slow() {
		m.slow = newSlowDisk(c.opts.DiskSpeed)
		l.confine = m.slow.confine
	}
	logged := fileSize(l.logName)
	p, err := startMongod(l)
	if err != nil {
		return m.explain(err)
	}
	m.proc.Store(p)
	m.ended.Store(false)
	if err := m.limit(p.pid); err != nil {
		return errors.Join(err, p.kill(), m.freed())
	}
	if err := p.waitListening(ctx, l, logged); err != nil {
		return errors.Join(m.explain(err), p.kill(), m.freed())
	}
	c.log.Debug("mongod started", "cluster", c.Name(), "member", m.Index, "port", m.Port, "pid", p.pid)
	return nil
}

// explain adds the end of the log to the error of a mongod that did not start.
func (m *Member) explain(err error) error {
	err = fmt.Errorf("member %d, port %d: %w", m.Index, m.Port, err)
	if errors.Is(err, errPortTaken) {
		return err
	}
	if tail := m.logTail(10); len(tail) > 0 {
		return &startError{err, tail}
	}
	return err
}

type startError struct {
	err error
	log []string // its last lines
}

func (e *startError) Error() string { return strings.Join(e.Lines(), "\n") }
func (e *startError) Unwrap() error { return e.err }

// Lines are the error and those of the log.
func (e *startError) Lines() []string {
	return append([]string{e.err.Error() + "; its log ends with:"}, e.log...)
}

// logTail returns the last lines of the log, without those about connections that came and went.
func (m *Member) logTail(lines int) []string {
	data, err := os.ReadFile(m.LogPath())
	if err != nil {
		return nil
	}
	telling := slices.DeleteFunc(strings.Split(strings.TrimSpace(string(data)), "\n"), func(line string) bool {
		// of a crash, whose cause comes before
		frame := strings.Contains(line, `"msg":"Frame"`) || strings.Contains(line, `"msg":"BACKTRACE"`)
		return strings.Contains(line, `"s":"I",  "c":"NETWORK"`) || strings.Contains(line, " I  NETWORK ") || frame
	})
	return telling[max(0, len(telling)-lines):]
}

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

// StartChild starts a command that dies with this process where the system can do that. Ctrl-C does not reach it.
func StartChild(cmd *exec.Cmd) (*Child, error) { return startChild(cmd, false, nil) }

// startChild starts a child that, detached, outlives this process. The kernel ties the death signal to the forking
// thread, so one locked goroutine starts the child and stays until it has ended. confine, unless nil, is called on
// that thread before.
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

// onOwnThread runs a goroutine on a thread that ends with it; the first one of a process cannot end.
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
	// Until done is closed the pid cannot belong to another process.
	if err := syscall.Kill(p.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("lab: signal process %d: %w", p.pid, err)
	}
	return nil
}

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

func startMongod(l launch) (*process, error) {
	cmd := spawn.Command(l.path, l.args...)
	cmd.Env = append(cmd.Env, l.env...)
	cmd.Dir = filepath.Dir(l.outName)
	p, err := startProcess(cmd, l.outName, l.detached, l.confine)
	return p, Wrap(err, "start %s", l.path)
}

// waitListening waits until a mongod listens, by its log from the offset on: another process could answer on the
// port, and listening there would take it from the mongod.
func (p *process) waitListening(ctx context.Context, l launch, logged int64) error {
	err := Poll(ctx, 10*time.Millisecond, func() (bool, error) {
		if !p.running() {
			return false, endedEarly(p, l)
		}
		return logSays(l.logName, logged, "waiting for connections"), nil
	})
	return Wrap(err, "wait for mongod to listen")
}

// exitAddressInUse is how mongod (4.2 to 7.0) exits when it cannot listen.
const exitAddressInUse = 48

// endedEarly explains the end of a mongod that never listened.
func endedEarly(p *process, l launch) error {
	var exit *exec.ExitError
	if errors.As(p.err, &exit) && exit.ExitCode() == exitAddressInUse {
		return errPortTaken
	}
	out, _ := os.ReadFile(l.outName) // without it there is less to explain
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
