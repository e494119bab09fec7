package router

import (
	"context"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// operation is what a client's connection runs.
type operation struct {
	id     int32
	cancel context.CancelFunc
}

// begin notes that the client's connection runs something, until end is called.
func (c *client) begin(ctx context.Context) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	r := c.r
	r.mu.Lock()
	r.lastOp++
	c.op = &operation{r.lastOp, cancel}
	r.mu.Unlock()
	return ctx, func() {
		r.mu.Lock()
		c.op = nil
		r.mu.Unlock()
		cancel()
	}
}

// introduce takes what a client says of itself in its handshake. Servers are told
// with each command, as a mongos does, so that they list operations under the name
// of the application they are for.
func (c *client) introduce(cmd bson.D) {
	doc, ok := get(cmd, "client").DocumentOK()
	if !ok {
		return
	}
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.about, c.app = append(bson.Raw(nil), doc...), text(doc.Lookup("application", "name"))
}

// aboutIt is what introduce has taken.
func (c *client) aboutIt() bson.Raw {
	if c == nil {
		return nil
	}
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	return c.about
}

// localOps lists the connections to this router, as $currentOp with localOps and
// idleConnections does.
func (r *Router) localOps() (all []bson.Raw) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for conn, c := range r.clients {
		d := bson.D{{Key: "type", Value: "op"}, {Key: "host", Value: r.listener.Addr().String()}, {Key: "connectionId", Value: c.id},
			{Key: "client", Value: conn.RemoteAddr().String()}, {Key: "appName", Value: c.app}, {Key: "active", Value: c.op != nil}}
		if c.op != nil {
			d = append(d, bson.E{Key: "opid", Value: c.op.id})
		}
		all = append(all, rawValue(d).Value)
	}
	return all
}

// currentOp lists operations: of this router, or of all shards.
func (c *call) currentOp(ctx context.Context, stages []bson.Raw) (bson.D, error) {
	options, _ := stageValue(stages[0]).DocumentOK()
	if local, _ := options.Lookup("localOps").BooleanOK(); !local {
		cur := &cursor{db: c.db, coll: "$cmd.aggregate", from: "$cmd.aggregate", lsid: c.lsid, limit: -1}
		cmd := append(c.cmd[:len(c.cmd):len(c.cmd)], bson.E{Key: "fromMongos", Value: true})
		if err := c.openAt(ctx, cur, c.r.upstream.names(), func(string) bson.D { return cmd }); err != nil {
			return nil, err
		}
		return c.first(ctx, cur)
	}
	// A server does the rest of the pipeline, on literal documents.
	pipeline := append(c.r.features.literal(c.r.localOps()), stages[1:]...)
	reply, _, err := c.send(ctx, configName, sending{db: "admin", cmd: with(c.cmd, "pipeline", array(pipeline))})
	if err != nil {
		return nil, err
	}
	return passed(reply), nil
}

// killOp ends an operation of this router, or, by shard:opid, one of a shard.
func killOp(ctx context.Context, c *call) (bson.D, error) {
	op := get(c.cmd, "op")
	if shard, id, ok := strings.Cut(text(op), ":"); ok {
		n, err := c.r.upstream.shard(ctx, shard)
		if err != nil {
			return nil, err
		}
		number, err := strconv.ParseInt(id, 10, 64)
		if err != nil {
			return nil, err
		}
		reply, err := n.command(ctx, "admin", bson.D{{Key: "killOp", Value: 1}, {Key: "op", Value: number}})
		if err != nil {
			return nil, err
		}
		return passed(reply), nil
	}
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	for _, other := range c.r.clients {
		if other.op != nil && int64(other.op.id) == number(op) {
			other.op.cancel()
		}
	}
	return bson.D{{Key: "info", Value: "attempting to kill op"}}, nil
}
