package router

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

type handler struct {
	do   func(context.Context, *call) (bson.D, error)
	open bool // may be run before the client has proved who it is
}

// commands are all that the router takes.
func commands() map[string]handler {
	all := map[string]handler{
		"saslStart": {saslStart, true}, "saslContinue": {saslContinue, true},
	}
	for _, name := range []string{"hello", "isMaster", "ismaster"} {
		all[name] = handler{hello, true}
	}
	for _, name := range []string{"buildInfo", "buildinfo"} {
		all[name] = handler{buildInfo, true}
	}
	all["ping"], all["logout"] = handler{done, true}, handler{logout, true}
	for _, part := range []map[string]func(context.Context, *call) (bson.D, error){
		reading(), writing(), schemaCommands(), clusterCommands(),
	} {
		for name, do := range part {
			all[name] = handler{do: do}
		}
	}
	return all
}

func reading() map[string]func(context.Context, *call) (bson.D, error) {
	return map[string]func(context.Context, *call) (bson.D, error){
		"find": find, "getMore": getMore, "killCursors": killCursors, "count": count, "distinct": distinct,
		"aggregate": aggregate, "explain": explain, "serverStatus": serverStatus,
		"getParameter": onConfig, "getCmdLineOpts": onConfig, "connectionStatus": connectionStatus, "hostInfo": onConfig,
		"whatsmyuri": onConfig, "getShardMap": onConfig,
		"killOp": killOp, "usersInfo": onConfig, "rolesInfo": onConfig, "replSetGetStatus": notHere,
	}
}

func writing() map[string]func(context.Context, *call) (bson.D, error) {
	return map[string]func(context.Context, *call) (bson.D, error){
		"insert": write, "update": write, "delete": write, "findAndModify": findAndModify, "findandmodify": findAndModify,
		"commitTransaction": commitTransaction, "abortTransaction": abortTransaction,
		"endSessions": endSessions, "killSessions": endSessions, "refreshSessions": done, "startSession": notHere,
	}
}

// notHere refuses commands that a mongos or this router does not have.
func notHere(_ context.Context, c *call) (bson.D, error) {
	return nil, fail(59, "CommandNotFound", "no such command: '%s'", c.name)
}

// hello answers as a mongos does ("Server Discovery and Monitoring": isdbgrid). Without topologyVersion drivers poll.
func hello(_ context.Context, c *call) (bson.D, error) {
	c.client.introduce(c.cmd)
	writable := "isWritablePrimary"
	if c.name != "hello" {
		writable = "ismaster"
	}
	d := bson.D{
		{Key: writable, Value: true}, {Key: "msg", Value: "isdbgrid"}, {Key: "helloOk", Value: true},
		{Key: "maxBsonObjectSize", Value: int32(16 << 20)}, {Key: "maxMessageSizeBytes", Value: int32(maxMessage)},
		{Key: "maxWriteBatchSize", Value: int32(100_000)}, {Key: "localTime", Value: bson.NewDateTimeFromTime(time.Now())},
		{Key: "logicalSessionTimeoutMinutes", Value: int32(30)}, {Key: "connectionId", Value: c.client.id},
		{Key: "minWireVersion", Value: int32(0)}, {Key: "maxWireVersion", Value: c.r.features.wire},
		{Key: "readOnly", Value: false},
	}
	if user := text(get(c.cmd, "saslSupportedMechs")); user != "" {
		d = append(d, bson.E{Key: "saslSupportedMechs", Value: bson.A{"SCRAM-SHA-256"}})
	}
	return d, nil
}

func buildInfo(_ context.Context, c *call) (bson.D, error) { return c.r.features.build, nil }

// done answers commands of which nothing has to be done.
func done(context.Context, *call) (bson.D, error) { return bson.D{}, nil }

// serverStatus is the little that drivers and tools look for.
func serverStatus(_ context.Context, c *call) (bson.D, error) {
	version := text(get(c.r.features.build, "version"))
	n := c.r.Taken()
	return bson.D{{Key: "host", Value: c.r.Host()}, {Key: "version", Value: version}, {Key: "process", Value: "mongos"},
		{Key: "localTime", Value: bson.NewDateTimeFromTime(time.Now())},
		{Key: "opcounters", Value: bson.D{{Key: "insert", Value: n.Inserts}, {Key: "update", Value: n.Updates},
			{Key: "delete", Value: n.Deletes}}}}, nil
}

