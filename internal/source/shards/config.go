package shards

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// configName stands for the config servers where connection strings are given by shard.
const configName = "config"

// Before reports a cluster with a shard older than a version.
func (c *Cluster) Before(major, minor int) bool {
	return slices.ContainsFunc(c.Shards, func(s Shard) bool { return !s.Info.Version.AtLeast(major, minor) })
}

// asksOwners reports a cluster of which every event has to be compared with who owned the
// document then: shards before 6.0 do not mark what does not count.
func (c *Cluster) asksOwners() bool { return c.Before(6, 0) }

// openConfig opens the config servers where they have to be asked all the while.
func (c *Cluster) openConfig(ctx context.Context) error {
	if c.opt.Data || !c.asksOwners() {
		return nil
	}
	config, err := c.connectConfig(ctx)
	if err != nil {
		return mongo.WithHint(err, cmp.Or(mongo.HintOf(err),
			"before 6.0 millrace reads the config servers' oplog: they have to be reachable from here, with the user of the router or by another connection string"))
	}
	c.config = config
	return nil
}

func (c *Cluster) connectConfig(ctx context.Context) (*mongo.Cluster, error) {
	uri := c.opt.Shards[configName]
	if uri == "" {
		hosts, err := configHosts(ctx, c.Shards[0])
		if err == nil {
			uri, err = mongo.MemberURI(c.opt.URI, hosts)
		}
		if err != nil {
			return nil, fmt.Errorf("find the config servers: %w", err)
		}
	}
	config, err := mongo.Connect(ctx, uri, c.opt.Mongo)
	return config, mongo.Wrap(err, "config servers")
}

// Config are the config servers where they are read all the while, nil from 6.0 on. They
// are closed with the cluster.
func (c *Cluster) Config() *mongo.Cluster { return c.config }

// configHosts asks a shard for the config servers' set and members. It needs the
// privilege getShardMap, of clusterMonitor.
func configHosts(ctx context.Context, s Shard) (string, error) {
	raw, err := s.Command(ctx, "admin", bson.D{{Key: "getShardMap", Value: 1}})
	if err != nil {
		return "", fmt.Errorf("ask shard %s: %w", s.Name, err)
	}
	hosts, ok := raw.Lookup("map", "config").StringValueOK()
	if !ok {
		return "", errors.New("shard " + s.Name + " does not tell")
	}
	return hosts, nil
}

// owned gives a function that leaves out of a shard's source what it did not own.
func (c *Cluster) owned() func(Shard, stream.Source) stream.Source {
	if c.trust || !c.asksOwners() {
		return func(_ Shard, s stream.Source) stream.Source { return s }
	}
	r := &record{shards: len(c.Shards), reads: c.has}
	r.tail = c.tail(c.config, r.operation, "config.chunks", "config.collections", "config.migrations", "config.shards")
	all := map[string]*mongo.Cluster{}
	for _, s := range c.Shards {
		all[s.Name] = s.Cluster
		r.old = r.old || !s.Info.Version.AtLeast(5, 0)
	}
	return func(s Shard, src stream.Source) stream.Source {
		return &ownedSource{Source: src, shard: s, record: r, router: c.Router, shards: all}
	}
}
