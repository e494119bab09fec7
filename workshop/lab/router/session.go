package router

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// forgetAfter is how long an unused transaction is kept: the servers' default for a session.
const forgetAfter = 30 * time.Minute

// sessions are the transactions of clients, the newest of each session.
type sessions struct {
	mu  sync.Mutex
	all map[string]*transaction
}

// transaction is one of a client, spread over the shards that it has touched.
type transaction struct {
	mu      sync.Mutex
	number  bson.RawValue
	concern bson.RawValue // read concern of the first statement
	parts   []*part
	before  int    // parts there were before the statement under way
	touched bool   // the statement has gone to one of those
	decided string // the command that ended it, "" while it is open
	used    time.Time
}

// part is a shard in a transaction. The first is the coordinator.
type part struct {
	shard string
	wrote bool
}

// holds reports a transaction that had parts before the statement under way.
func (t *transaction) holds() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.before > 0
}

func (c *call) reads() bool {
	switch c.name {
	case "find", "count", "distinct", "aggregate", "listIndexes", "listCollections":
		return true
	}
	return false
}

// forget drops what was not used for long.
func (s *sessions) forget(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.all, func(_ string, t *transaction) bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		return now.Sub(t.used) > forgetAfter
	})
}

// join finds the transaction that a command belongs to, or begins it.
func (c *call) join(all bson.D) error {
	doc, ok := c.lsid.DocumentOK()
	if !ok {
		return fail(codeInvalidOptions, "InvalidOptions", "a transaction needs lsid and txnNumber")
	}
	id := doc.Lookup("id").String()
	s := c.r.sessions
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.all[id]
	ends := c.name == "commitTransaction" || c.name == "abortTransaction"
	switch {
	case truth(get(all, "startTransaction")):
		t = &transaction{number: c.number, concern: c.snapshot(get(all, "readConcern"))}
		s.all[id] = t
	case t == nil || number(t.number) != number(c.number):
		if !ends {
			return noSuchTransaction(c.number)
		}
		t = recovered(c.number, get(all, "recoveryToken"))
	case t.decided != "" && !ends:
		return noSuchTransaction(c.number)
	}
	t.begin()
	c.txn = t
	return nil
}

// snapshot is a transaction's read concern. A snapshot gets one time: each shard would choose its own.
func (c *call) snapshot(concern bson.RawValue) bson.RawValue {
	if doc, ok := concern.DocumentOK(); ok {
		return pinnedConcern(doc, c.r.clock)
	}
	return concern
}

// recovered is a transaction that this router has not seen, with the shard that knows what became of it.
func recovered(number bson.RawValue, token bson.RawValue) *transaction {
	t := &transaction{number: number}
	if doc, ok := token.DocumentOK(); ok {
		if shard := text(doc.Lookup("recoveryShardId")); shard != "" {
			t.parts = []*part{{shard: shard, wrote: true}}
			t.decided = "recover"
		}
	}
	return t
}

func noSuchTransaction(n bson.RawValue) error {
	e := fail(251, "NoSuchTransaction", "cannot continue transaction %d: it is not known", number(n))
	e.labels = []string{"TransientTransactionError"}
	return e
}

// begin marks the start of a statement.
func (t *transaction) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.before, t.touched, t.used = len(t.parts), false, time.Now()
}

// take makes a command part of the transaction on a shard, and begins it there when it is the first.
func (t *transaction) take(cmd bson.D, shard string) bson.D {
	t.mu.Lock()
	defer t.mu.Unlock()
	cmd = without(cmd, "readConcern", "writeConcern")
	cmd = append(cmd, bson.E{Key: "txnNumber", Value: t.number}, bson.E{Key: "autocommit", Value: false})
	if p := t.find(shard); p != nil {
		t.touched = t.touched || slices.Contains(t.parts[:t.before], p)
		return cmd
	}
	t.parts = append(t.parts, &part{shard: shard})
	cmd = append(cmd, bson.E{Key: "startTransaction", Value: true})
	if t.concern.Type != 0 {
		cmd = append(cmd, bson.E{Key: "readConcern", Value: t.concern})
	}
	if len(t.parts) == 1 {
		cmd = append(cmd, bson.E{Key: "coordinator", Value: true})
	}
	return cmd
}

func (t *transaction) find(shard string) *part {
	for _, p := range t.parts {
		if p.shard == shard {
			return p
		}
	}
	return nil
}

// note takes what a shard says: readOnly is false once it has written.
func (t *transaction) note(shard string, reply bsoncore.Document) {
	readOnly, ok := reply.Lookup("readOnly").BooleanOK()
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.find(shard); p != nil && ok && !readOnly {
		p.wrote = true
	}
}

// token adds the recovery token, by which another router can finish the commit.
func (t *transaction) token(d bson.D) bson.D {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.parts {
		if p.wrote {
			return append(d, bson.E{Key: "recoveryToken", Value: bson.D{{Key: "recoveryShardId", Value: p.shard}}})
		}
	}
	return append(d, bson.E{Key: "recoveryToken", Value: bson.D{}})
}

// restart takes back the parts that the statement began, for a retry; false when it may have written in others.
func (t *transaction) restart(ctx context.Context, c *call) bool {
	t.mu.Lock()
	fresh := slices.Clone(t.parts[t.before:])
	if t.touched && !c.reads() {
		t.mu.Unlock()
		return false
	}
	t.parts, t.touched = t.parts[:t.before], false
	t.mu.Unlock()
	for _, p := range fresh {
		c.abortOn(ctx, []string{p.shard})
	}
	return true
}

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

// commitTransaction commits on all shards: through the coordinator, with prepare, where several wrote.
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

// commitOn commits on shards of which only the last may have written. After a failure the others are aborted.
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

// coordinate has a shard commit on all shards, or say what became of it when none are named.
func (c *call) coordinate(ctx context.Context, shard string, all []string) (bson.D, error) {
	parts := bson.A{}
	for _, name := range all {
		parts = append(parts, bson.D{{Key: "shardId", Value: name}})
	}
	reply, err := c.sendEnd(ctx, shard, bson.D{{Key: "coordinateCommitTransaction", Value: 1},
		{Key: "participants", Value: parts}})
	if err != nil {
		return nil, err
	}
	return passed(reply), nil
}

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