// endSessions ends sessions on all shards; what fails there ends by its timeout.
func endSessions(ctx context.Context, c *call) (bson.D, error) {
	_ = each(c.r.upstream.names(), func(_ int, shard string) error {
		_, err := c.r.upstream.command(ctx, shard, "admin", without(c.cmd))
		return err
	})
	return bson.D{}, nil
}

// onConfig passes a command on to the config servers.
func onConfig(ctx context.Context, c *call) (bson.D, error) {
	return c.ask(ctx, configName, sending{db: c.db, cmd: c.cmd, sel: c.sel})
}

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

// introduce stores what a client says of itself. Each command passes it on, as with a mongos, for currentOp.
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

// localOps lists the connections to this router, as $currentOp with localOps and idleConnections does.
func (r *Router) localOps() (all []bson.Raw) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for conn, c := range r.clients {
		d := bson.D{{Key: "type", Value: "op"}, {Key: "host", Value: r.listener.Addr().String()},
			{Key: "connectionId", Value: c.id},
			{Key: "client", Value: conn.RemoteAddr().String()}, {Key: "appName", Value: c.app},
			{Key: "active", Value: c.op != nil}}
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
		cur := c.cursor("$cmd.aggregate")
		cmd := append(c.cmd[:len(c.cmd):len(c.cmd)], bson.E{Key: "fromMongos", Value: true})
		return c.first(ctx, cur, c.openAt(ctx, cur, c.r.upstream.names(), func(string) bson.D { return cmd }))
	}
	// A server does the rest of the pipeline, on literal documents.
	pipeline := append(c.r.features.literal(c.r.localOps()), stages[1:]...)
	return c.ask(ctx, configName, sending{db: "admin", cmd: with(c.cmd, "pipeline", array(pipeline))})
}

// killOp ends an operation of this router, or, by shard:opid, one of a shard.
func killOp(ctx context.Context, c *call) (bson.D, error) {
	op := get(c.cmd, "op")
	if shard, id, ok := strings.Cut(text(op), ":"); ok {
		number, err := strconv.ParseInt(id, 10, 64)
		if err != nil {
			return nil, err
		}
		reply, err := c.r.upstream.command(ctx, shard, "admin", bson.D{{Key: "killOp", Value: 1}, {Key: "op", Value: number}})
		return passed(reply), err
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

// explain has the one shard explain a command that has all the documents for it.
func explain(ctx context.Context, c *call) (bson.D, error) {
	inner, ok := get(c.cmd, c.name).DocumentOK()
	if !ok || len(inner) <= 5 {
		return nil, fail(codeFailedToParse, "FailedToParse", "explain needs a command")
	}
	first := fields(inner)[0]
	coll := text(get(fields(inner), first.Key))
	var reply bson.D
	err := c.routed(ctx, coll, func(t *table) (err error) {
		shards := t.shardsFor(explained(inner), nil)
		if len(shards) > 1 {
			return unsupported("explain over several shards")
		}
		reply, err = c.ask(ctx, shards[0], sending{db: c.db, cmd: c.cmd, sel: c.sel})
		return err
	})
	return reply, err
}

func explained(cmd bson.Raw) bson.Raw {
	for _, name := range []string{"filter", "query"} {
		if doc, ok := cmd.Lookup(name).DocumentOK(); ok {
			return doc
		}
	}
	if list, ok := cmd.Lookup("pipeline").ArrayOK(); ok {
		return leadingMatch(documents(list))
	}
	for _, name := range []string{"updates", "deletes"} {
		if all := listed(cmd, name); len(all) > 0 {
			q, _ := all[0].Lookup("q").DocumentOK()
			return q
		}
	}
	return emptyDocument()
}

// Taken counts documents to insert, and update and delete statements, from clients since the start, failed ones too.
type Taken struct{ Inserts, Updates, Deletes int64 }

type taken struct{ inserts, updates, deletes atomic.Int64 }

func (t *taken) add(command string, n int) {
	switch command {
	case "insert":
		t.inserts.Add(int64(n))
	case "update":
		t.updates.Add(int64(n))
	case "delete":
		t.deletes.Add(int64(n))
	}
}

// Taken is what the router has taken by now. serverStatus tells clients the same, as opcounters.
func (r *Router) Taken() Taken {
	t := &r.taken
	return Taken{Inserts: t.inserts.Load(), Updates: t.updates.Load(), Deletes: t.deletes.Load()}
}
