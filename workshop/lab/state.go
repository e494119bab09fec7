package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/spawn"
)

const (
	stateSuffix = ".json"
	lockSuffix  = ".lock"
	dataSuffix  = ".data"
)

// State describes a cluster that outlives the process that started it.
type State struct {
	Name     string        `json:"name"`               // Name of the cluster.
	Topology string        `json:"topology"`           // Topology as in Options.
	Version  string        `json:"version"`            // Version as in Options.
	URI      string        `json:"uri"`                // URI as of Cluster.URI.
	X509URI  string        `json:"x509_uri,omitempty"` // X509URI as of Cluster.X509URI.
	Dir      string        `json:"dir"`                // Dir has data, logs and certificates.
	KeepDir  bool          `json:"keep_dir"`           // KeepDir says that Down leaves Dir alone.
	Created  time.Time     `json:"created"`            // Created is when the cluster was started.
	Until    time.Time     `json:"until,omitzero"`     // Until is when the cluster ends by itself; zero is never.
	Members  []MemberState `json:"members"`            // Members of the cluster, routers included.
	// Guard is the process that ends the cluster in time, if there is one.
	Guard *Identity `json:"guard,omitempty"`
}

// MemberState is one member of a State.
type MemberState struct {
	Host    string   `json:"host"`           // Host is the member's host:port.
	Role    string   `json:"role,omitempty"` // Role is what it is started as in a sharded cluster: a Role, or "router".
	Log     string   `json:"log"`            // Log is the member's log file.
	Process Identity `json:"process"`        // Process is the member's mongod.
}

// Running counts the members that run.
func (s State) Running() int {
	n := 0
	for _, m := range s.Members {
		if m.Process.Running() {
			n++
		}
	}
	return n
}

// Store keeps the states of clusters that outlive their starter, a file each, and by default their data.
type Store struct{ dir string }

// NewStore returns a store in a directory, by default one in the user's cache directory.
func NewStore(dir string) (*Store, error) {
	if dir == "" {
		var err error
		if dir, err = cacheDir("lab"); err != nil {
			return nil, err
		}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("lab: find the state directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("lab: make the state directory: %w", err)
	}
	return &Store{dir: dir}, nil
}

// Up starts a cluster that runs until Down. Proxies, quotas and slowed disks live in their process and are refused.
func (s *Store) Up(ctx context.Context, o Options) (*State, error) {
	o, _, err := o.resolve()
	if err != nil {
		return nil, err
	}
	return s.Launch(ctx, o, func(ctx context.Context, l *Launch) error {
		o.Dir = l.Dir()
		c, err := Start(ctx, l.Part(o))
		if err != nil {
			return err
		}
		l.state.URI, l.state.X509URI = c.URI(), c.X509URI()
		return nil
	})
}

// makeRoom refuses a name in use and clears away what a reboot or crash left.
func (s *Store) makeRoom(ctx context.Context, name string) error {
	old, err := s.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if old.Running() > 0 {
		return fmt.Errorf("lab: cluster %s is up already; end it with: millrace-bench lab down --name %s", name, name)
	}
	return s.down(ctx, old)
}

// List returns all clusters, by name, those that no longer run included.
func (s *Store) List() ([]State, error) {
	files, err := filepath.Glob(s.path("*", stateSuffix))
	if err != nil {
		return nil, fmt.Errorf("lab: list clusters: %w", err)
	}
	slices.Sort(files)
	var states []State
	for _, file := range files {
		state, err := s.read(strings.TrimSuffix(filepath.Base(file), stateSuffix))
		if errors.Is(err, fs.ErrNotExist) {
			continue // ended meanwhile
		}
		if err != nil {
			return nil, err
		}
		states = append(states, *state)
	}
	return states, nil
}

// Down ends a cluster's processes and removes its data, unless it was started with a directory of its own.
func (s *Store) Down(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	unlock, err := lockFile(ctx, s.path(name, lockSuffix))
	if err != nil {
		return fmt.Errorf("lab: cluster %s: %w", name, err)
	}
	defer unlock()
	state, err := s.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("lab: no cluster %s; see: millrace-bench lab list", name)
	}
	if err != nil {
		return err
	}
	return s.down(ctx, state)
}

