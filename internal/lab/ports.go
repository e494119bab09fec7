package lab

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
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

// freePorts returns n different ports that nothing listens on right now.
func freePorts(n int) ([]int, error) {
	var ports []int
	taken := map[int]bool{}
	for range 50 * (n + 1) {
		if len(ports) == n {
			return ports, nil
		}
		p := lowestPort + rand.IntN(highestPort-lowestPort)
		if !taken[p] && portFree(p) {
			ports = append(ports, p)
		}
		taken[p] = true
	}
	if len(ports) == n {
		return ports, nil
	}
	return nil, fmt.Errorf("lab: found no %d free ports between %d and %d", n, lowestPort, highestPort)
}

// portFree tells whether a port can be listened on.
func portFree(port int) bool {
	l, err := net.Listen("tcp", hostPort(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// hostPort is the loopback address with a port.
func hostPort(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

// errPortTaken means that another process took the port before mongod could.
var errPortTaken = errors.New("port is taken")

// choosePorts returns n ports: consecutive ones from first, or free ones.
func choosePorts(first, n int) ([]int, error) {
	if first == 0 {
		return freePorts(n)
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
