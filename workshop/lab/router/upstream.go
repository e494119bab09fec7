package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/wire"
)

const (
	configName     = "config" // the config servers' name as a shard, as a mongos says it
	maxConnections = 400      // maxConnections bounds the connections to each server.
)

// node is a replica set behind the router: a shard, or the config servers.
type node struct {
	name     string
	host     string // as in config.shards: set/host:port,…
	pool     *wire.Pool
	clock    *clock
	messages sync.Pool    // kept, with their memory, for the next commands.
	advanced atomic.Int64 // when advance was called last, in nanoseconds of Unix time
}

type sending struct {
	db   string
	cmd  bson.D
	sel  wire.Selector
	name string     // of the document sequence, "" when there is none
	docs []bson.Raw // of the document sequence
}

// run sends a command with the highest $clusterTime, and returns the reply and the server's address.
func (n *node) run(ctx context.Context, s sending) (bsoncore.Document, string, error) {
	cmd := s.cmd
	if _, doc := n.clock.now(); doc != nil {
		cmd = append(slices.Clone(cmd), bson.E{Key: "$clusterTime", Value: doc})
	}
	raw, err := bson.Marshal(cmd)
	if err != nil {
		return nil, "", fmt.Errorf("encode command: %w", err)
	}
	conn, err := n.pool.Checkout(ctx, s.sel)
	if err != nil {
		return nil, "", fmt.Errorf("reach %s: %w", n.name, err)
	}
	defer conn.Release()
	msg, ok := n.messages.Get().(*wire.Message)
	if !ok {
		msg = &wire.Message{}
	}
	defer n.messages.Put(msg)
	msg.Reset(s.db, raw, s.sel != wire.Primary())
	if s.name != "" {
		msg.StartSequence(s.name)
		for _, d := range s.docs {
			msg.AppendDocument(d)
		}
	}
	reply, err := conn.RoundTrip(ctx, msg)
	n.listen(reply, err)
	return reply, conn.Addr(), err
}

// command is run for a short command to the primary.
func (n *node) command(ctx context.Context, db string, cmd bson.D) (bsoncore.Document, error) {
	reply, _, err := n.run(ctx, sending{db: db, cmd: cmd})
	return reply, err
}

// The least time between two entries that advance writes to a shard.
const (
	waitedFor   = 5 * time.Millisecond   // while changes of another shard wait for it
	nobodyWaits = 500 * time.Millisecond // so that a client's position does not stay behind
)

// advanceTimeout bounds advance, which is of no use while a shard has no majority.
const advanceTimeout = 500 * time.Millisecond

// advance has a shard write an entry with the highest time seen, so that its change streams come to that time. Where
// that fails they come later, by an entry that servers write every ten seconds.
func (n *node) advance(ctx context.Context, every time.Duration) {
	last, now := n.advanced.Load(), time.Now().UnixNano()
	if now-last < int64(every) || !n.advanced.CompareAndSwap(last, now) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, advanceTimeout)
	defer cancel()
	concern := bson.D{{Key: "w", Value: "majority"}, {Key: "wtimeout", Value: advanceTimeout.Milliseconds() / 2}}
	_, _ = n.command(ctx, "admin", bson.D{{Key: "appendOplogNote", Value: 1},
		{Key: "data", Value: bson.D{{Key: "msg", Value: "change stream of the lab's router"}}},
		{Key: "writeConcern", Value: concern}})
}

func (n *node) listen(reply bsoncore.Document, err error) {
	if err != nil {
		reply = bsoncore.Document(rawOf(err))
	}
	if len(reply) > 0 {
		at, _ := reply.Lookup("$clusterTime").DocumentOK()
		n.clock.advance(at)
	}
}

// upstream are all servers of the cluster.
type upstream struct {
	opts   *options.ClientOptions
	clock  *clock
	config *node

	mu     sync.Mutex
	shards map[string]*node
	gone   []*node // removed from the cluster; closed with the rest
	read   time.Time
	closed bool
}

func openUpstream(uri string, clock *clock) (*upstream, error) {
	u := &upstream{clock: clock, shards: map[string]*node{}}
	u.opts = options.Client().ApplyURI(uri).SetMaxPoolSize(maxConnections).
		SetServerMonitoringMode(options.ServerMonitoringModePoll)
	if u.opts.AppName == nil {
		u.opts.SetAppName(AppName) // a Gate knows it
	}
	if err := u.opts.Validate(); err != nil {
		return nil, fmt.Errorf("connection string of the config servers: %w", err)
	}
	pool, err := wire.Open(u.opts)
	if err != nil {
		return nil, err
	}
	u.config = &node{name: configName, pool: pool, clock: clock}
	return u, nil
}

