package mongo

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
)

// ShardKeys are the shard keys' patterns of a sharded cluster's collections, by
// namespace; with namespaces given, of those alone. A deployment of another kind has
// none.
func (c *Cluster) ShardKeys(ctx context.Context, namespaces ...string) (map[string]bson.Raw, error) {
	keys := map[string]bson.Raw{}
	if c.Info.Kind != KindSharded {
		return keys, nil
	}
	filter := bson.D{{Key: "dropped", Value: bson.D{{Key: "$ne", Value: true}}}} // 4.4 keeps those that were dropped
	if namespaces != nil {
		filter = append(filter, bson.E{Key: "_id", Value: bson.D{{Key: "$in", Value: namespaces}}})
	}
	colls := c.Client.Database("config").Collection("collections", options.Collection().SetReadConcern(readconcern.Majority()))
	cur, err := colls.Find(ctx, filter, options.Find().SetProjection(bson.D{{Key: "key", Value: 1}}))
	var docs []struct {
		ID  string `bson:"_id"`
		Key bson.Raw
	}
	if err == nil {
		err = cur.All(ctx, &docs)
	}
	if err != nil {
		return nil, fmt.Errorf("read the shard keys of %s: %w", c.Address(), err)
	}
	for _, d := range docs {
		keys[d.ID] = d.Key
	}
	return keys, nil
}
