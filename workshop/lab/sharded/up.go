package sharded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/millrace/millrace/workshop/lab"
)

// Up starts a cluster that runs on after the calling process has ended, until
// Store.Down, with routers that do so too: processes of the program, a millrace,
// as "lab router".
func Up(ctx context.Context, store *lab.Store, o Options, program string) (*lab.State, error) {
	o.Version = cmp.Or(o.Version, "6.0")
	named, err := newCluster(o) // has the name, and knows that the directory is fit
	if err != nil {
		return nil, err
	}
	ctx, cancel := withTimeout(ctx, startTimeout)
	defer cancel()
	return store.Launch(ctx, named.opts.Options, func(ctx context.Context, l *lab.Launch) error {
		c, err := newCluster(named.opts.inLaunch(l))
		if err != nil {
			return err
		}
		if err := c.start(ctx); err != nil {
			return errors.Join(fmt.Errorf("lab: start sharded cluster %s: %w", c.Name(), err), c.Stop())
		}
		defer c.leave()
		hosts, err := c.startPrograms(ctx, l, named, program)
		if err != nil {
			return errors.Join(err, c.Stop())
		}
		l.SetURI(c.Config().RouterURI(hosts))
		return nil
	})
}

// inLaunch makes options those of the servers alone, which outlive this process.
func (o Options) inLaunch(l *lab.Launch) Options {
	o.Dir, o.part = l.Dir(), l.Part
	if o.Port != 0 {
		o.Port += o.Routers
	}
	o.Routers = 0
	return o
}

// startPrograms starts the routers as processes of their own. They read the
// servers' password from a file, for a command line can be seen by everybody.
func (c *Cluster) startPrograms(ctx context.Context, l *lab.Launch, named *Cluster, program string) (hosts []string, err error) {
	for i := range named.opts.Routers {
		name := "router" + strconv.Itoa(i)
		file := filepath.Join(l.Dir(), name+".uri")
		if err := os.WriteFile(file, []byte(c.ConfigURI()), 0o600); err != nil {
			return nil, fmt.Errorf("lab: write the address of the config servers: %w", err)
		}
		host, err := l.Run(ctx, lab.Program{Name: name, Role: "router", Command: []string{
			program, "lab", "router", "--listen", named.routerAddress(i), "--config", file,
		}})
		if err != nil {
			return nil, err
		}
		hosts = append(hosts, host)
	}
	return hosts, nil
}

// leave ends the connections to servers that run on.
func (c *Cluster) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	for _, s := range append(c.sets(), c.config) {
		_ = s.client.Disconnect(ctx)
	}
}
