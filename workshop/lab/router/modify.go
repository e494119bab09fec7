package router

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/shardkey"
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
		return bson.D{{Key: "lastErrorObject",
			Value: bson.D{{Key: "n", Value: int32(0)}, {Key: "updatedExisting", Value: false}}},
			{Key: "value", Value: nil}}, nil
	}
	shard := t.db.primary
	if t.sharded {
		q, _ := get(c.cmd, "query").DocumentOK()
		collation, _ := get(c.cmd, "collation").DocumentOK()
		key, ok := t.keyIn(q, t.orDefault(collation))
		if !ok {
			return nil, fail(codeShardKeyNotFound, "ShardKeyNotFound",
				"Query for sharded findAndModify must contain the shard key")
		}
		shard = t.owner(key).shard
	}
	cmd := append(without(c.cmd), c.r.features.stamp(t, shard)...)
	if c.number.Type != 0 && c.txn == nil {
		cmd = append(cmd, bson.E{Key: "txnNumber", Value: c.number})
	}
	return c.ask(ctx, shard, sending{db: c.db, cmd: cmd})
}

// moveModified finishes a findAndModify that gives its document to another shard.
func (c *call) moveModified(ctx context.Context, cause error) (bson.D, error) {
	m, err := c.moved(ctx, cause, func(in *call) (bson.Raw, error) {
		t, err := in.r.catalog.table(ctx, in.db, in.coll)
		if err != nil {
			return nil, err
		}
		d, err := in.modifyOn(ctx, t)
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

// moving is an update that gives a document to another shard, from the shard's error. The shard changed nothing.
type moving struct {
	before, after bson.Raw
	upsert        bool
	stayed        bson.Raw // the reply, when at another try the document was to stay
}

func movingOf(err error) (moving, bool) {
	raw := rawOf(err)
	if codeOf(err) != codeOwningShard || raw == nil {
		return moving{}, false
	}
	before, _ := raw.Lookup("preImage").DocumentOK()
	after, ok := raw.Lookup("postImage").DocumentOK()
	return moving{before: before, after: after, upsert: truth(raw.Lookup("shouldUpsert"))}, ok
}

// moved deletes the document on one shard and inserts it on the other, in a transaction.
func (c *call) moved(ctx context.Context, cause error, update func(*call) (bson.Raw, error)) (moving, error) {
	if c.txn != nil {
		m, ok := movingOf(cause)
		if !ok {
			return m, cause
		}
		return m, c.replace(ctx, m)
	}
	for try := 0; ; try++ {
		m, err := c.movedOnce(ctx, update)
		if err == nil || try >= maxTries || !again(err) {
			return m, err
		}
		if t, terr := c.r.catalog.table(ctx, c.db, c.coll); terr == nil {
			c.r.catalog.outdated(t)
		}
		if err := pause(ctx, try); err != nil {
			return m, err
		}
	}
}

// again reports an error after which a transaction may be tried anew.
func again(err error) bool {
	e, ok := errors.AsType[mongo.CommandError](err)
	return ok && e.HasErrorLabel("TransientTransactionError") || isStale(codeOf(err)) || codeOf(err) == codeOwningShard
}

// movedOnce is moved in a transaction of its own.
func (c *call) movedOnce(ctx context.Context, update func(*call) (bson.Raw, error)) (m moving, err error) {
	id := bson.NewObjectID()
	session := bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: append(id[:], id[:4]...)}}}
	in := &call{r: c.r, client: c.client, db: c.db, name: c.name, coll: c.coll, seqs: c.seqs,
		cmd: without(c.cmd, "readConcern"), lsid: rawValue(session), number: rawValue(int64(1))}
	in.txn = &transaction{number: in.number}
	in.txn.begin()
	defer func() { c.operation = in.operation }()
	if m.stayed, err = update(in); err != nil {
		if m, ok := movingOf(err); ok {
			err = in.replace(ctx, m)
			return m, in.finish(ctx, err)
		}
	} else {
		err = writeError(m.stayed)
	}
	return m, in.finish(ctx, err)
}

