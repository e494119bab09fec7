package router

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/wire"
)

const (
	configName = "config" // the config servers' name as a shard, as a mongos says it
	// maxConnections bounds the connections to each server.
	maxConnections = 400
)

// node is a replica set behind the router: a shard, or the config servers.
type node struct {
	name  string
	host  string // as in config.shards: set/host:port,…
	pool  *wire.Pool
	clock *clock
	messages
}

// messages are kept, with their memory, for the next commands.
type messages struct{ pool sync.Pool }

func (m *messages) get() *wire.Message {
	if msg, ok := m.pool.Get().(*wire.Message); ok {
		return msg
	}
	return &wire.Message{}
}

func (m *messages) put(msg *wire.Message) { m.pool.Put(msg) }

// sending is one command to one replica set.
type sending struct {
	db   string
	cmd  bson.D
	sel  wire.Selector
	name string     // of the document sequence, "" when there is none
	docs []bson.Raw // of the document sequence
}

// run sends a command and returns the reply and the server that gave it. The
// highest $clusterTime known goes with it.
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
	msg := n.messages.get()
	defer n.messages.put(msg)
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

// listen takes the cluster time of a reply.
func (n *node) listen(reply bsoncore.Document, err error) {
	if err != nil {
		reply = bsoncore.Document(rawOf(err))
	}
	if len(reply) > 0 {
		n.clock.advance(document(reply.Lookup("$clusterTime")))
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

// refresh reads config.shards and opens what is new there.
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

// shard is a shard by its name.
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

// names are the shards' names, sorted.
func (u *upstream) names() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Sorted(maps.Keys(u.shards))
}

// close closes all connections.
func (u *upstream) close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil
	}
	u.closed = true
	all := append([]*node{u.config}, u.gone...)
	for _, n := range u.shards {
		all = append(all, n)
	}
	var errs []error
	for _, n := range all {
		errs = append(errs, n.pool.Close(context.Background()))
	}
	return errors.Join(errs...)
}
