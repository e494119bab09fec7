package router

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/wire"
)

// call is one command of a client on its way through the router.
type call struct {
	r      *Router
	client *client
	db     string
	name   string
	coll   string                // when the command names one
	cmd    bson.D                // what the client said, without what follows
	seqs   map[string][]bson.Raw // document sequences
	lsid   bson.RawValue
	number bson.RawValue // txnNumber: of a transaction or of a retryable write
	txn    *transaction  // nil outside of one
	sel    wire.Selector

	mu        sync.Mutex
	operation bson.Timestamp // the highest operationTime of the servers asked
}

func newCall(c *client, req *request) (*call, error) {
	cl := &call{r: c.r, client: c, db: req.db, seqs: map[string][]bson.Raw{}}
	all := fields(req.body)
	if len(all) == 0 {
		return nil, fail(codeFailedToParse, "FailedToParse", "no command name was given")
	}
	cl.name = all[0].Key
	if v := get(all, "$db"); v.Type == bson.TypeString {
		cl.db = text(v)
	}
	cl.coll = text(get(all, cl.name))
	if doc, ok := get(all, "$clusterTime").DocumentOK(); ok {
		c.r.clock.advance(doc)
	}
	for _, s := range req.sequences {
		cl.seqs[s.name] = append(cl.seqs[s.name], s.docs...)
	}
	cl.lsid, cl.number = get(all, "lsid"), get(all, "txnNumber")
	if err := cl.choose(get(all, "$readPreference")); err != nil {
		return nil, err
	}
	cl.cmd = without(all, "$db", "$clusterTime", "$readPreference", "lsid", "txnNumber", "autocommit", "startTransaction",
		"coordinator", "recoveryToken")
	if get(all, "autocommit").Type == bson.TypeBoolean {
		return cl, cl.join(all)
	}
	return cl, nil
}

func (c *call) choose(v bson.RawValue) error {
	doc, ok := v.DocumentOK()
	mode := text(doc.Lookup("mode"))
	if !ok || mode == "" || mode == "primary" {
		return nil
	}
	m, err := readpref.ModeFromString(mode)
	if err != nil {
		return fail(codeFailedToParse, "FailedToParse", "read preference: %v", err)
	}
	rp, err := readpref.New(m)
	if err != nil {
		return fail(codeFailedToParse, "FailedToParse", "read preference: %v", err)
	}
	c.sel = wire.ByReadPreference(rp)
	return nil
}

// statements are the documents of a write command, which come as an array or as a document sequence.
func (c *call) statements(name string) []bson.Raw {
	if array, ok := get(c.cmd, name).ArrayOK(); ok {
		return append(documents(array), c.seqs[name]...)
	}
	return c.seqs[name]
}

// send runs a command on one shard with the client's session, as part of its transaction if there is one.
func (c *call) send(ctx context.Context, shard string, s sending) (bsoncore.Document, string, error) {
	n, err := c.r.upstream.shard(ctx, shard)
	if err != nil {
		return nil, "", err
	}
	return c.sendTo(ctx, n, s)
}

func (c *call) sendTo(ctx context.Context, n *node, s sending) (bsoncore.Document, string, error) {
	s.cmd = slices.Clone(s.cmd)
	if c.lsid.Type != 0 {
		s.cmd = append(s.cmd, bson.E{Key: "lsid", Value: c.lsid})
	}
	if about := c.client.aboutIt(); about != nil {
		s.cmd = append(s.cmd, bson.E{Key: "$client", Value: about})
	}
	if c.txn != nil {
		s.cmd = c.txn.take(s.cmd, n.name)
	}
	reply, addr, err := n.run(ctx, s)
	c.note(n.name, reply, err)
	return reply, addr, err
}

// ask is send for what a client gets of the reply.
func (c *call) ask(ctx context.Context, shard string, s sending) (bson.D, error) {
	reply, _, err := c.send(ctx, shard, s)
	if err != nil {
		return nil, err
	}
	return passed(reply), nil
}

// note takes a reply's times, and what it says of the transaction.
func (c *call) note(shard string, reply bsoncore.Document, err error) {
	if err != nil {
		reply = bsoncore.Document(rawOf(err))
	}
	if len(reply) == 0 {
		return
	}
	if c.txn != nil {
		c.txn.note(shard, reply)
	}
	at, _ := timeOf(reply, "operationTime")
	c.mu.Lock()
	defer c.mu.Unlock()
	if at.After(c.operation) {
		c.operation = at
	}
}

// each does something for all shards side by side. The error is that of the first in the list that failed.
func each(names []string, do func(i int, shard string) error) error {
	if len(names) == 1 {
		return do(0, names[0])
	}
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { errs[i] = do(i, name) })
	}
	wg.Wait()
	return cmp.Or(errs...)
}

