package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// gather sends a read to all shards that may have matches and returns their
// replies; none when there is no such database.
func (c *call) gather(ctx context.Context, filter bson.Raw, make func(shards int) bson.D) ([]bson.Raw, error) {
	collation, _ := get(c.cmd, "collation").DocumentOK()
	var replies []bson.Raw
	err := c.routed(ctx, c.coll, func(t *table) (err error) {
		if !t.db.exists {
			return nil
		}
		shards := t.shardsFor(filter, collation)
		cmd := make(len(shards))
		replies, err = c.askAll(ctx, shards, c.db, func(shard string) bson.D { return append(without(cmd), c.r.features.stamp(t, shard)...) })
		return err
	})
	return replies, err
}

// askAll sends each shard a command and returns their replies in the order of the shards.
func (c *call) askAll(ctx context.Context, shards []string, db string, cmd func(shard string) bson.D) ([]bson.Raw, error) {
	replies := make([]bson.Raw, len(shards))
	return replies, each(shards, func(i int, shard string) error {
		reply, _, err := c.send(ctx, shard, sending{db: db, cmd: cmd(shard), sel: c.sel})
		replies[i] = bson.Raw(reply)
		return err
	})
}

// count adds the shards' counts. Like that of a mongos it counts orphans too.
func count(ctx context.Context, c *call) (bson.D, error) {
	q, _ := get(c.cmd, "query").DocumentOK()
	limit, skip := number(get(c.cmd, "limit")), number(get(c.cmd, "skip"))
	limit = max(limit, -limit)
	several := false
	replies, err := c.gather(ctx, q, func(shards int) bson.D {
		if several = shards > 1; !several {
			return c.cmd
		}
		cmd := without(c.cmd, "skip", "limit")
		if limit != 0 {
			cmd = append(cmd, bson.E{Key: "limit", Value: limit + skip})
		}
		return cmd
	})
	if view, ok := viewOf(err); ok {
		return c.countOnView(ctx, view)
	}
	if err != nil {
		return nil, err
	}
	n := int64(0)
	for _, r := range replies {
		n += number(r.Lookup("n"))
	}
	if several {
		if n = max(0, n-skip); limit != 0 {
			n = min(n, limit)
		}
	}
	return bson.D{{Key: "n", Value: n}}, nil
}

// distinct joins the shards' values.
func distinct(ctx context.Context, c *call) (bson.D, error) {
	q, _ := get(c.cmd, "query").DocumentOK()
	replies, err := c.gather(ctx, q, func(int) bson.D { return c.cmd })
	if err != nil {
		return nil, err
	}
	var values []bson.RawValue
	for _, r := range replies {
		list, _ := r.Lookup("values").ArrayOK()
		for e, ok := range bsonraw.Fields(list) {
			if ok {
				values = append(values, valueOf(e))
			}
		}
	}
	if len(replies) > 1 {
		values = distinctValues(values)
	}
	a := bson.A{}
	for _, v := range values {
		a = append(a, v)
	}
	return bson.D{{Key: "values", Value: a}}, nil
}
