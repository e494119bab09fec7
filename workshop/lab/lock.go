package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lockPoll is how often a taken lock is tried again: flock cannot be waited for together with a context.
const lockPoll = 50 * time.Millisecond

// lockFile locks a file, which it creates, and returns the unlock function. The kernel unlocks for a dead process.
func lockFile(ctx context.Context, name string) (func(), error) {
	var unlock func()
	err := Poll(ctx, lockPoll, func() (bool, error) {
		var err error
		unlock, err = tryLock(name)
		return unlock != nil, err
	})
	return unlock, Wrap(err, "lock %s", name)
}

// tryLock takes the lock if it is free; a nil function means it is taken.
func tryLock(name string) (func(), error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return func() { _ = f.Close() }, nil // closing gives the lock back
	}
	_ = f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, err
}

// Poll calls check until it returns true or an error, or ctx ends. Callers add what they waited for.
func Poll(ctx context.Context, every time.Duration, check func() (bool, error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if ok, err := check(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

const (
	tempPrefix = "millrace-lab-"
	ownerLock  = "owner.lock"
)

// TempDir is a temporary directory whose owner holds a lock in it. The kernel frees the lock of a killed process,
// so that others see which directories are left over.
type TempDir struct {
	path   string
	unlock func()
}

// parent is the directory of temporary ones: MILLRACE_LAB_DIR, in memory say, or the system's.
func parent() string {
	if dir := os.Getenv("MILLRACE_LAB_DIR"); dir != "" {
		return dir
	}
	return os.TempDir()
}

// NewTempDir makes a temporary directory and removes those left over.
func NewTempDir() (*TempDir, error) {
	removeLeftOvers()
	path, err := os.MkdirTemp(parent(), tempPrefix)
	if err != nil {
		return nil, fmt.Errorf("make a temporary directory: %w", err)
	}
	// A lock file that can be seen is locked unless its owner is dead: it gets its name after the lock.
	hidden := filepath.Join(path, ownerLock+".new")
	unlock, err := tryLock(hidden)
	if err == nil {
		err = os.Rename(hidden, filepath.Join(path, ownerLock))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock the temporary directory: %w", err), os.RemoveAll(path))
	}
	return &TempDir{path: path, unlock: unlock}, nil
}

// Path of the directory.
func (d *TempDir) Path() string { return d.path }

// Remove deletes the directory; a second call does nothing.
func (d *TempDir) Remove() error {
	if err := os.RemoveAll(d.path); err != nil {
		return fmt.Errorf("lab: remove the temporary directory: %w", err)
	}
	d.unlock()
	return nil
}

// removeLeftOvers deletes directories of dead owners, as far as it may.
func removeLeftOvers() {
	locks, _ := filepath.Glob(filepath.Join(parent(), tempPrefix+"*", ownerLock))
	for _, lock := range locks {
		if unlock, err := tryLock(lock); err == nil && unlock != nil {
			_ = os.RemoveAll(filepath.Dir(lock))
			unlock()
		}
	}
}

// loopback is the only address that anything in the lab listens on.
const loopback = "127.0.0.1"

// Free ports lie below Linux' range for outgoing connections (32768 and up), so that they stay free.
const (
	lowestPort  = 20000
	highestPort = 32000
)

// leases reserves ports for a process of the lab while nothing listens on them, against other labs. The kernel ends
// those of a dead process. Ports asked for by number are not leased. Not for concurrent use.
type leases struct{ unlocks []func() }

// release gives all ports back.
func (l *leases) release() {
	for _, unlock := range l.unlocks {
		unlock()
	}
	l.unlocks = nil
}

// free leases n ports that nothing listens on right now.
func (l *leases) free(n int) ([]int, error) {
	dir, err := cacheDir("ports")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("lab: make the directory of port leases: %w", err)
	}
	var ports []int
	for range 50 * (n + 1) {
		if len(ports) == n {
			break
		}
		port := lowestPort + rand.IntN(highestPort-lowestPort)
		unlock, err := tryLock(filepath.Join(dir, strconv.Itoa(port)))
		if err != nil {
			return nil, fmt.Errorf("lab: lease port %d: %w", port, err)
		}
		if unlock == nil {
			continue
		}
		l.unlocks = append(l.unlocks, unlock)
		if portFree(port) {
			ports = append(ports, port)
		}
	}
	if len(ports) < n {
		return nil, fmt.Errorf("lab: found no %d free ports between %d and %d", n, lowestPort, highestPort)
	}
	return ports, nil
}

func portFree(port int) bool {
	l, err := net.Listen("tcp", hostPort(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// listen listens on a port just freed: a process being started has copies of this one's sockets for a moment.
func listen(port int) (net.Listener, error) {
	const long, again = time.Second, 5 * time.Millisecond
	for end := time.Now().Add(long); ; time.Sleep(again) {
		l, err := net.Listen("tcp", hostPort(port))
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end) {
			return l, err
		}
	}
}

// hostPort is the loopback address with a port.
func hostPort(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

// errPortTaken means that another process took the port before mongod could.
var errPortTaken = errors.New("port is taken")

// choose returns n ports: consecutive ones from first, or free ones.
func (l *leases) choose(first, n int) ([]int, error) {
	if first == 0 {
		return l.free(n)
	}
	var ports []int
	for p := first; p < first+n; p++ {
		if !portFree(p) {
			return nil, fmt.Errorf("lab: port %d: %w; choose another with Port, or 0 for free ones", p, errPortTaken)
		}
		ports = append(ports, p)
	}
	return ports, nil
}
