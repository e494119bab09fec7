package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// movePrimary moves a database's unsharded collections to another shard.
func movePrimary(ctx context.Context, c *call) (bson.D, error) {
	name := text(get(c.cmd, c.name))
	c.db = name
	defer c.r.catalog.forget(name)
	if !c.r.features.atLeast(6, 0) {
		// Servers of then die of the shards' own command with a database version.
		return c.configured(ctx, bson.D{{Key: "_configsvrMovePrimary", Value: name}, {Key: "to", Value: get(c.cmd, "to")}})
	}
	cmd := append(c.renamed("_shardsvrMovePrimary", name), majority())
	return c.onPrimary(ctx, "", sending{db: "admin", cmd: cmd})
}

// chunkOf finds the chunk that a command names by find, bounds or min and max.
func (c *call) chunkOf(ctx context.Context) (*table, chunk, error) {
	if err := c.namespace(get(c.cmd, c.name)); err != nil {
		return nil, chunk{}, err
	}
	t, err := c.r.catalog.load(ctx, c.db, c.coll)
	if err != nil {
		return nil, chunk{}, err
	}
	if !t.sharded {
		return nil, chunk{}, fail(118, "NamespaceNotSharded", "ns %s is not sharded", t.ns())
	}
	var key []bson.RawValue
	if doc, ok := get(c.cmd, "find").DocumentOK(); ok {
		key, _ = t.keyOf(doc)
	} else if doc, ok := c.lowBound(); ok {
		for e, ok := range bsonraw.Fields(doc) {
			if ok {
				key = append(key, valueOf(e))
			}
		}
	}
	if len(key) != len(t.key) {
		return nil, chunk{}, fail(codeInvalidOptions, "InvalidOptions", "%s: name a chunk by find, bounds or middle", c.name)
	}
	return t, t.owner(key), nil
}

func firstDocument(cmd bson.D, names ...string) (bson.Raw, bool) {
	for _, name := range names {
		if doc, ok := get(cmd, name).DocumentOK(); ok {
			return doc, true
		}
	}
	return nil, false
}

// lowBound is the lower bound that a command names; hashed fields have their hashes
// there.
func (c *call) lowBound() (bson.Raw, bool) {
	if doc, ok := firstDocument(c.cmd, "min", "middle"); ok {
		return doc, true
	}
	array, _ := get(c.cmd, "bounds").ArrayOK()
	if all := documents(array); len(all) > 0 {
		return all[0], true
	}
	return nil, false
}

// moveChunk moves a chunk to another shard.
func moveChunk(ctx context.Context, c *call) (bson.D, error) {
	t, ch, err := c.chunkOf(ctx)
	if err != nil {
		return nil, err
	}
	return c.moveTo(ctx, t, ch, text(get(c.cmd, "to")))
}

// moveRange moves the range that begins at min.
func moveRange(ctx context.Context, c *call) (bson.D, error) {
	t, ch, err := c.chunkOf(ctx)
	if err != nil {
		return nil, err
	}
	if doc, ok := get(c.cmd, "min").DocumentOK(); ok {
		ch.min = doc
	}
	if doc, ok := get(c.cmd, "max").DocumentOK(); ok {
		ch.max = doc
	}
	return c.moveTo(ctx, t, ch, text(get(c.cmd, "toShard")))
}

// moveTo has the config servers move a range.
func (c *call) moveTo(ctx context.Context, t *table, ch chunk, to string) (bson.D, error) {
	wait := truth(get(c.cmd, "_waitForDelete")) || truth(get(c.cmd, "waitForDelete"))
	_, err := c.r.upstream.config.command(ctx, "admin", c.r.features.chunkCommand(t, ch, to, wait))
	return bson.D{}, err
}

// split splits a chunk at middle, or in its middle.
func split(ctx context.Context, c *call) (bson.D, error) {
	t, ch, err := c.chunkOf(ctx)
	if err != nil {
		return nil, err
	}
	at, ok := get(c.cmd, "middle").DocumentOK()
	if !ok {
		if at, err = c.median(ctx, t, ch); err != nil {
			return nil, err
		}
	}
	return c.toOwner(ctx, t, ch, bson.D{
		{Key: "splitChunk", Value: t.ns()}, {Key: "keyPattern", Value: t.pattern()}, {Key: "min", Value: ch.min}, {Key: "max", Value: ch.max},
		{Key: "from", Value: ch.shard}, {Key: "splitKeys", Value: bson.A{at}},
	})
}

// toOwner sends a command about a chunk to the shard that owns it.
func (c *call) toOwner(ctx context.Context, t *table, ch chunk, cmd bson.D) (bson.D, error) {
	shard, err := c.r.upstream.shard(ctx, ch.shard)
	if err != nil {
		return nil, err
	}
	cmd = append(cmd, bson.E{Key: "epoch", Value: t.epoch})
	if !t.timestamp.IsZero() {
		cmd = append(cmd, bson.E{Key: "timestamp", Value: t.timestamp})
	}
	_, err = shard.command(ctx, "admin", cmd)
	return bson.D{}, err
}

// median is a key in the middle of a chunk's documents.
func (c *call) median(ctx context.Context, t *table, ch chunk) (bson.Raw, error) {
	shard, err := c.r.upstream.shard(ctx, ch.shard)
	if err != nil {
		return nil, err
	}
	reply, err := shard.command(ctx, t.db.name, bson.D{
		{Key: "splitVector", Value: t.ns()}, {Key: "keyPattern", Value: t.pattern()},
		{Key: "min", Value: ch.min}, {Key: "max", Value: ch.max}, {Key: "force", Value: true},
	})
	if err != nil {
		return nil, err
	}
	keys, _ := bson.Raw(reply).Lookup("splitKeys").ArrayOK()
	if all := documents(keys); len(all) > 0 {
		return all[0], nil
	}
	return nil, fail(72, "CannotSplit", "cannot find a median in the chunk")
}

// mergeChunks makes one chunk of those within bounds, which are on one shard.
func mergeChunks(ctx context.Context, c *call) (bson.D, error) {
	t, ch, err := c.chunkOf(ctx)
	if err != nil {
		return nil, err
	}
	return c.toOwner(ctx, t, ch, bson.D{{Key: "mergeChunks", Value: t.ns()}, {Key: "bounds", Value: get(c.cmd, "bounds")}, {Key: "shardName", Value: ch.shard}})
}
