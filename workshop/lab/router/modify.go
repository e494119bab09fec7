package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// findAndModify goes to the one shard that the filter's shard key names.
func findAndModify(ctx context.Context, c *call) (bson.D, error) {
	if truth(get(c.cmd, "upsert")) {
		if err := c.r.needDatabase(ctx, c, c.db); err != nil {
			return nil, err
		}
	}
	var reply bson.D
	err := c.routed(ctx, c.coll, func(t *table) (err error) {
		reply, err = c.modifyOn(ctx, t)
		if isPassing(err) && c.number.Type == 0 {
			return &cmdError{code: codeOf(err), name: "HostUnreachable", msg: err.Error()} // it may have been done
		}
		return err
	})
	if codeOf(err) == codeOwningShard {
		return c.moveModified(ctx, err)
	}
	return reply, err
}

// modifyOn runs the command on the shard that has the document.
func (c *call) modifyOn(ctx context.Context, t *table) (bson.D, error) {
	if !t.db.exists {
		return bson.D{{Key: "lastErrorObject", Value: bson.D{{Key: "n", Value: int32(0)}, {Key: "updatedExisting", Value: false}}},
			{Key: "value", Value: nil}}, nil
	}
	shard := t.db.primary
	if t.sharded {
		q, _ := get(c.cmd, "query").DocumentOK()
		collation, _ := get(c.cmd, "collation").DocumentOK()
		key, ok := t.keyIn(q, t.orDefault(collation))
		if !ok {
			return nil, fail(codeShardKeyNotFound, "ShardKeyNotFound", "Query for sharded findAndModify must contain the shard key")
		}
		shard = t.owner(key).shard
	}
	cmd := append(without(c.cmd), c.r.features.stamp(t, shard)...)
	if c.number.Type != 0 && c.txn == nil {
		cmd = append(cmd, bson.E{Key: "txnNumber", Value: c.number})
	}
	raw, _, err := c.send(ctx, shard, sending{db: c.db, cmd: cmd})
	return passed(raw), err
}

// moveModified finishes a findAndModify that gives its document to another shard.
func (c *call) moveModified(ctx context.Context, cause error) (bson.D, error) {
	m, err := c.moved(ctx, cause, func(in *call) (bson.Raw, error) {
		d, err := findAndModifyOnce(ctx, in)
		if err != nil {
			return nil, err
		}
		return encode(d)
	})
	if err != nil {
		return nil, err
	}
	if m.stayed != nil {
		return passed(bsoncore.Document(m.stayed)), nil
	}
	last := bson.D{{Key: "n", Value: int32(1)}, {Key: "updatedExisting", Value: !m.upsert}}
	var value any
	if m.upsert {
		last = append(last, bson.E{Key: "upserted", Value: m.after.Lookup("_id")})
	} else {
		value = m.before
	}
	if truth(get(c.cmd, "new")) {
		value = m.after
	}
	return bson.D{{Key: "lastErrorObject", Value: last}, {Key: "value", Value: value}}, nil
}

// findAndModifyOnce runs the command with the table there is.
func findAndModifyOnce(ctx context.Context, c *call) (bson.D, error) {
	t, err := c.r.catalog.table(ctx, c.db, c.coll)
	if err != nil {
		return nil, err
	}
	return c.modifyOn(ctx, t)
}
