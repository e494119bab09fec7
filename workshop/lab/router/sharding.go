package router

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func cutNamespace(ns string) (db, coll string, ok bool) {
	db, coll, ok = strings.Cut(ns, ".")
	return db, coll, ok && db != "" && coll != ""
}

// shardCollection makes a sharded collection, or shards one that there is.
func shardCollection(ctx context.Context, c *call) (bson.D, error) {
	ns := text(get(c.cmd, c.name))
	if err := c.named(); err != nil {
		return nil, err
	}
	if err := c.r.needDatabaseNow(ctx, c.db); err != nil {
		return nil, err
	}
	if !c.r.features.AtLeast(5, 0) {
		return c.shardedOnConfig(ctx)
	}
	cmd := c.renamed("_shardsvrCreateCollection", c.coll, "key")
	cmd = append(cmd, bson.E{Key: "shardKey", Value: get(c.cmd, "key")})
	if _, err := c.coordinated(ctx, c.coll, cmd); err != nil {
		return nil, err
	}
	return bson.D{{Key: "collectionsharded", Value: ns}}, nil
}

func enableSharding(ctx context.Context, c *call) (bson.D, error) {
	name := text(get(c.cmd, c.name))
	return bson.D{}, c.r.makeDatabase(ctx, name, text(get(c.cmd, "primaryShard")))
}

func refineKey(ctx context.Context, c *call) (bson.D, error) {
	if err := c.named(); err != nil {
		return nil, err
	}
	if !c.r.features.AtLeast(5, 0) {
		return c.refinedOnConfig(ctx)
	}
	cmd := c.renamed("_shardsvrRefineCollectionShardKey", c.coll, "key")
	return c.coordinated(ctx, c.coll, append(cmd, bson.E{Key: "newShardKey", Value: get(c.cmd, "key")}))
}

// reshard gives a collection another shard key.
func reshard(ctx context.Context, c *call) (bson.D, error) {
	ns := text(get(c.cmd, c.name))
	if err := c.named(); err != nil {
		return nil, err
	}
	cmd := append(c.renamed("_shardsvrReshardCollection", ns), majority())
	return c.onPrimary(ctx, c.coll, sending{db: "admin", cmd: cmd})
}

func clusterCommands() map[string]func(context.Context, *call) (bson.D, error) {
	return map[string]func(context.Context, *call) (bson.D, error){
		"balancerStart":                   renamedOnConfig("_configsvrBalancerStart", false),
		"balancerStop":                    renamedOnConfig("_configsvrBalancerStop", false),
		"balancerStatus":                  renamedOnConfig("_configsvrBalancerStatus", false),
		"addShardToZone":                  renamedOnConfig("_configsvrAddShardToZone", true),
		"addshardtozone":                  renamedOnConfig("_configsvrAddShardToZone", true),
		"removeShardFromZone":             renamedOnConfig("_configsvrRemoveShardFromZone", true),
		"updateZoneKeyRange":              renamedOnConfig("_configsvrUpdateZoneKeyRange", true),
		"balancerCollectionStatus":        renamedOnConfig("_configsvrBalancerCollectionStatus", false),
		"configureCollectionBalancing":    renamedOnConfig("_configsvrConfigureCollectionBalancing", false),
		"configureCollectionAutoSplitter": notHere,
		"addShard":                        addShard, "addshard": addShard,
		"removeShard": removeShard, "removeshard": removeShard, "listShards": listShards,
		"flushRouterConfig": flushRouterConfig, "isdbgrid": isdbgrid,
		"movePrimary": movePrimary, "moveprimary": movePrimary, "moveChunk": onChunk(moveChunk),
		"movechunk": onChunk(moveChunk), "moveRange": onChunk(moveRange),
		"split": onChunk(split), "mergeChunks": onChunk(mergeChunks),
	}
}

// renamedOnConfig passes a command on to the config servers under their name for it.
func renamedOnConfig(name string, writes bool) func(context.Context, *call) (bson.D, error) {
	return func(ctx context.Context, c *call) (bson.D, error) {
		cmd := c.renamed(name, get(c.cmd, c.name))
		if writes {
			cmd = append(cmd, majority())
		}
		return c.ask(ctx, configName, sending{db: "admin", cmd: cmd})
	}
}

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

func listShards(ctx context.Context, c *call) (bson.D, error) {
	docs, err := c.r.upstream.config.configData(ctx, query{coll: "shards"})
	return bson.D{{Key: "shards", Value: array(docs)}}, err
}

