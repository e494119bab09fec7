package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// What differs before 6.0.

// oldCreateDatabase makes a database before 6.0.
func (r *Router) oldCreateDatabase(db string) bson.D {
	return bson.D{{Key: "_configsvrCreateDatabase", Value: db}, majority()}
}

func (c *call) oldDrop(context.Context) (bson.D, error) { return nil, unsupported(c.name) }

func (c *call) oldDropDatabase(context.Context) (bson.D, error) { return nil, unsupported(c.name) }

func (c *call) oldShardCollection(context.Context, string) (bson.D, error) {
	return nil, unsupported(c.name)
}

func (c *call) oldEnableSharding(context.Context, string) (bson.D, error) {
	return nil, unsupported(c.name)
}

func (c *call) oldRefine(context.Context, string) (bson.D, error) { return nil, unsupported(c.name) }

func (c *call) oldMovePrimary(context.Context, string) (bson.D, error) {
	return nil, unsupported(c.name)
}

func oldMoveChunk(t *table, ch chunk, to string, wait bool) bson.D {
	return bson.D{{Key: "_configsvrMoveChunk", Value: 1}, {Key: "ns", Value: t.ns()}, {Key: "min", Value: ch.min}, {Key: "max", Value: ch.max},
		{Key: "shard", Value: ch.shard}, {Key: "toShard", Value: to}, {Key: "waitForDelete", Value: wait}, majority()}
}
