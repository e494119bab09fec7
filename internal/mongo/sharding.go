package mongo

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

// Config is a collection of the database config, as a majority of the config servers has it.
func (c *Cluster) Config(name string) *driver.Collection {
	return c.Client.Database("config").Collection(name,
		options.Collection().SetReadConcern(readconcern.Majority()).SetReadPreference(readpref.Primary()))
}

// EachSet calls do with each replica set of a deployment, one after the other: with c itself, named "", or with the
// shards behind a router. It connects to shards as the router's user. The first error ends it.
func (c *Cluster) EachSet(ctx context.Context, do func(name string, set *Cluster) error) error {
	if c.Info.Kind != KindSharded {
		return do("", c)
	}
	type shard struct {
		ID   string `bson:"_id"`
		Host string
	}
	shards, err := ReadAll[shard](ctx, "list the shards of %s", c.Address())(c.Config("shards").Find(ctx, bson.D{}))
	if err != nil {
		return err
	}
	for _, s := range shards {
		if err := c.ofShard(ctx, s.Host, func(set *Cluster) error { return do(s.ID, set) }); err != nil {
			return fmt.Errorf("shard %s: %w", s.ID, err)
		}
	}
	return nil
}

func (c *Cluster) ofShard(ctx context.Context, hosts string, do func(*Cluster) error) error {
	uri, err := MemberURI(c.uri, hosts)
	if err != nil {
		return err
	}
	set, err := Connect(ctx, uri, Options{AppName: "millrace", ServerSelectionTimeout: 2 * time.Second, MaxPoolSize: 2})
	if err != nil {
		return err
	}
	defer set.Close()
	return do(set)
}
