package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/spawn"
)

// Launch is a cluster on its way up that will outlive its starter. It writes down
// every process as soon as that runs, before anything can go wrong. Its methods
// may be called concurrently.
type Launch struct {
	store *Store
	mu    sync.Mutex
	state *State
}

// Launch starts a cluster by a function that makes its replica sets by Part and
// other programs by Run, and ends them all when the function fails. Of the options
// it takes what the whole cluster has: the name, the topology, the version and the
// directory.
func (s *Store) Launch(ctx context.Context, o Options, start func(context.Context, *Launch) error) (*State, error) {
	if o.Proxy || o.Cores > 0 || o.DiskSpeed.Slow() {
		return nil, errors.New("lab: a cluster that outlives its starter cannot have proxies, processor quotas or slowed disks")
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
	// Name is that of the file for its output.
	Name string
	// Role is told in its state.
	Role string
	// Command is its path and arguments. The last one is its own, so that the
	// process is known by it.
	Command []string
}

// Run starts a program that outlives this process, waits until it has written its
// first line, which is where it listens, and returns that.
func (l *Launch) Run(ctx context.Context, p Program) (string, error) {
	out := filepath.Join(l.state.Dir, p.Name+".out")
	cmd := spawn.Command(p.Command[0], p.Command[1:]...)
	cmd.Dir = l.state.Dir
	proc, err := startProcess(cmd, out, true, nil)
	if err != nil {
		return "", fmt.Errorf("lab: start %s: %w", p.Name, err)
	}
	id, err := identify(proc.pid, p.Command[len(p.Command)-1])
	if err != nil {
		return "", errors.Join(err, proc.kill())
	}
	at, err := l.add(MemberState{Role: p.Role, Log: out, Process: id})
	if err != nil {
		return "", errors.Join(err, proc.kill())
	}
	host, err := firstLine(ctx, proc, out)
	if err != nil {
		return "", errors.Join(fmt.Errorf("lab: wait for %s: %w", p.Name, err), proc.kill())
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

// firstLine waits for the first line of a program's output.
func firstLine(ctx context.Context, p *process, out string) (line string, err error) {
	err = Poll(ctx, 10*time.Millisecond, func() (bool, error) {
		running := p.running() // before what it said is read
		data, err := os.ReadFile(out)
		if err != nil {
			return false, err
		}
		first, _, whole := bytes.Cut(data, []byte("\n"))
		if !running {
			return false, fmt.Errorf("it ended: %s", tailOf(string(data), 2000))
		}
		line = string(first)
		return whole, nil
	})
	return line, err
}
