package lab

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

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
