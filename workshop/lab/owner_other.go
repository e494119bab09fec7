//go:build !linux

package lab

import "net"

// connectionOwner cannot tell who made a connection here.
func connectionOwner(net.Conn, []int) int { return client }
