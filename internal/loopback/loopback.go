// Package loopback tells what is on this machine alone.
package loopback

import (
	"net"
	"net/netip"
	"strings"
)

// Host reports whether a host, with a port or without, names this machine's
// loopback interface.
func Host(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.Unmap().IsLoopback()
}

// Addr reports whether only this machine can reach what listens there.
func Addr(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
