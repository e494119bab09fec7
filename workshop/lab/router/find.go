package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// find runs a query on the shards that may have matches.
func find(ctx context.Context, c *call) (bson.D, error) {
	filter, _ := get(c.cmd, "filter").DocumentOK()
	collation, _ := get(c.cmd, "collation").DocumentOK()
	if get(c.cmd, "tailable").Type != 0 && truth(get(c.cmd, "tailable")) {
		return nil, unsupported("tailable cursors")
	}
	var cur *cursor
	err := c.routed(ctx, c.coll, func(t *table) (err error) {
		cur = &cursor{db: c.db, coll: c.coll, lsid: c.lsid, limit: -1}
		if !t.db.exists {
			return nil
		}
		shards := t.shardsFor(filter, collation)
		cmd := c.cmd
		if len(shards) > 1 {
			cmd = c.forSeveral(cur)
		}
		return c.open(ctx, t, cur, shards, cmd)
	})
	if err != nil {
		if view, ok := viewOf(err); ok {
			return c.findOnView(ctx, view)
		}
		return nil, err
	}
	return c.first(ctx, cur)
}

// forSeveral is a find as it goes to several shards: each gives as many documents
// as could be needed of it, with their sort keys.
func (c *call) forSeveral(cur *cursor) bson.D {
	limit, skip := number(get(c.cmd, "limit")), number(get(c.cmd, "skip"))
	cmd := without(c.cmd, "skip", "limit", "singleBatch", "projection")
	cur.skip = skip
	if limit != 0 {
		cur.limit = limit
		cmd = append(cmd, bson.E{Key: "limit", Value: limit + skip})
	}
	projection := bson.D{}
	if p, ok := get(c.cmd, "projection").DocumentOK(); ok {
		projection = fields(p)
	}
	if sort, ok := get(c.cmd, "sort").DocumentOK(); ok {
		if cur.order = directions(sort); cur.order != nil {
			projection = append(projection, bson.E{Key: sortKey, Value: bson.D{{Key: "$meta", Value: "sortKey"}}})
		}
	}
	if len(projection) > 0 {
		cmd = append(cmd, bson.E{Key: "projection", Value: projection})
	}
	return pinned(cmd, c.r.clock)
}

// pinned gives a snapshot read of several shards one time for all.
func pinned(cmd bson.D, clock *clock) bson.D {
	concern, ok := get(cmd, "readConcern").DocumentOK()
	if !ok {
		return cmd
	}
	return with(cmd, "readConcern", pinnedConcern(concern, clock))
}

// pinnedConcern is a read concern at one time if it is one for snapshots.
func pinnedConcern(concern bson.Raw, clock *clock) bson.RawValue {
	at, _ := clock.now()
	if text(concern.Lookup("level")) == "snapshot" && concern.Lookup("atClusterTime").Type == 0 && !at.IsZero() {
		return rawValue(append(without(fields(concern), "afterClusterTime"), bson.E{Key: "atClusterTime", Value: at}))
	}
	return rawValue(concern)
}

// open opens the cursors of a read on all shards, or on none.
func (c *call) open(ctx context.Context, t *table, cur *cursor, shards []string, cmd bson.D) error {
	return c.openAt(ctx, cur, shards, func(shard string) bson.D { return append(without(cmd), c.r.features.stamp(t, shard)...) })
}

// openAt is open with a command for each shard.
func (c *call) openAt(ctx context.Context, cur *cursor, shards []string, cmd func(shard string) bson.D) error {
	return c.openIn(ctx, c.db, cur, shards, cmd)
}

// openIn is openAt in another database.
func (c *call) openIn(ctx context.Context, db string, cur *cursor, shards []string, cmd func(shard string) bson.D) error {
	cur.remotes = make([]*remote, len(shards))
	err := each(shards, func(i int, shard string) error {
		cur.remotes[i] = &remote{shard: shard}
		reply, addr, err := c.send(ctx, shard, sending{db: db, cmd: cmd(shard), sel: c.sel})
		if err != nil {
			return err
		}
		docs, id, ok := readBatch(bson.Raw(reply))
		if !ok {
			return errMalformed
		}
		*cur.remotes[i] = remote{shard: shard, addr: addr, id: id, buf: docs}
		if i == 0 {
			cur.at = bson.Raw(reply).Lookup("cursor", "atClusterTime")
		}
		return nil
	})
	if err != nil && c.txn == nil {
		cur.kill(ctx, c.r.upstream)
	}
	return err
}

// first gives a cursor's first batch, and keeps it if there is more.
func (c *call) first(ctx context.Context, cur *cursor) (bson.D, error) {
	n := int64(-1) // as many as the one shard gave
	if len(cur.remotes) != 1 || cur.remotes[0].id == 0 {
		n = c.batchSize()
	}
	docs, err := cur.next(ctx, c, n)
	if err != nil {
		cur.kill(ctx, c.r.upstream)
		return nil, err
	}
	if truth(get(c.cmd, "singleBatch")) {
		cur.limit = 0
	}
	return cursorReply(cur, "firstBatch", c.settle(ctx, cur), docs), nil
}

// batchSize is how many documents the client wants at first.
func (c *call) batchSize() int64 {
	size := get(c.cmd, "batchSize")
	if options, ok := get(c.cmd, "cursor").DocumentOK(); ok {
		size = options.Lookup("batchSize")
	}
	if size.Type == 0 {
		return firstBatch
	}
	return number(size)
}

// settle keeps a cursor that has more to give, and ends one that has not. It
// returns the id for the client.
func (c *call) settle(ctx context.Context, cur *cursor) int64 {
	if cur.done() {
		cur.kill(ctx, c.r.upstream)
		return 0
	}
	c.r.cursors.keep(cur)
	return cur.id
}

// getMore gives a cursor's next batch.
func getMore(ctx context.Context, c *call) (bson.D, error) {
	id := number(get(c.cmd, "getMore"))
	coll := text(get(c.cmd, "collection"))
	cur := c.r.cursors.take(id)
	if cur == nil || cur.coll != coll || cur.db != c.db {
		if cur != nil {
			c.r.cursors.keep(cur)
		}
		return nil, fail(codeCursorNotFound, "CursorNotFound", "cursor id %d not found", id)
	}
	n := int64(-1)
	if v := get(c.cmd, "batchSize"); v.Type != 0 && number(v) > 0 {
		n = number(v)
	}
	docs, err := cur.next(ctx, c, n)
	if err != nil {
		cur.kill(ctx, c.r.upstream)
		return nil, err
	}
	return cursorReply(cur, "nextBatch", c.settle(ctx, cur), docs), nil
}

// killCursors ends cursors.
func killCursors(ctx context.Context, c *call) (bson.D, error) {
	killed, missing := bson.A{}, bson.A{}
	ids, _ := get(c.cmd, "cursors").ArrayOK()
	values, err := ids.Values()
	if err != nil {
		return nil, fail(codeFailedToParse, "FailedToParse", "killCursors: %v", err)
	}
	for _, v := range values {
		id := number(v)
		cur := c.r.cursors.take(id)
		if cur == nil {
			missing = append(missing, id)
			continue
		}
		cur.kill(ctx, c.r.upstream)
		killed = append(killed, id)
	}
	return bson.D{{Key: "cursorsKilled", Value: killed}, {Key: "cursorsNotFound", Value: missing},
		{Key: "cursorsAlive", Value: bson.A{}}, {Key: "cursorsUnknown", Value: bson.A{}}}, nil
}
