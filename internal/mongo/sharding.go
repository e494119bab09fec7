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

// ShardKeys returns the shard keys' patterns of sharded collections by namespace: of all, or of those given.
func (c *Cluster) ShardKeys(ctx context.Context, namespaces ...string) (map[string]bson.Raw, error) {
	keys := map[string]bson.Raw{}
	if c.Info.Kind != KindSharded {
		return keys, nil
	}
	filter := bson.D{{Key: "dropped", Value: bson.D{{Key: "$ne", Value: true}}}} // 4.4 keeps those that were dropped
	if namespaces != nil {
		filter = append(filter, bson.E{Key: "_id", Value: bson.D{{Key: "$in", Value: namespaces}}})
	}
	fields := options.Find().SetProjection(bson.D{{Key: "key", Value: 1}})
	type entry struct {
		ID  string `bson:"_id"`
		Key bson.Raw
	}
	list, err := ReadAll[entry](ctx, "read the shard keys of %s", c.Address())(
		c.Config("collections").Find(ctx, filter, fields))
	for _, e := range list {
		keys[e.ID] = e.Key
	}
	return keys, err
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