func flushRouterConfig(_ context.Context, c *call) (bson.D, error) {
	c.r.catalog.forget("")
	return bson.D{{Key: "flushed", Value: true}}, nil
}

// isdbgrid tells a router from a shard.
func isdbgrid(_ context.Context, c *call) (bson.D, error) {
	return bson.D{{Key: "isdbgrid", Value: int32(1)}, {Key: "hostname", Value: c.r.Host()}}, nil
}

// movePrimary moves a database's unsharded collections to another shard.
func movePrimary(ctx context.Context, c *call) (bson.D, error) {
	name := text(get(c.cmd, c.name))
	c.db = name
	defer c.r.catalog.forget(name)
	if !c.r.features.AtLeast(6, 0) {
		// Servers of then die of the shards' own command with a database version.
		return c.configured(ctx, bson.D{{Key: "_configsvrMovePrimary", Value: name}, {Key: "to", Value: get(c.cmd, "to")}})
	}
	cmd := append(c.renamed("_shardsvrMovePrimary", name), majority())
	return c.onPrimary(ctx, "", sending{db: "admin", cmd: cmd})
}

// chunkOf finds the chunk that a command names by find, bounds or min and max.
func (c *call) chunkOf(ctx context.Context) (*table, chunk, error) {
	if err := c.named(); err != nil {
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
		key = values(doc)
	}
	if len(key) != len(t.key) {
		return nil, chunk{}, fail(codeInvalidOptions, "InvalidOptions", "%s: name a chunk by find, bounds or middle", c.name)
	}
	return t, t.owner(key), nil
}

// lowBound is the lower bound that a command names; hashed fields have their hashes there.
func (c *call) lowBound() (bson.Raw, bool) {
	for _, name := range []string{"min", "middle"} {
		if doc, ok := get(c.cmd, name).DocumentOK(); ok {
			return doc, true
		}
	}
	array, _ := get(c.cmd, "bounds").ArrayOK()
	if all := documents(array); len(all) > 0 {
		return all[0], true
	}
	return nil, false
}

func moveChunk(ctx context.Context, c *call, t *table, ch chunk) (bson.D, error) {
	return c.moveTo(ctx, t, ch, text(get(c.cmd, "to")))
}

// onChunk is a command on the chunk that it names.
func onChunk(do func(context.Context, *call, *table, chunk) (bson.D, error)) func(context.Context, *call) (bson.D,
	error) {
	return func(ctx context.Context, c *call) (bson.D, error) {
		t, ch, err := c.chunkOf(ctx)
		if err != nil {
			return nil, err
		}
		return do(ctx, c, t, ch)
	}
}

// moveRange moves the range that begins at min.
func moveRange(ctx context.Context, c *call, t *table, ch chunk) (bson.D, error) {
	if doc, ok := get(c.cmd, "min").DocumentOK(); ok {
		ch.min = doc
	}
	if doc, ok := get(c.cmd, "max").DocumentOK(); ok {
		ch.max = doc
	}
	return c.moveTo(ctx, t, ch, text(get(c.cmd, "toShard")))
}

func (c *call) moveTo(ctx context.Context, t *table, ch chunk, to string) (bson.D, error) {
	wait := truth(get(c.cmd, "_waitForDelete")) || truth(get(c.cmd, "waitForDelete"))
	_, err := c.r.upstream.config.command(ctx, "admin", c.r.features.MoveChunk(Move{
		NS: t.ns(), UUID: t.uuid, ID: ch.id, Min: ch.min, Max: ch.max, Shard: ch.shard, To: to,
		Lastmod: ch.lastmod, Epoch: t.epoch, Timestamp: t.timestamp, AwaitDelete: wait,
	}))
	return bson.D{}, err
}

// split splits a chunk at middle, or in its middle.
func split(ctx context.Context, c *call, t *table, ch chunk) (bson.D, error) {
	at, ok := get(c.cmd, "middle").DocumentOK()
	if !ok {
		var err error
		if at, err = c.median(ctx, t, ch); err != nil {
			return nil, err
		}
	}
	return c.toOwner(ctx, t, ch, bson.D{
		{Key: "splitChunk", Value: t.ns()}, {Key: "keyPattern", Value: t.pattern()}, {Key: "min", Value: ch.min},
		{Key: "max", Value: ch.max}, {Key: "from", Value: ch.shard}, {Key: "splitKeys", Value: bson.A{at}},
	})
}

