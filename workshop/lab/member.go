package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// Member is one mongod of a cluster.
type Member struct {
	// Index of the member in the cluster, from 0.
	Index int
	// Port the mongod listens on.
	Port int
	// DBPath is the mongod's data directory.
	DBPath string

	cluster *Cluster
	dir     string
	proxy   *Proxy
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
	if err := errors.Join(how(p), m.freed()); err != nil {
		return fmt.Errorf("lab: end member %d of %s: %w", m.Index, m.cluster.Name(), err)
	}
	return nil
}

// Start starts the mongod again after Kill or Stop, on the same port and data,
// and waits until it is a primary or secondary (or serves, when standalone).
func (m *Member) Start(ctx context.Context) error {
	if err := m.launch(ctx); err != nil {
		return err
	}
	return m.cluster.waitMember(ctx, m.Index)
}

// launch starts the process and waits until it listens.
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

// startError is the error of a mongod that did not start.
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

// logTail returns the last lines of the log, without those about connections
// that came and went.
func (m *Member) logTail(lines int) []string {
	data, err := os.ReadFile(m.LogPath())
	if err != nil {
		return nil
	}
	telling := slices.DeleteFunc(strings.Split(strings.TrimSpace(string(data)), "\n"), func(line string) bool {
		frame := strings.Contains(line, `"msg":"Frame"`) || strings.Contains(line, `"msg":"BACKTRACE"`) // of a crash, whose cause comes before
		return strings.Contains(line, `"s":"I",  "c":"NETWORK"`) || strings.Contains(line, " I  NETWORK ") || frame
	})
	return telling[max(0, len(telling)-lines):]
}
