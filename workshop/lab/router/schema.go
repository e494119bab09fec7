package router

import (
	"context"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// The servers' coordinators (_shardsvr…, _configsvr…) change schemas; real servers demanded these arguments.

func schemaCommands() map[string]func(context.Context, *call) (bson.D, error) {
	dropIndexes := coordinatedFromSix("_shardsvrDropIndexes")
	return map[string]func(context.Context, *call) (bson.D, error){
		"create": create, "convertToCapped": onDatabase, "drop": drop, "dropDatabase": dropDatabase,
		"renameCollection": renameCollection, "collMod": coordinatedFromSix("_shardsvrCollMod"),
		"createIndexes": createIndexes, "setIndexCommitQuorum": onOwners, "dropIndexes": dropIndexes,
		"deleteIndexes": dropIndexes,
		"listDatabases": listDatabases, "listCollections": listCollections, "listIndexes": listIndexes,
		"collStats": collStats, "collstats": collStats, "dbStats": dbStats, "dbstats": dbStats, "dataSize": notHere,
		"validate": onOwners, "shardCollection": shardCollection, "enableSharding": enableSharding,
		"refineCollectionShardKey": refineKey, "reshardCollection": reshard,
	}
}

// needDatabase makes a database that does not exist yet, as far as the router knows.
func (r *Router) needDatabase(ctx context.Context, c *call, db string) error {
	t, err := r.catalog.table(ctx, db, c.coll)
	if err != nil || t.db.exists {
		return err
	}
	return r.needDatabaseNow(ctx, db)
}

// needDatabaseNow asks first whether another router has dropped it.
func (r *Router) needDatabaseNow(ctx context.Context, db string) error {
	d, err := r.catalog.database(ctx, db)
	if err != nil || d.exists {
		return err
	}
	return r.makeDatabase(ctx, db, "")
}

// makeDatabase makes a database, on a shard of the config servers' choice for "".
func (r *Router) makeDatabase(ctx context.Context, db, primary string) error {
	_, err := r.upstream.config.command(ctx, "admin", r.features.CreateDatabase(db, primary))
	r.catalog.forget(db)
	return err
}

// onPrimary runs a command on a database's primary shard, with its version, and then forgets its tables.
func (c *call) onPrimary(ctx context.Context, coll string, sent sending) (bson.D, error) {
	var reply bson.D
	err := c.routed(ctx, coll, func(t *table) (err error) {
		if !t.db.exists {
			return fail(codeNamespaceNotFound, "NamespaceNotFound", "database %s not found", c.db)
		}
		s := sent
		s.cmd = t.db.versioned(sent.cmd)
		reply, err = c.ask(ctx, t.db.primary, s)
		return err
	})
	c.r.catalog.forget(c.db)
	return reply, err
}

// coordinated runs a coordinator on the primary shard of a database.
func (c *call) coordinated(ctx context.Context, coll string, cmd bson.D) (bson.D, error) {
	return c.onPrimary(ctx, coll, sending{db: c.db, cmd: append(cmd, majority())})
}

// renamed is the client's command under another name, without some fields.
func (c *call) renamed(name string, value any, drop ...string) bson.D {
	rest := without(c.cmd, append(drop, c.name, "writeConcern")...)
	return append(bson.D{{Key: name, Value: value}}, rest...)
}

func create(ctx context.Context, c *call) (bson.D, error) {
	if err := c.r.needDatabaseNow(ctx, c.db); err != nil {
		return nil, err
	}
	return onDatabase(ctx, c)
}

// onDatabase runs a command for unsharded collections where these are.
func onDatabase(ctx context.Context, c *call) (bson.D, error) {
	return c.onPrimary(ctx, c.coll, sending{db: c.db, cmd: c.cmd})
}

func drop(ctx context.Context, c *call) (bson.D, error) {
	if !c.r.features.AtLeast(5, 0) {
		return c.configured(ctx, bson.D{{Key: "_configsvrDropCollection", Value: c.db + "." + c.coll}})
	}
	return c.coordinated(ctx, c.coll, c.renamed("_shardsvrDropCollection", c.coll))
}

func dropDatabase(ctx context.Context, c *call) (bson.D, error) {
	if !c.r.features.AtLeast(5, 0) {
		return c.configured(ctx, bson.D{{Key: "_configsvrDropDatabase", Value: c.db}})
	}
	d, err := c.coordinated(ctx, "", c.renamed("_shardsvrDropDatabase", 1))
	if codeOf(err) == codeNamespaceNotFound {
		return bson.D{{Key: "info", Value: "database does not exist"}}, nil
	}
	if err != nil {
		return nil, err
	}
	return append(bson.D{{Key: "dropped", Value: c.db}}, without(d, "dropped")...), nil
}

// named splits the namespace that a command names, and makes its database the call's.
func (c *call) named() error {
	ns := text(get(c.cmd, c.name))
	db, coll, ok := cutNamespace(ns)
	if !ok {
		return fail(73, "InvalidNamespace", "Invalid namespace specified '%s'", ns)
	}
	c.db, c.coll = db, coll
	return nil
}

func renameCollection(ctx context.Context, c *call) (bson.D, error) {
	if err := c.named(); err != nil {
		return nil, err
	}
	if !c.r.features.AtLeast(5, 0) {
		return c.onPrimary(ctx, c.coll, sending{db: "admin", cmd: c.cmd})
	}
	to, _, _ := strings.Cut(text(get(c.cmd, "to")), ".")
	defer c.r.catalog.forget(to)
	return c.coordinated(ctx, c.coll, c.renamed("_shardsvrRenameCollection", c.coll))
}

// coordinatedFromSix changes a collection on all shards, by a coordinator that 6.0 has first.
func coordinatedFromSix(coordinator string) func(context.Context, *call) (bson.D, error) {
	return func(ctx context.Context, c *call) (bson.D, error) {
		if !c.r.features.AtLeast(6, 0) {
			return onOwners(ctx, c)
		}
		return c.coordinated(ctx, c.coll, c.renamed(coordinator, c.coll))
	}
}

// createIndexes builds indexes on each shard that has chunks.
func createIndexes(ctx context.Context, c *call) (bson.D, error) {
	if err := c.r.needDatabaseNow(ctx, c.db); err != nil {
		return nil, err
	}
	return onOwners(ctx, c)
}

// onOwners runs a command on all shards with chunks, and returns their replies as raw, as a mongos does.
func onOwners(ctx context.Context, c *call) (bson.D, error) {
	var raw bson.D
	err := c.routed(ctx, c.coll, func(t *table) error {
		if !t.db.exists {
			return fail(codeNamespaceNotFound, "NamespaceNotFound", "ns does not exist: %s", t.ns())
		}
		shards := t.owners()
		raw = make(bson.D, len(shards))
		return each(shards, func(i int, shard string) error {
			reply, _, err := c.send(ctx, shard, sending{db: c.db, cmd: append(without(c.cmd), c.r.features.stamp(t, shard)...)})
			if err == nil {
				raw[i] = bson.E{Key: c.hostOf(ctx, shard), Value: passed(reply)}
			}
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	if len(raw) == 1 {
		return append(bson.D{{Key: "raw", Value: raw}}, without(raw[0].Value.(bson.D), "ok")...), nil
	}
	return bson.D{{Key: "raw", Value: raw}}, nil
}

// hostOf is a shard's address as in config.shards.
func (c *call) hostOf(ctx context.Context, shard string) string {
	n, err := c.r.upstream.shard(ctx, shard)
	if err != nil || n.host == "" {
		return shard
	}
	return n.host
}

// listCollections lists those of the database's primary shard, which has all.
func listCollections(ctx context.Context, c *call) (bson.D, error) {
	cur := c.cursor("$cmd.listCollections")
	err := c.routed(ctx, "", func(t *table) error {
		if !t.db.exists {
			return nil
		}
		return c.openAt(ctx, cur, []string{t.db.primary}, func(string) bson.D { return t.db.versioned(c.cmd) })
	})
	return c.first(ctx, cur, err)
}

// listIndexes lists those on the shard that has the first chunk.
func listIndexes(ctx context.Context, c *call) (bson.D, error) {
	cur := c.cursor(c.coll)
	err := c.routed(ctx, c.coll, func(t *table) error {
		if !t.db.exists {
			return fail(codeNamespaceNotFound, "NamespaceNotFound", "ns does not exist: %s", t.ns())
		}
		shard := t.db.primary
		if t.sharded {
			shard = t.chunks[0].shard
		}
		return c.open(ctx, t, cur, []string{shard}, c.cmd)
	})
	return c.first(ctx, cur, err)
}

// listDatabases joins the shards' lists; admin and config are the config servers'.
func listDatabases(ctx context.Context, c *call) (bson.D, error) {
	shards := append(c.r.upstream.names(), configName)
	replies, err := c.askAll(ctx, shards, "admin", func(string) bson.D { return c.cmd })
	if err != nil {
		return nil, err
	}
	sizes, total := map[string]*databaseSize{}, int64(0)
	for i, r := range replies {
		for _, d := range listed(r, "databases") {
			name := text(d.Lookup("name"))
			if ofConfig := name == "admin" || name == "config"; name == "local" || ofConfig != (shards[i] == configName) {
				continue
			}
			if sizes[name] == nil {
				sizes[name] = &databaseSize{empty: true}
			}
			total += sizes[name].add(shards[i], d)
		}
	}
	return databaseList(sizes, total, truth(get(c.cmd, "nameOnly"))), nil
}

// databaseSize is what shards say of a database.
type databaseSize struct {
	size   int64
	empty  bool
	shards bson.D
}

func (s *databaseSize) add(shard string, d bson.Raw) int64 {
	n := number(d.Lookup("sizeOnDisk"))
	s.size += n
	s.empty = s.empty && truth(d.Lookup("empty"))
	s.shards = append(s.shards, bson.E{Key: shard, Value: n})
	return n
}

func databaseList(sizes map[string]*databaseSize, total int64, nameOnly bool) bson.D {
	all := bson.A{}
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		d := bson.D{{Key: "name", Value: name}}
		if !nameOnly {
			d = append(d, bson.E{Key: "sizeOnDisk", Value: sizes[name].size}, bson.E{Key: "empty", Value: sizes[name].empty},
				bson.E{Key: "shards", Value: sizes[name].shards})
		}
		all = append(all, d)
	}
	d := bson.D{{Key: "databases", Value: all}}
	if !nameOnly {
		d = append(d, bson.E{Key: "totalSize", Value: total}, bson.E{Key: "totalSizeMb", Value: total >> 20})
	}
	return d
}

// collStats adds the statistics of all shards that have chunks.
func collStats(ctx context.Context, c *call) (bson.D, error) {
	var replies []bson.Raw
	var shards []string
	var primary string
	sharded := false
	err := c.routed(ctx, c.coll, func(t *table) (err error) {
		shards, sharded, primary = t.owners(), t.sharded, t.db.primary
		if !t.db.exists {
			return fail(codeNamespaceNotFound, "NamespaceNotFound", "Collection [%s] not found.", t.ns())
		}
		replies, err = c.askAll(ctx, shards, c.db, func(string) bson.D { return c.cmd })
		return err
	})
	if err != nil {
		return nil, err
	}
	d := bson.D{{Key: "sharded", Value: sharded}, {Key: "ns", Value: c.db + "." + c.coll}}
	if !sharded {
		d = append(d, bson.E{Key: "primary", Value: primary})
	}
	d = append(d, sums(replies, "count", "size", "storageSize", "totalIndexSize", "totalSize", "freeStorageSize",
		"numOrphanDocs")...)
	d = append(d, firsts(replies, "capped", "max", "maxSize", "nindexes")...)
	d = append(d, bson.E{Key: "indexSizes", Value: indexSizes(replies)}, bson.E{Key: "avgObjSize", Value: average(d)})
	return append(d, bson.E{Key: "nchunks", Value: 0}, bson.E{Key: "shards", Value: byShard(shards, replies)}), nil
}

// dbStats adds the statistics of all shards.
func dbStats(ctx context.Context, c *call) (bson.D, error) {
	shards := c.r.upstream.names()
	replies, err := c.askAll(ctx, shards, c.db, func(string) bson.D { return c.cmd })
	if err != nil {
		return nil, err
	}
	d := bson.D{{Key: "db", Value: c.db}, {Key: "raw", Value: byShard(shards, replies)}}
	return append(d, sums(replies, "collections", "views", "objects", "dataSize", "storageSize", "indexes", "indexSize",
		"totalSize", "fsUsedSize", "fsTotalSize")...), nil
}

func sums(replies []bson.Raw, names ...string) bson.D {
	var d bson.D
	for _, name := range names {
		total, found := int64(0), false
		for _, r := range replies {
			n, ok := r.Lookup(name).AsInt64OK()
			total, found = total+n, found || ok
		}
		if found {
			d = append(d, bson.E{Key: name, Value: total})
		}
	}
	return d
}

func firsts(replies []bson.Raw, names ...string) bson.D {
	var d bson.D
	for _, name := range names {
		for _, r := range replies {
			if v := r.Lookup(name); v.Type != 0 {
				d = append(d, bson.E{Key: name, Value: v})
				break
			}
		}
	}
	return d
}

func indexSizes(replies []bson.Raw) bson.D {
	d := bson.D{}
	totals := map[string]int64{}
	for _, r := range replies {
		sizes, _ := r.Lookup("indexSizes").DocumentOK()
		for e, ok := range bsonraw.Fields(sizes) {
			if !ok {
				break
			}
			if _, known := totals[string(e.Name)]; !known {
				d = append(d, bson.E{Key: string(e.Name)})
			}
			totals[string(e.Name)] += number(valueOf(e))
		}
	}
	for i := range d {
		d[i].Value = totals[d[i].Key]
	}
	return d
}

func average(d bson.D) int64 {
	var n, size int64
	for _, e := range d {
		switch v, _ := e.Value.(int64); e.Key {
		case "count":
			n = v
		case "size":
			size = v
		}
	}
	if n == 0 {
		return 0
	}
	return size / n
}

func byShard(shards []string, replies []bson.Raw) bson.D {
	d := bson.D{}
	for i, name := range shards {
		d = append(d, bson.E{Key: name, Value: passed([]byte(replies[i]))})
	}
	return d
}
