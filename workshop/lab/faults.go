package lab

import (
	"fmt"
	"net"
)

// startProxies puts a proxy before each member, if the options want them.
func (c *Cluster) startProxies() (err error) {
	for i, port := range c.layout.Proxies {
		m := c.members[i]
		if m.proxy, err = newProxy(port, m.Host(), c.ownerOf, c.opts.PeerLatency); err != nil {
			return err
		}
	}
	return nil
}

// ownerOf reports which member made a connection to a proxy.
func (c *Cluster) ownerOf(conn net.Conn) int {
	var pids []int
	for _, m := range c.members {
		pids = append(pids, m.Pid())
	}
	return connectionOwner(conn, pids)
}

// Isolate cuts a member off from the other members in both directions; clients
// still reach it, and the others each other. A primary cut off so goes on for
// some seconds without noticing, and what it writes then will roll back.
func (c *Cluster) Isolate(i int) error { return c.isolate(i, true) }

// CanIsolate reports whether it can be told whose connections are. Those of servers that
// wine runs are its own server's.
func (c *Cluster) CanIsolate() bool { return c.opts.Proxy && !c.byWine() }

// Rejoin ends Isolate.
func (c *Cluster) Rejoin(i int) error { return c.isolate(i, false) }

func (c *Cluster) isolate(i int, yes bool) error {
	if !c.opts.Proxy {
		return fmt.Errorf("lab: cluster %s has no proxies; start it with Options.Proxy", c.Name())
	}
	if !c.CanIsolate() {
		return fmt.Errorf("lab: which member of cluster %s a connection comes from cannot be told, for wine runs them", c.Name())
	}
	for _, m := range c.members {
		if m.Index == i {
			continue
		}
		m.proxy.refuse(i, yes)
		c.members[i].proxy.refuse(m.Index, yes)
	}
	return nil
}
