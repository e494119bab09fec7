package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// sendEnd sends what ends a transaction to one of its shards.
func (c *call) sendEnd(ctx context.Context, shard string, cmd bson.D) (bsoncore.Document, error) {
	n, err := c.r.upstream.shard(ctx, shard)
	if err != nil {
		return nil, err
	}
	cmd = append(cmd, bson.E{Key: "lsid", Value: c.lsid}, bson.E{Key: "txnNumber", Value: c.txn.number},
		bson.E{Key: "autocommit", Value: false})
	if v := get(c.cmd, "writeConcern"); v.Type != 0 && cmd[0].Key != "abortTransaction" {
		cmd = append(cmd, bson.E{Key: "writeConcern", Value: v})
	}
	reply, _, err := n.run(ctx, sending{db: "admin", cmd: cmd})
	c.note(shard, reply, err)
	return reply, err
}

// split tells the shards that wrote from those that only read.
func (t *transaction) split() (all, writers, readers []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.parts {
		all = append(all, p.shard)
		if p.wrote {
			writers = append(writers, p.shard)
		} else {
			readers = append(readers, p.shard)
		}
	}
	return all, writers, readers
}

// end decides a transaction and returns how it was decided before.
func (t *transaction) end(how string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.decided
	if before == "" {
		t.decided = how
	}
	return before
}

// commitTransaction commits on all shards: where several wrote, through the
// coordinator, which prepares on all before it commits on one.
func commitTransaction(ctx context.Context, c *call) (bson.D, error) {
	if c.txn == nil {
		return nil, fail(codeInvalidOptions, "InvalidOptions", "commitTransaction must be run within a transaction")
	}
	all, writers, readers := c.txn.split()
	switch before := c.txn.end("commit"); {
	case before == "abort":
		return nil, noSuchTransaction(c.number)
	case before == "recover":
		return c.coordinate(ctx, all[0], nil)
	case len(all) == 0:
		return bson.D{}, nil
	case len(all) == 1:
		return c.commitOn(ctx, all)
	case len(writers) > 1:
		return c.coordinate(ctx, all[0], all)
	case len(writers) == 0:
		return c.commitOn(ctx, all)
	}
	return c.commitOn(ctx, append(readers, writers...))
}

// commitOn commits on shards of which the last alone may have written. When one
// fails, nothing has been committed that counts, and the others need not wait.
func (c *call) commitOn(ctx context.Context, shards []string) (bson.D, error) {
	var last bsoncore.Document
	for i, shard := range shards {
		var err error
		if last, err = c.sendEnd(ctx, shard, bson.D{{Key: "commitTransaction", Value: 1}}); err != nil {
			c.abortOn(ctx, shards[i+1:])
			return nil, err
		}
	}
	return passed(last), nil
}

// abortOn aborts on shards. One that cannot be reached does so by itself in time.
func (c *call) abortOn(ctx context.Context, shards []string) {
	for _, shard := range shards {
		_, _ = c.sendEnd(ctx, shard, bson.D{{Key: "abortTransaction", Value: 1}})
	}
}

// coordinate has a shard commit on all shards, or say what became of it when none
// are named.
func (c *call) coordinate(ctx context.Context, shard string, all []string) (bson.D, error) {
	parts := bson.A{}
	for _, name := range all {
		parts = append(parts, bson.D{{Key: "shardId", Value: name}})
	}
	reply, err := c.sendEnd(ctx, shard, bson.D{{Key: "coordinateCommitTransaction", Value: 1}, {Key: "participants", Value: parts}})
	if err != nil {
		return nil, err
	}
	return passed(reply), nil
}

// abortTransaction aborts on all shards.
func abortTransaction(ctx context.Context, c *call) (bson.D, error) {
	if c.txn == nil {
		return nil, fail(codeInvalidOptions, "InvalidOptions", "abortTransaction must be run within a transaction")
	}
	if c.txn.end("abort") == "commit" {
		return nil, fail(256, "TransactionCommitted", "transaction %d has been committed", number(c.number))
	}
	all, _, _ := c.txn.split()
	if len(all) == 0 {
		return nil, noSuchTransaction(c.number)
	}
	err := each(all, func(_ int, shard string) error {
		_, err := c.sendEnd(ctx, shard, bson.D{{Key: "abortTransaction", Value: 1}})
		return err
	})
	return bson.D{}, err
}
