package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

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
	d = append(d, sums(replies, "count", "size", "storageSize", "totalIndexSize", "totalSize", "freeStorageSize", "numOrphanDocs")...)
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
	return append(d, sums(replies, "collections", "views", "objects", "dataSize", "storageSize", "indexes", "indexSize", "totalSize",
		"fsUsedSize", "fsTotalSize")...), nil
}

// sums adds numbers of replies.
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

// firsts takes fields that are the same on all shards.
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

// indexSizes adds the sizes of each index.
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

// average is the average size of a document.
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
