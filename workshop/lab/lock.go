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

// lockPoll is how often a taken lock is tried again: flock cannot be waited
// for together with a context.
const lockPoll = 50 * time.Millisecond

// lockFile takes an exclusive lock on a file, which it creates, and returns
// the function that gives it back. The kernel frees it when the process dies.
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

// Poll calls check until it says true, fails, or ctx ends. The error of an
// ended ctx carries nothing but itself; callers add what they waited for.
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

// TempDir is a temporary directory whose owner holds a lock in it. A process
// that was killed cannot remove its directory, but the kernel frees its lock,
// so that the next one sees which directories are left over.
type TempDir struct {
	path   string
	unlock func()
}

// parent is the directory of the temporary ones: MILLRACE_LAB_DIR, such as one
// in memory, where servers wait for no disk, or else the system's.
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
	// The lock is taken under another name first: a lock file that can be seen
	// is always held, unless its owner is dead.
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

// removeLeftOvers deletes temporary directories whose owner has died. It does
// what it can: another process may be at the same, or another user own them.
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

// Free ports are taken from below the range that Linux uses for outgoing
// connections (32768 and up), so that the port of a killed member is not gone
// when it starts again.
const (
	lowestPort  = 20000
	highestPort = 32000
)

// leases keeps ports for a process of the lab while what listened on them is
// down: another lab on the machine, another test binary say, chooses others.
// The kernel ends the leases of a process that died. Ports that somebody asked
// for by number are not leased. Not for concurrent use.
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

// portFree reports whether a port can be listened on.
func portFree(port int) bool {
	l, err := net.Listen("tcp", hostPort(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// listen listens on a port that was free a moment ago. A process that is just
// being started holds copies of this one's sockets until it runs, of those that
// were closed meanwhile too.
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