func (u *upstream) refresh(ctx context.Context) error {
	began := time.Now()
	docs, err := u.config.configData(ctx, query{coll: "shards"})
	if err != nil {
		return fmt.Errorf("read config.shards: %w", err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	found := map[string]*node{}
	for _, d := range docs {
		name, host := d.Lookup("_id").StringValue(), d.Lookup("host").StringValue()
		if known := u.shards[name]; known != nil && known.host == host {
			found[name] = known
			continue
		}
		if found[name], err = u.open(name, host); err != nil {
			return err
		}
	}
	for name, n := range u.shards {
		if found[name] != n {
			u.gone = append(u.gone, n)
		}
	}
	u.shards, u.read = found, began
	return nil
}

// open connects to a shard by its entry in config.shards.
func (u *upstream) open(name, host string) (*node, error) {
	set, hosts, ok := strings.Cut(host, "/")
	if !ok {
		return nil, fmt.Errorf("shard %s has the host %q, which names no replica set", name, host)
	}
	opts := *u.opts
	opts.Direct, opts.SRVServiceName, opts.LoadBalanced = nil, nil, nil
	opts.Hosts, opts.ReplicaSet = strings.Split(hosts, ","), &set
	pool, err := wire.Open(&opts)
	if err != nil {
		return nil, err
	}
	return &node{name: name, host: host, pool: pool, clock: u.clock}, nil
}

func (u *upstream) shard(ctx context.Context, name string) (*node, error) {
	if name == configName {
		return u.config, nil
	}
	for range 2 {
		u.mu.Lock()
		n := u.shards[name]
		u.mu.Unlock()
		if n != nil {
			return n, nil
		}
		if err := u.refresh(ctx); err != nil {
			return nil, err
		}
	}
	return nil, fail(70, "ShardNotFound", "Shard %s not found", name)
}

// command sends a short command to the primary of a shard.
func (u *upstream) command(ctx context.Context, shard, db string, cmd bson.D) (bsoncore.Document, error) {
	n, err := u.shard(ctx, shard)
	if err != nil {
		return nil, err
	}
	return n.command(ctx, db, cmd)
}

// listFresh is how old the list of shards may be for a write to all of them.
const listFresh = 250 * time.Millisecond

// everywhere are the names of all shards, read lately.
func (u *upstream) everywhere(ctx context.Context) ([]string, error) {
	u.mu.Lock()
	old := time.Since(u.read) > listFresh
	u.mu.Unlock()
	if old {
		if err := u.refresh(ctx); err != nil {
			return nil, err
		}
	}
	return u.names(), nil
}

func (u *upstream) names() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Sorted(maps.Keys(u.shards))
}

func (u *upstream) close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil
	}
	u.closed = true
	all := slices.AppendSeq(append([]*node{u.config}, u.gone...), maps.Values(u.shards))
	var errs []error
	for _, n := range all {
		errs = append(errs, n.pool.Close(context.Background()))
	}
	return errors.Join(errs...)
}

// majority is the write concern of all that changes the cluster's metadata.
func majority() bson.E {
	return bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}
}

type query struct {
	coll   string
	filter bson.D
	sort   bson.D
}

// configData reads all documents of a query in the database config, from the primary.
func (n *node) configData(ctx context.Context, q query) ([]bson.Raw, error) {
	const db = "config"
	cmd := bson.D{{Key: "find", Value: q.coll}, {Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}}}
	if q.filter != nil {
		cmd = append(cmd, bson.E{Key: "filter", Value: q.filter})
	}
	if q.sort != nil {
		cmd = append(cmd, bson.E{Key: "sort", Value: q.sort})
	}
	reply, addr, err := n.run(ctx, sending{db: db, cmd: cmd})
	var all []bson.Raw
	for err == nil {
		batch, id, ok := readBatch(bson.Raw(reply))
		if !ok {
			return nil, fmt.Errorf("read %s.%s: reply without a cursor", db, q.coll)
		}
		if all = append(all, batch...); id == 0 {
			return all, nil
		}
		reply, _, err = n.run(ctx, sending{db: db, sel: wire.ByAddress(addr),
			cmd: bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: q.coll}}})
	}
	return nil, fmt.Errorf("read %s.%s: %w", db, q.coll, err)
}

