package shards

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/stream"
)

// configName stands for the config servers among connection strings by shard.
const configName = "config"

// Before reports a cluster with a shard older than a version.
func (c *Cluster) Before(major, minor int) bool {
	return slices.ContainsFunc(c.Shards, func(s Shard) bool { return !s.Info.Version.AtLeast(major, minor) })
}

// needsOwnerFilter reports a cluster with shards before 6.0, which do not mark writes to orphans: each
// event is compared with the document's owner.
func (c *Cluster) needsOwnerFilter() bool { return c.Before(6, 0) }

// openConfig opens the config servers if they must be read continuously.
func (c *Cluster) openConfig(ctx context.Context) error {
	if c.opt.Data || !c.needsOwnerFilter() {
		return nil
	}
	config, err := c.connectConfig(ctx, "before 6.0 millrace reads the config servers' oplog: they have to be reachable "+
		"from here, with the user of the router or by another connection string")
	c.config = config
	return err
}

// connectConfig opens the config servers. hint is the remedy if they cannot be reached.
func (c *Cluster) connectConfig(ctx context.Context, hint string) (*mongo.Cluster, error) {
	uri := c.opt.Shards[configName]
	var err error
	if uri == "" {
		var hosts string
		if hosts, err = configHosts(ctx, c.Shards[0]); err == nil {
			uri, err = mongo.MemberURI(c.opt.URI, hosts)
		}
		err = mongo.Wrap(err, "find the config servers")
	}
	var config *mongo.Cluster
	if err == nil {
		config, err = mongo.Connect(ctx, uri, c.opt.Mongo)
		err = mongo.Wrap(err, "config servers")
	}
	return config, mongo.WithHint(err, cmp.Or(mongo.HintOf(err), hint))
}

// readConfig returns access to the config servers.
func (c *Cluster) readConfig(config *mongo.Cluster) ownership.Config {
	return ownership.Config{Cluster: config, Advance: c.advance(Shard{Name: configName, Cluster: config})}
}

// Config returns the config servers, which Close closes; nil from 6.0 on.
func (c *Cluster) Config() *mongo.Cluster { return c.config }

// configHosts reads the config servers' set and members from a shard, with the privilege getShardMap
// of clusterMonitor.
func configHosts(ctx context.Context, s Shard) (string, error) {
	raw, err := s.Command(ctx, "admin", bson.D{{Key: "getShardMap", Value: 1}})
	if err != nil {
		return "", fmt.Errorf("ask shard %s: %w", s.Name, err)
	}
	hosts, ok := raw.Lookup("map", "config").StringValueOK()
	if !ok {
		return "", errors.New("shard " + s.Name + " does not know them")
	}
	return hosts, nil
}

// ownerFilter returns a function that wraps a shard's source in a filteredSource, if needed.
func (c *Cluster) ownerFilter() func(Shard, stream.Source) stream.Source {
	if c.trustAll || !c.needsOwnerFilter() {
		return func(_ Shard, s stream.Source) stream.Source { return s }
	}
	history := ownership.NewHistory(ownership.HistoryOptions{
		Config: c.readConfig(c.config), Shards: len(c.Shards), ByEpoch: c.Before(5, 0),
		Removed: func(shard string) error {
			if c.reads(shard) {
				return nil
			}
			return errShardMissed
		},
	})
	all := map[string]*mongo.Cluster{}
	for _, s := range c.Shards {
		all[s.Name] = s.Cluster
	}
	return func(s Shard, src stream.Source) stream.Source {
		return &filteredSource{Source: src, shard: s, history: history, router: c.Router, shards: all}
	}
}
