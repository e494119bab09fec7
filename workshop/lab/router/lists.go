package router

import (
	"context"
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// listCollections lists those of the database's primary shard, which has all.
func listCollections(ctx context.Context, c *call) (bson.D, error) {
	cur := &cursor{db: c.db, coll: "$cmd.listCollections", lsid: c.lsid, limit: -1}
	err := c.routed(ctx, "", func(t *table) error {
		if !t.db.exists {
			return nil
		}
		cmd := without(c.cmd)
		if t.db.version != nil {
			cmd = append(cmd, bson.E{Key: "databaseVersion", Value: t.db.version})
		}
		return c.openAt(ctx, cur, []string{t.db.primary}, func(string) bson.D { return cmd })
	})
	if err != nil {
		return nil, err
	}
	return c.first(ctx, cur)
}

// listIndexes lists those on the shard that has the first chunk.
func listIndexes(ctx context.Context, c *call) (bson.D, error) {
	cur := &cursor{db: c.db, coll: c.coll, lsid: c.lsid, limit: -1}
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
	if err != nil {
		return nil, err
	}
	return c.first(ctx, cur)
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
		list, _ := r.Lookup("databases").ArrayOK()
		for _, d := range documents(list) {
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

// databaseList is the reply of listDatabases.
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