// readBatch reads a reply's cursor: its first or next batch, and its id.
func readBatch(reply bson.Raw) (docs []bson.Raw, id int64, ok bool) {
	cur, ok := reply.Lookup("cursor").DocumentOK()
	if !ok {
		return nil, 0, false
	}
	id, _ = cur.Lookup("id").AsInt64OK()
	batch, ok := cur.Lookup("firstBatch").ArrayOK()
	if !ok {
		batch, ok = cur.Lookup("nextBatch").ArrayOK()
	}
	if !ok {
		return nil, 0, false
	}
	return documents(batch), id, true
}

// features are what the router has to know of the servers' version.
type features struct {
	Version
	build bson.D // buildInfo as a server answers it
	wire  int32  // maxWireVersion
}

func readFeatures(ctx context.Context, n *node) (f features, err error) {
	build, err := n.command(ctx, "admin", bson.D{{Key: "buildInfo", Value: 1}})
	if err != nil {
		return f, fmt.Errorf("read the servers' version: %w", err)
	}
	f.build = without(passed(build), "ok")
	parts, err := bson.Raw(build).Lookup("versionArray").Array().Values()
	if err != nil || len(parts) < 2 {
		return f, fmt.Errorf("read the servers' version: %w", errMalformed)
	}
	f.Version = Version{parts[0].Int32(), parts[1].Int32()}
	hello, err := n.command(ctx, "admin", bson.D{{Key: "isMaster", Value: 1}})
	if err != nil {
		return f, fmt.Errorf("read the servers' wire version: %w", err)
	}
	f.wire = int32(number(bson.Raw(hello).Lookup("maxWireVersion")))
	return f, nil
}

// Version is the first two numbers of the servers' version, by which their own commands differ.
type Version [2]int32

// AtLeast reports a version from major.minor on.
func (v Version) AtLeast(major, minor int32) bool {
	return v[0] > major || v[0] == major && v[1] >= minor
}

// The forms of versions are what servers answer as vReceived and vWanted.

// stamp is what a command to a shard carries so that the shard can refuse it when the table is old.
func (f features) stamp(t *table, shard string) bson.D {
	if t.db.primary == configName && !t.sharded {
		return nil
	}
	if t.sharded {
		return bson.D{{Key: "shardVersion", Value: f.ShardVersion(t.epoch, t.timestamp, t.versions[shard])}}
	}
	unsharded := f.ShardVersion(bson.ObjectID{}, bson.Timestamp{}, bson.Timestamp{})
	return t.db.versioned(bson.D{{Key: "shardVersion", Value: unsharded}})
}

// ignored is the version of a write that goes to several shards at once, which no shard refuses.
func (f features) ignored() bson.D {
	epoch := bson.ObjectID{4: 0xff, 5: 0xff, 6: 0xff, 7: 0xff, 8: 0xff, 9: 0xff, 10: 0xff, 11: 0xff}
	highest := bson.Timestamp{T: math.MaxUint32, I: math.MaxUint32}
	return bson.D{{Key: "shardVersion", Value: f.ShardVersion(epoch, highest, bson.Timestamp{})}}
}

// ShardVersion writes the version of a shard's part of a collection in the servers' form.
func (v Version) ShardVersion(epoch bson.ObjectID, timestamp, version bson.Timestamp) any {
	switch {
	case !v.AtLeast(5, 0):
		return bson.A{version, epoch}
	case !v.AtLeast(6, 0):
		return bson.A{version, epoch, timestamp}
	}
	return bson.D{{Key: "e", Value: epoch}, {Key: "t", Value: timestamp}, {Key: "v", Value: version}}
}

// clock is the highest $clusterTime seen, gossiped with its signature.
type clock struct {
	mu   sync.Mutex
	time bson.Timestamp
	doc  bson.Raw
}

// advance takes a message's $clusterTime if it is the highest yet.
func (c *clock) advance(doc []byte) {
	at, ok := timeOf(doc, "clusterTime")
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if at.After(c.time) {
		c.time, c.doc = at, bytes.Clone(doc)
	}
}

// now is the highest time and its document, nil before the first.
func (c *clock) now() (bson.Timestamp, bson.Raw) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.time, c.doc
}

// timeOf is a document's timestamp of a name.
func timeOf(doc []byte, name string) (bson.Timestamp, bool) {
	t, i, ok := bsoncore.Document(doc).Lookup(name).TimestampOK()
	return bson.Timestamp{T: t, I: i}, ok
}
