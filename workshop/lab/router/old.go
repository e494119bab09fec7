package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// What differs before 6.0: there the config servers make some of the changes that
// are the shards' later.

// databaseCommand makes a database in which collections may be sharded, on a shard
// of the config servers' choice for "".
func (f features) databaseCommand(db, primary string) bson.D {
	name, field, more := "_configsvrCreateDatabase", "primaryShardId", bson.D{}
	switch {
	case !f.atLeast(5, 0):
		name, field = "_configsvrEnableSharding", "primaryShard"
	case !f.atLeast(6, 0):
		more = bson.D{{Key: "enableSharding", Value: true}}
	}
	cmd := append(bson.D{{Key: name, Value: db}}, more...)
	if primary != "" {
		cmd = append(cmd, bson.E{Key: field, Value: primary})
	}
	return append(cmd, majority())
}

// configured has the config servers do something to a database, and reads its
// tables anew after that.
func (c *call) configured(ctx context.Context, cmd bson.D) (bson.D, error) {
	defer c.r.catalog.forget(c.db)
	reply, err := c.r.upstream.config.command(ctx, "admin", append(cmd, majority()))
	return passed(reply), err
}

// shardedOnConfig is shardCollection before 5.0.
func (c *call) shardedOnConfig(ctx context.Context) (bson.D, error) {
	cmd := c.renamed("_configsvrShardCollection", get(c.cmd, c.name))
	return c.configured(ctx, append(cmd, bson.E{Key: "getUUIDfromPrimaryShard", Value: true}))
}

// refinedOnConfig is refineCollectionShardKey before 5.0.
func (c *call) refinedOnConfig(ctx context.Context) (bson.D, error) {
	t, err := c.r.catalog.load(ctx, c.db, c.coll)
	if err != nil {
		return nil, err
	}
	cmd := bson.D{{Key: "_configsvrRefineCollectionShardKey", Value: t.ns()}, {Key: "key", Value: get(c.cmd, "key")}, {Key: "epoch", Value: t.epoch}}
	return c.configured(ctx, cmd)
}

// chunkCommand moves a chunk.
func (f features) chunkCommand(t *table, ch chunk, to string, wait bool) bson.D {
	if f.atLeast(6, 0) {
		return bson.D{{Key: "_configsvrMoveRange", Value: t.ns()}, {Key: "toShard", Value: to}, {Key: "min", Value: ch.min},
			{Key: "max", Value: ch.max}, {Key: "waitForDelete", Value: wait}, majority()}
	}
	const most = int64(64 << 20) // the default of the chunk size
	cmd := bson.D{
		{Key: "_configsvrMoveChunk", Value: 1}, {Key: "_id", Value: ch.id}, {Key: "ns", Value: t.ns()},
		{Key: "min", Value: ch.min}, {Key: "max", Value: ch.max}, {Key: "shard", Value: ch.shard}, {Key: "lastmod", Value: ch.lastmod},
		{Key: "lastmodEpoch", Value: t.epoch}, {Key: "toShard", Value: to}, {Key: "maxChunkSizeBytes", Value: most},
		{Key: "secondaryThrottle", Value: bson.D{}}, {Key: "waitForDelete", Value: wait},
	}
	if f.atLeast(5, 0) {
		cmd = append(cmd, bson.E{Key: "uuid", Value: t.uuid}, bson.E{Key: "lastmodTimestamp", Value: t.timestamp})
	}
	return append(cmd, majority())
}