// down does Down for a caller that holds the lock.
func (s *Store) down(ctx context.Context, state *State) error {
	var grace time.Duration // data about to be removed need no clean shutdown
	if state.KeepDir {
		grace = stopGrace
	}
	var errs []error
	for _, m := range state.Members {
		errs = append(errs, m.Process.end(ctx, grace))
	}
	// The guard may be the caller.
	if state.Guard != nil && state.Guard.Pid != os.Getpid() {
		errs = append(errs, state.Guard.end(ctx, 0))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("lab: end cluster %s: %w", state.Name, err)
	}
	return s.discard(state.Name, state.KeepDir)
}

// SetGuard limits a cluster's life: it starts a detached command, which has to call Guard.
func (s *Store) SetGuard(state *State, limit time.Duration, command ...string) error {
	cmd := spawn.Command(command[0], command[1:]...)
	cmd.Dir = s.dir
	p, err := startProcess(cmd, filepath.Join(state.Dir, "guard.out"), true, nil)
	if err != nil {
		return fmt.Errorf("lab: start the guard of %s: %w", state.Name, err)
	}
	id, err := identify(p.pid, state.Name)
	if err != nil {
		return errors.Join(err, p.kill())
	}
	state.Guard, state.Until = &id, time.Now().Add(limit)
	return s.write(state)
}

// Guard waits for the limit and then ends the cluster.
func (s *Store) Guard(ctx context.Context, name string, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return s.Down(ctx, name)
	}
}

func (s *Store) path(name, suffix string) string { return filepath.Join(s.dir, name+suffix) }

func (s *Store) read(name string) (*State, error) {
	data, err := os.ReadFile(s.path(name, stateSuffix))
	if err != nil {
		return nil, fmt.Errorf("lab: read the state of %s: %w", name, err)
	}
	state := &State{}
	if err := json.Unmarshal(data, state); err != nil {
		return nil, fmt.Errorf("lab: read the state of %s: %w; remove %s", name, err, s.path(name, stateSuffix))
	}
	return state, nil
}

// write replaces a cluster's state.
func (s *Store) write(state *State) error {
	data, err := json.MarshalIndent(state, "", "  ")
	tmp := s.path(state.Name, ".new")
	if err == nil {
		err = os.WriteFile(tmp, data, 0o600)
	}
	if err == nil {
		err = os.Rename(tmp, s.path(state.Name, stateSuffix))
	}
	return Wrap(err, "lab: write the state of %s", state.Name)
}

// discard removes the rest of an ended cluster, but for the lock file: others may wait for it.
func (s *Store) discard(name string, keepDir bool) error {
	var errs []error
	if !keepDir {
		errs = append(errs, os.RemoveAll(s.path(name, dataSuffix)))
	}
	if err := os.Remove(s.path(name, stateSuffix)); !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return Wrap(errors.Join(errs...), "lab: remove cluster %s", name)
}

// Launch is a starting cluster that outlives its starter. Its methods may be called concurrently.
type Launch struct {
	store *Store
	mu    sync.Mutex
	state *State
}

// Launch starts a cluster by a function that makes its sets by Part and other programs by Run, and ends all when
// that fails. Of the options it takes name, topology, version and directory.
func (s *Store) Launch(ctx context.Context, o Options, start func(context.Context, *Launch) error) (*State, error) {
	if o.Proxy || o.Cores > 0 || o.DiskSpeed.Slow() {
		return nil,
			errors.New("lab: a cluster that outlives its starter cannot have proxies, processor quotas or slowed disks")
	}
	if err := checkName(o.Name); err != nil {
		return nil, err
	}
	unlock, err := lockFile(ctx, s.path(o.Name, lockSuffix))
	if err != nil {
		return nil, fmt.Errorf("lab: cluster %s: %w", o.Name, err)
	}
	defer unlock()
	if err := s.makeRoom(ctx, o.Name); err != nil {
		return nil, err
	}
	l := &Launch{store: s, state: &State{
		Name: o.Name, Topology: o.Topology, Version: o.Version, Dir: o.Dir, KeepDir: o.Dir != "", Created: time.Now(),
	}}
	if !l.state.KeepDir {
		l.state.Dir = s.path(o.Name, dataSuffix)
	}
	if l.state.Dir, err = filepath.Abs(l.state.Dir); err != nil {
		return nil, fmt.Errorf("lab: find the data directory: %w", err)
	}
	if err = start(ctx, l); err == nil {
		err = s.write(l.state)
	}
	if err != nil {
		return nil, errors.Join(err, s.down(context.WithoutCancel(ctx), l.state))
	}
	return l.state, nil
}

// Dir is the directory of the cluster.
func (l *Launch) Dir() string { return l.state.Dir }

