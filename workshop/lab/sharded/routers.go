package sharded

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/millrace/millrace/workshop/lab/router"
)

// loopback is the only address on which anything listens.
const loopback = "127.0.0.1"

// routerAddress is where the nth router listens.
func (c *Cluster) routerAddress(n int) string {
	if c.opts.Port == 0 {
		return loopback + ":0"
	}
	return net.JoinHostPort(loopback, strconv.Itoa(c.opts.Port+n))
}

// StartRouter starts one more router, at an address of the loopback interface, or
// at that of one that was closed; empty is a free port. Stop closes it.
func (c *Cluster) StartRouter(ctx context.Context, address string) (*router.Router, error) {
	r, err := router.Start(ctx, router.Options{ConfigURI: c.ConfigURI(), Listen: address, Logger: c.log})
	if err != nil {
		return nil, fmt.Errorf("lab: start a router of %s: %w", c.Name(), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.IndexFunc(c.routers, func(old *router.Router) bool { return old.Host() == r.Host() }); i >= 0 {
		c.routers[i] = r // it was closed
		return r, nil
	}
	c.routers = append(c.routers, r)
	return r, nil
}

// Routers are those that were started, in this order.
func (c *Cluster) Routers() []*router.Router {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.routers)
}

// URI is the connection string of the cluster: that of all its routers, with the
// root user; empty if there are none.
func (c *Cluster) URI() string {
	var hosts []string
	for _, r := range c.Routers() {
		hosts = append(hosts, r.Host())
	}
	if len(hosts) == 0 {
		return ""
	}
	return c.Config().RouterURI(hosts)
}