// finish commits the call's transaction, or aborts it for an error.
func (c *call) finish(ctx context.Context, err error) error {
	if err == nil {
		_, err = commitTransaction(ctx, c)
		return err
	}
	_, _ = abortTransaction(ctx, c) // shards that have done so already say so
	return err
}

// replace deletes a document's old state and inserts the new one, each where it belongs, in the call's transaction.
func (c *call) replace(ctx context.Context, m moving) error {
	t, err := c.r.catalog.table(ctx, c.db, c.coll)
	if err != nil {
		return err
	}
	if !m.upsert {
		q := bson.D{{Key: "_id", Value: m.before.Lookup("_id")}}
		for _, p := range t.key {
			if v, _ := shardkey.Lookup(m.before, p.Path); v.Type != 0 && p.Path != "_id" {
				q = append(q, bson.E{Key: p.Path, Value: bson.D{{Key: "$eq", Value: v}}})
			}
		}
		del := bson.D{{Key: "delete", Value: c.coll},
			{Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: q}, {Key: "limit", Value: 1}}}}}
		if err := c.writeOne(ctx, t, m.before, del); err != nil {
			return err
		}
	}
	return c.writeOne(ctx, t, m.after, bson.D{{Key: "insert", Value: c.coll}, {Key: "documents", Value: bson.A{m.after}}})
}

// writeOne writes one document on its shard, and fails if it was not written.
func (c *call) writeOne(ctx context.Context, t *table, doc bson.Raw, cmd bson.D) error {
	shard, wrong := t.shardOf(doc)
	if wrong != nil {
		return wrong
	}
	reply, _, err := c.send(ctx, shard, sending{db: c.db, cmd: append(cmd, c.r.features.stamp(t, shard)...)})
	if err != nil {
		return err
	}
	if err := writeError(bson.Raw(reply)); err != nil || number(bson.Raw(reply).Lookup("n")) == 1 {
		return err
	}
	return fail(codeOwningShard, "WouldChangeOwningShard", "the document is not what it was")
}

func writeError(reply bson.Raw) error {
	all := listed(reply, "writeErrors")
	if len(all) == 0 {
		return nil
	}
	return refused(int32(number(all[0].Lookup("code"))), text(all[0].Lookup("errmsg")))
}

// refused is a shard's error at a document that was to come to it.
func refused(code int32, msg string) error {
	if code == codeDuplicateKey {
		msg = "Failed to update document's shard key value. There is either an orphan for this document " +
			"or _id for this collection is not globally unique. :: caused by :: " + msg
	}
	return fail(code, "WriteError", "%s", msg)
}

// move finishes an update that gives its document to another shard. Servers want it alone in its batch.
func (w *writer) move(ctx context.Context, cause error) (bool, error) {
	at, done := w.open[0], make([]bool, len(w.stmts))
	m, err := w.c.moved(ctx, cause, func(in *call) (bson.Raw, error) {
		t, err := w.c.r.catalog.table(ctx, in.db, in.coll)
		if err != nil {
			return nil, err
		}
		one := *w
		one.c = in
		shards, terr := one.target(t, w.stmts[at])
		if terr != nil {
			return nil, terr
		}
		return one.sendBatch(ctx, t, batch{shard: shards[0], stmts: []int{at}})
	})
	if e, ok := errors.AsType[*cmdError](err); ok && e.code == codeDuplicateKey && w.c.txn == nil {
		w.result.add(at, e)
		w.settle(done)
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if m.stayed != nil {
		if err := w.result.take(batch{stmts: []int{at}}, m.stayed, w.ordered, done); err != nil {
			return false, err
		}
		w.settle(done)
		return true, nil
	}
	w.result.n++
	if m.upsert {
		w.result.upserted = append(w.result.upserted, indexed{at, bson.D{{Key: "_id", Value: m.after.Lookup("_id")}}})
	} else {
		w.result.modified++
	}
	done[at] = true
	w.settle(done)
	return true, nil
}