// SetURI says how clients connect.
func (l *Launch) SetURI(uri string) { l.state.URI = uri }

// Part makes options those of a set whose processes outlive this one.
func (l *Launch) Part(o Options) Options {
	o.detached = true
	o.launched = l.record
	return o
}

// record writes down the processes of a set that has just been launched.
func (l *Launch) record(c *Cluster) error {
	var members []MemberState
	for _, m := range c.Members() {
		id, err := identify(m.Pid(), m.DBPath)
		if err != nil {
			return err
		}
		members = append(members, MemberState{Host: m.Host(), Role: string(c.opts.Role), Log: m.LogPath(), Process: id})
	}
	_, err := l.add(members...)
	return err
}

// Program is one that a cluster consists of beside its mongods.
type Program struct {
	Name string // Name is that of the file for its output.
	Role string // Role is reported in its state.
	// Command is its path and arguments. The last one is its own, so that the process is known by it.
	Command []string
}

// Run starts a program that outlives this process, and returns its first line, the address it listens on.
func (l *Launch) Run(ctx context.Context, p Program) (host string, err error) {
	out := filepath.Join(l.state.Dir, p.Name+".out")
	cmd := spawn.Command(p.Command[0], p.Command[1:]...)
	cmd.Dir = l.state.Dir
	proc, err := startProcess(cmd, out, true, nil)
	if err != nil {
		return "", fmt.Errorf("lab: start %s: %w", p.Name, err)
	}
	var at int
	id, err := identify(proc.pid, p.Command[len(p.Command)-1])
	if err == nil {
		at, err = l.add(MemberState{Role: p.Role, Log: out, Process: id})
	}
	if err == nil {
		host, err = firstLine(ctx, proc, out)
		err = Wrap(err, "lab: wait for %s", p.Name)
	}
	if err != nil {
		return "", errors.Join(err, proc.kill())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Members[at].Host = host
	return host, l.store.write(l.state)
}

// add writes down processes, and returns the first one's place.
func (l *Launch) add(members ...MemberState) (at int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at = len(l.state.Members)
	l.state.Members = append(l.state.Members, members...)
	return at, l.store.write(l.state)
}

func firstLine(ctx context.Context, p *process, out string) (line string, err error) {
	err = Poll(ctx, 10*time.Millisecond, func() (bool, error) {
		running := p.running() // before what it said is read
		data, err := os.ReadFile(out)
		if err != nil {
			return false, err
		}
		first, _, whole := bytes.Cut(data, []byte("\n"))
		if !running {
			return false, fmt.Errorf("the program ended: %s", tailOf(string(data), 2000))
		}
		line = string(first)
		return whole, nil
	})
	return line, err
}

// Identity names a process beyond doubt, also after its pid has gone to another one.
type Identity struct {
	Pid     int    `json:"pid"`     // Pid is the process id.
	Started uint64 `json:"started"` // Started is when the process started, in the kernel's clock ticks since boot.
	Mark    string `json:"mark"`    // Mark is an argument of its command line.
}

// identify takes down who a running process is; mark must be one of its arguments.
func identify(pid int, mark string) (Identity, error) {
	started, err := startTime(pid)
	if err != nil {
		return Identity{}, fmt.Errorf("lab: identify process %d: %w", pid, err)
	}
	return Identity{Pid: pid, Started: started, Mark: mark}, nil
}

// Running reports whether the process has not ended.
func (id Identity) Running() bool {
	if id.Pid <= 0 {
		return false
	}
	started, err := startTime(id.Pid)
	return err == nil && started == id.Started && hasArgument(id.Pid, id.Mark)
}

// end asks the process to end and waits; it kills it after grace, at once when grace is 0.
func (id Identity) end(ctx context.Context, grace time.Duration) error {
	if !id.Running() {
		return nil
	}
	if grace > 0 {
		if err := id.signal(syscall.SIGTERM); err != nil {
			return err
		}
		soft, cancel := context.WithTimeout(ctx, grace)
		defer cancel()
		if err := id.waitGone(soft); err == nil || ctx.Err() != nil {
			return err
		}
	}
	if err := id.signal(syscall.SIGKILL); err != nil {
		return err
	}
	return id.waitGone(ctx)
}

// waitGone waits until the process has released everything: its arguments go before its sockets.
func (id Identity) waitGone(ctx context.Context) error {
	err := Poll(ctx, 10*time.Millisecond, func() (bool, error) { return id.exited(), nil })
	return Wrap(err, "lab: wait for the end of process %d", id.Pid)
}
