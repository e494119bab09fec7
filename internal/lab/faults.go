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

// Rejoin ends Isolate.
func (c *Cluster) Rejoin(i int) error { return c.isolate(i, false) }

func (c *Cluster) isolate(i int, yes bool) error {
	if !c.opts.Proxy {
		return fmt.Errorf("lab: cluster %s has no proxies; start it with Options.Proxy", c.Name())
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
