package router

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// cutNamespace splits database.collection.
func cutNamespace(ns string) (db, coll string, ok bool) {
	db, coll, ok = strings.Cut(ns, ".")
	return db, coll, ok && db != "" && coll != ""
}

func databaseOf(ns string) string {
	db, _, _ := strings.Cut(ns, ".")
	return db
}

// shardCollection makes a sharded collection, or shards one that there is.
func shardCollection(ctx context.Context, c *call) (bson.D, error) {
	ns := text(get(c.cmd, c.name))
	if err := c.namespace(get(c.cmd, c.name)); err != nil {
		return nil, err
	}
	if err := c.r.needDatabaseNow(ctx, c.db); err != nil {
		return nil, err
	}
	if !c.r.features.atLeast(5, 0) {
		return c.shardedOnConfig(ctx)
	}
	cmd := c.renamed("_shardsvrCreateCollection", c.coll, "key")
	cmd = append(cmd, bson.E{Key: "shardKey", Value: get(c.cmd, "key")})
	if _, err := c.coordinated(ctx, c.coll, cmd); err != nil {
		return nil, err
	}
	return bson.D{{Key: "collectionsharded", Value: ns}}, nil
}

// enableSharding makes a database.
func enableSharding(ctx context.Context, c *call) (bson.D, error) {
	name := text(get(c.cmd, c.name))
	return bson.D{}, c.r.makeDatabase(ctx, name, text(get(c.cmd, "primaryShard")))
}

// refineKey adds fields to a shard key.
func refineKey(ctx context.Context, c *call) (bson.D, error) {
	if err := c.namespace(get(c.cmd, c.name)); err != nil {
		return nil, err
	}
	if !c.r.features.atLeast(5, 0) {
		return c.refinedOnConfig(ctx)
	}
	cmd := c.renamed("_shardsvrRefineCollectionShardKey", c.coll, "key")
	return c.coordinated(ctx, c.coll, append(cmd, bson.E{Key: "newShardKey", Value: get(c.cmd, "key")}))
}

// reshard gives a collection another shard key.
func reshard(ctx context.Context, c *call) (bson.D, error) {
	ns := text(get(c.cmd, c.name))
	if err := c.namespace(get(c.cmd, c.name)); err != nil {
		return nil, err
	}
	cmd := append(c.renamed("_shardsvrReshardCollection", ns), majority())
	return c.onPrimary(ctx, c.coll, sending{db: "admin", cmd: cmd})
}

func clusterCommands() map[string]func(context.Context, *call) (bson.D, error) {
	return map[string]func(context.Context, *call) (bson.D, error){
		"balancerStart":  renamedOnConfig("_configsvrBalancerStart", false),
		"balancerStop":   renamedOnConfig("_configsvrBalancerStop", false),
		"balancerStatus": renamedOnConfig("_configsvrBalancerStatus", false),
		"addShardToZone": renamedOnConfig("_configsvrAddShardToZone", true), "addshardtozone": renamedOnConfig("_configsvrAddShardToZone", true),
		"removeShardFromZone":             renamedOnConfig("_configsvrRemoveShardFromZone", true),
		"updateZoneKeyRange":              renamedOnConfig("_configsvrUpdateZoneKeyRange", true),
		"balancerCollectionStatus":        renamedOnConfig("_configsvrBalancerCollectionStatus", false),
		"configureCollectionBalancing":    renamedOnConfig("_configsvrConfigureCollectionBalancing", false),
		"configureCollectionAutoSplitter": notHere,
		"addShard":                        addShard, "addshard": addShard,
		"removeShard": removeShard, "removeshard": removeShard, "listShards": listShards,
		"flushRouterConfig": flushRouterConfig, "isdbgrid": isdbgrid,
		"movePrimary": movePrimary, "moveprimary": movePrimary, "moveChunk": moveChunk, "movechunk": moveChunk,
		"moveRange": moveRange, "split": split, "mergeChunks": mergeChunks,
	}
}

// renamedOnConfig passes a command on to the config servers under their name for it.
func renamedOnConfig(name string, writes bool) func(context.Context, *call) (bson.D, error) {
	return func(ctx context.Context, c *call) (bson.D, error) {
		cmd := c.renamed(name, get(c.cmd, c.name))
		if writes {
			cmd = append(cmd, majority())
		}
		reply, _, err := c.send(ctx, configName, sending{db: "admin", cmd: cmd})
		if err != nil {
			return nil, err
		}
		return passed(reply), nil
	}
}

// addShard adds a replica set to the cluster.
func addShard(ctx context.Context, c *call) (bson.D, error) {
	d, err := renamedOnConfig("_configsvrAddShard", true)(ctx, c)
	if err != nil {
		return nil, err
	}
	return d, c.r.upstream.refresh(ctx)
}

// removeShard begins to drain a shard, or says how far that is.
func removeShard(ctx context.Context, c *call) (bson.D, error) {
	d, err := renamedOnConfig("_configsvrRemoveShard", true)(ctx, c)
	if err != nil {
		return nil, err
	}
	c.r.catalog.forget("")
	return d, c.r.upstream.refresh(ctx)
}

// listShards lists config.shards.
func listShards(ctx context.Context, c *call) (bson.D, error) {
	docs, err := c.r.upstream.config.configData(ctx, query{coll: "shards"})
	return bson.D{{Key: "shards", Value: array(docs)}}, err
}

// flushRouterConfig forgets the routing tables.
func flushRouterConfig(_ context.Context, c *call) (bson.D, error) {
	c.r.catalog.forget("")
	return bson.D{{Key: "flushed", Value: true}}, nil
}

// isdbgrid tells a router from a shard.
func isdbgrid(_ context.Context, c *call) (bson.D, error) {
	return bson.D{{Key: "isdbgrid", Value: int32(1)}, {Key: "hostname", Value: c.r.Host()}}, nil
}
