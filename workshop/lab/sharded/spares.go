package sharded

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/router"
)

// shared is what a cluster was when it started.
type shared struct {
	key      string // of its options
	settings string // of its sets
	routers  []*router.Router
}

// startShared starts a cluster for a test or takes a spare one.
func startShared(ctx context.Context, o Options) (*Cluster, error) {
	checked, topo, err := o.check()
	if err != nil {
		return nil, err
	}
	own := o.RefuseDirect || o.Name != "" || o.Dir != "" || o.Port != 0 || o.Auth || o.TLS || o.Proxy || o.PeerLatency > 0 ||
		o.DiskMB != 0 || o.Cores > 0 || o.DiskSpeed.Slow() || topo.members != 1 || checked.ConfigMembers != 1
	if own || !lab.CanShare() {
		return Start(ctx, o)
	}
	key, err := checked.Options.Key()
	if err != nil {
		return nil, err
	}
	key += " " + strconv.Itoa(o.Routers)
	if c, err := lab.TakeSpare(ctx, key); c != nil || err != nil {
		old, _ := c.(*Cluster)
		return old, err
	}
	c, err := Start(ctx, o)
	if err != nil {
		return nil, err
	}
	settings, err := c.settings(ctx)
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	c.shared = &shared{key, settings, c.Routers()}
	return c, nil
}

// putBack keeps a cluster for other tests if they may use it, and else stops it.
func (c *Cluster) putBack() error {
	down := func(s *lab.Cluster) bool { return s.Members()[0].Pid() == 0 }
	if c.shared == nil || slices.ContainsFunc(append(c.Shards(), c.Config()), down) {
		return c.Stop()
	}
	return lab.PutSpare(c.shared.key, c)
}

// Directories are the members' temporary ones.
func (c *Cluster) Directories() (dirs []string) {
	for _, s := range append(c.Shards(), c.Config()) {
		dirs = append(dirs, s.Directories()...)
	}
	return dirs
}

// settings are those of all sets, by name.
func (c *Cluster) settings(ctx context.Context) (string, error) {
	var out strings.Builder
	for _, s := range append(c.sets(), c.config) {
		settings, err := s.Settings(ctx)
		if err != nil {
			return "", err
		}
		out.WriteString(s.name + settings)
	}
	return out.String(), nil
}

// Renew empties a cluster of ForTest. It fails when a test has changed more than data.
func (c *Cluster) Renew(ctx context.Context) error {
	now, err := c.settings(ctx)
	if err != nil {
		return err
	}
	if now != c.shared.settings || len(c.gone) > 0 || !slices.Equal(c.Routers(), c.shared.routers) {
		return fmt.Errorf("lab: use %s again: a test has changed the cluster", c.Name())
	}
	r, err := router.Start(ctx, router.Options{ConfigURI: c.ConfigURI()})
	if err != nil {
		return err
	}
	err = errors.Join(c.dropAll(ctx, r.URI()), r.Close())
	for _, s := range c.Shards() { // what has no owner
		if err == nil {
			err = s.Empty(ctx)
		}
	}
	return err
}

// dropAll drops all databases through a router.
func (c *Cluster) dropAll(ctx context.Context, uri string) (err error) {
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		return fmt.Errorf("lab: connect to a router: %w", err)
	}
	defer func() { err = errors.Join(err, client.Disconnect(context.WithoutCancel(ctx))) }()
	for _, s := range append(c.sets(), c.config) {
		if err := s.command(ctx, bson.D{{Key: "killAllSessions", Value: bson.A{}}}); err != nil {
			return err
		}
	}
	names, err := client.ListDatabaseNames(ctx,
		bson.D{{Key: "name", Value: bson.D{{Key: "$nin", Value: bson.A{"admin", "config", "local"}}}}})
	for _, name := range names {
		err = errors.Join(err, client.Database(name).Drop(ctx))
	}
	return err
}