// Retries end after so many tries. A shard in a migration's critical section answers only after it.
const (
	maxTries = 60
	// An open transaction's locks may be what the migration waits for, so it is not kept for long.
	maxTriesOpen = 2
	pauseTry     = 5 * time.Millisecond
	maxPause     = 250 * time.Millisecond
)

// pause waits before another try, longer each time.
func pause(ctx context.Context, try int) error {
	if try < 2 {
		return ctx.Err()
	}
	t := time.NewTimer(min(pauseTry*time.Duration(try), maxPause))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// routed calls do with the routing table until no shard calls it old. What do began before must be harmless.
func (c *call) routed(ctx context.Context, coll string, do func(t *table) error) error {
	for try := 0; ; try++ {
		t, err := c.r.catalog.table(ctx, c.db, coll)
		if err != nil {
			return err
		}
		err = do(t)
		again, err := c.again(ctx, t, err, try)
		if !again {
			return err
		}
		if err := pause(ctx, try); err != nil {
			return err
		}
	}
}

// again decides whether a command that failed is tried once more, and makes ready for it.
func (c *call) again(ctx context.Context, t *table, err error, try int) (bool, error) {
	stale := isStale(codeOf(err)) || codeOf(err) == 70
	if err == nil || !stale && !isPassing(err) || try >= maxTries {
		return false, err
	}
	c.r.log.Debug("try again", "command", c.name, "ns", t.ns(), "try", try, "err", err)
	if c.txn != nil {
		if !stale {
			return false, err
		}
		if restarted := c.txn.restart(ctx, c); !restarted || try >= maxTriesOpen && c.txn.holds() {
			return false, transient(err)
		}
	}
	if stale {
		c.r.catalog.outdated(t)
	}
	return true, err
}

// labelled adds the labels by which drivers retry (specifications on retryable writes, transactions).
func labelled(c *call, err error) error {
	if c == nil || rawOf(err) != nil || !isPassing(err) || c.number.Type == 0 {
		return err
	}
	label := "RetryableWriteError"
	if c.txn != nil {
		label = "TransientTransactionError"
		if c.name == "commitTransaction" {
			label = "UnknownTransactionCommitResult"
		}
	}
	return &cmdError{code: 6, name: "HostUnreachable", msg: err.Error(), labels: []string{label}}
}

// transient marks an error after which the whole transaction may be tried again.
func transient(err error) error {
	return &cmdError{code: codeOf(err), name: "StaleConfig", msg: err.Error(),
		labels: []string{"TransientTransactionError"}}
}

// reply runs a request and returns the reply's body. Errors of commands are replies.
func (c *client) reply(ctx context.Context, req *request) (bson.Raw, error) {
	call, err := newCall(c, req)
	var d bson.D
	if err == nil {
		running, end := c.begin(ctx)
		d, err = c.r.dispatch(running, call)
		if err != nil && running.Err() != nil {
			err = fail(codeInterrupted, "Interrupted", "operation was interrupted")
		}
		end()
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		c.r.log.Debug("command failed", "client", c.id, "err", err)
		d = errorReply(labelled(call, err))
	}
	if !slices.ContainsFunc(d, func(e bson.E) bool { return e.Key == "ok" }) {
		d = append(d, bson.E{Key: "ok", Value: 1.0})
	}
	return encode(c.finish(call, d))
}

func (c *client) finish(call *call, d bson.D) bson.D {
	at, doc := c.r.clock.now()
	if doc == nil || call == nil {
		return d
	}
	if call.txn != nil {
		d = call.txn.token(d)
	}
	if !call.operation.IsZero() {
		at = call.operation
	}
	return append(d, bson.E{Key: "$clusterTime", Value: doc}, bson.E{Key: "operationTime", Value: at})
}

func encode(d bson.D) (bson.Raw, error) {
	var b bytes.Buffer
	enc := bson.NewEncoder(bson.NewDocumentWriter(&b))
	if err := enc.Encode(d); err != nil {
		return nil, fmt.Errorf("encode reply: %w", err)
	}
	return b.Bytes(), nil
}

func (r *Router) dispatch(ctx context.Context, c *call) (bson.D, error) {
	h, ok := r.handlers[c.name]
	if !ok {
		return nil, fail(59, "CommandNotFound", "no such command: '%s'", c.name)
	}
	if !h.open && r.auth && !c.client.known {
		return nil, fail(13, "Unauthorized", "command %s requires authentication", c.name)
	}
	return h.do(ctx, c)
}