// toOwner sends a command about a chunk to the shard that owns it.
func (c *call) toOwner(ctx context.Context, t *table, ch chunk, cmd bson.D) (bson.D, error) {
	cmd = append(cmd, bson.E{Key: "epoch", Value: t.epoch})
	if !t.timestamp.IsZero() {
		cmd = append(cmd, bson.E{Key: "timestamp", Value: t.timestamp})
	}
	_, err := c.r.upstream.command(ctx, ch.shard, "admin", cmd)
	return bson.D{}, err
}

func (c *call) median(ctx context.Context, t *table, ch chunk) (bson.Raw, error) {
	reply, err := c.r.upstream.command(ctx, ch.shard, t.db.name, bson.D{
		{Key: "splitVector", Value: t.ns()}, {Key: "keyPattern", Value: t.pattern()},
		{Key: "min", Value: ch.min}, {Key: "max", Value: ch.max}, {Key: "force", Value: true},
	})
	if err != nil {
		return nil, err
	}
	if all := listed(bson.Raw(reply), "splitKeys"); len(all) > 0 {
		return all[0], nil
	}
	return nil, fail(72, "CannotSplit", "cannot find a median in the chunk")
}

// mergeChunks makes one chunk of those within bounds, which are on one shard.
func mergeChunks(ctx context.Context, c *call, t *table, ch chunk) (bson.D, error) {
	return c.toOwner(ctx, t, ch, bson.D{{Key: "mergeChunks", Value: t.ns()}, {Key: "bounds", Value: get(c.cmd, "bounds")},
		{Key: "shardName", Value: ch.shard}})
}

// What differs before 6.0: there the config servers make some of the changes that are the shards' later.

// CreateDatabase makes a database whose collections may be sharded, on any shard for "".
func (v Version) CreateDatabase(db, primary string) bson.D {
	name, field, more := "_configsvrCreateDatabase", "primaryShardId", bson.D{}
	switch {
	case !v.AtLeast(5, 0):
		name, field = "_configsvrEnableSharding", "primaryShard"
	case !v.AtLeast(6, 0):
		more = bson.D{{Key: "enableSharding", Value: true}}
	}
	cmd := append(bson.D{{Key: name, Value: db}}, more...)
	if primary != "" {
		cmd = append(cmd, bson.E{Key: field, Value: primary})
	}
	return append(cmd, majority())
}

// configured has the config servers do something to a database, and reads its tables anew after that.
func (c *call) configured(ctx context.Context, cmd bson.D) (bson.D, error) {
	defer c.r.catalog.forget(c.db)
	reply, err := c.r.upstream.config.command(ctx, "admin", append(cmd, majority()))
	return passed(reply), err
}

// shardedOnConfig sends shardCollection to the config servers, for versions before 5.0.
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
	cmd := bson.D{{Key: "_configsvrRefineCollectionShardKey", Value: t.ns()}, {Key: "key", Value: get(c.cmd, "key")},
		{Key: "epoch", Value: t.epoch}}
	return c.configured(ctx, cmd)
}

// Move is a chunk, as the config servers know it, with the shard that it is to move to.
type Move struct {
	NS          string
	UUID, ID    any
	Min, Max    bson.Raw
	Shard, To   string
	Lastmod     bson.Timestamp
	Epoch       bson.ObjectID
	Timestamp   bson.Timestamp // of the epoch
	AwaitDelete bool           // of its documents on the shard that it leaves
}

// MoveChunk is the command that moves a chunk.
func (v Version) MoveChunk(m Move) bson.D {
	if v.AtLeast(6, 0) {
		return bson.D{{Key: "_configsvrMoveRange", Value: m.NS}, {Key: "toShard", Value: m.To}, {Key: "min", Value: m.Min},
			{Key: "max", Value: m.Max}, {Key: "waitForDelete", Value: m.AwaitDelete}, majority()}
	}
	const most = int64(64 << 20) // the default of the chunk size
	cmd := bson.D{
		{Key: "_configsvrMoveChunk", Value: 1}, {Key: "_id", Value: m.ID}, {Key: "ns", Value: m.NS},
		{Key: "min", Value: m.Min}, {Key: "max", Value: m.Max}, {Key: "shard", Value: m.Shard},
		{Key: "lastmod", Value: m.Lastmod}, {Key: "lastmodEpoch", Value: m.Epoch}, {Key: "toShard", Value: m.To},
		{Key: "maxChunkSizeBytes", Value: most}, {Key: "secondaryThrottle", Value: bson.D{}},
		{Key: "waitForDelete", Value: m.AwaitDelete},
	}
	if v.AtLeast(5, 0) {
		cmd = append(cmd, bson.E{Key: "uuid", Value: m.UUID}, bson.E{Key: "lastmodTimestamp", Value: m.Timestamp})
	}
	return append(cmd, majority())
}
