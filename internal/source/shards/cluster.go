package shards

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// Shard is one shard of a cluster.
type Shard struct {
	Name string
	*mongo.Cluster
}

// Cluster is a sharded cluster whose shards are open. It is safe for concurrent use.
type Cluster struct {
	Router *mongo.Cluster // not closed by Close
	Shards []Shard        // by name

	opt       Options
	config    *mongo.Cluster // the config servers; nil if they are not read continuously
	primaries *lazyPrimaries
	left      *leftShards
	topology  topology // of config.shards when the shards were found
	hosts     hosts
	unused    []Shard // removed from the cluster, but still open
	trustAll  bool    // for tests: no owner filter
	uuids     *atomic.Pointer[uuidHistory]
}

// Options configure the connections to shards.
type Options struct {
	// URI is the connection string of the router. Its user and options also apply to shards.
	URI string
	// Shards overrides connection strings, by shard name, or "config" for the config servers. These are
	// read continuously before 6.0, and for recent moves from 6.0 on.
	Shards map[string]string
	// Data says that only documents are read, no changes: the config servers are not needed.
	Data bool
	// Left permits names in Shards that the cluster lacks; CheckNames checks them.
	Left bool
	// Mongo are the options of each connection.
	Mongo mongo.Options
	// Waiting is called with what Start waits for, and with "" when it goes on; may be nil.
	Waiting func(reason string)
	// Connect opens a shard; nil is mongo.Connect.
	Connect func(ctx context.Context, uri string, o mongo.Options) (*mongo.Cluster, error)
}

// Open finds the shards of a cluster behind a router and opens them.
func Open(ctx context.Context, router *mongo.Cluster, o Options) (*Cluster, error) {
	found, err := listShards(ctx, router)
	if err != nil {
		return nil, fmt.Errorf("find the shards of %s: %w", router.Address(), err)
	}
	c := &Cluster{Router: router, Shards: make([]Shard, len(found)), opt: o, left: &leftShards{},
		primaries: &lazyPrimaries{}, topology: topologyOf(found), hosts: hostsOf(found),
		uuids: new(atomic.Pointer[uuidHistory])}
	if !o.Left {
		if err := c.CheckNames(stream.Position{}); err != nil {
			return nil, err
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	for i, f := range found {
		g.Go(func() (err error) {
			c.Shards[i], err = openShard(gctx, f, o)
			return err
		})
	}
	err = g.Wait()
	if err == nil {
		err = c.openConfig(ctx)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close closes the shards.
func (c *Cluster) Close() {
	for _, s := range slices.Concat(c.Shards, c.unused) {
		if s.Cluster != nil {
			s.Close()
		}
	}
	if c.config != nil {
		c.config.Close()
	}
	c.primaries.close()
}

// shardEntry is a document of config.shards.
type shardEntry struct {
	Name string `bson:"_id"`
	Host string `bson:"host"`
	// Since also changes, on any shard, when another shard is removed (seen on 6.0.5).
	Since bson.Timestamp `bson:"topologyTime"`
}

// hosts are the addresses of shards in config.shards, "set/host:port,…", by shard.
type hosts map[string]string

func hostsOf(all []shardEntry) hosts {
	h := hosts{}
	for _, m := range all {
		h[m.Name] = m.Host
	}
	return h
}

// CheckNames returns an error if Options.Shards names a shard that neither the cluster has nor the
// position needs.
func (c *Cluster) CheckNames(pos stream.Position) error {
	m, err := neededBy(pos)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(c.opt.Shards)) {
		_, needed := m.parts[name]
		if name != configName && c.HasLeft(name) && !needed {
			return mongo.WithHint(fmt.Errorf("%s has no shard %q", c.Router.Address(), name),
				"its shards are "+strings.Join(slices.Sorted(maps.Keys(c.topology)), ", "))
		}
	}
	return nil
}

// CheckShards returns an error if a shard joined before a position: then the stream up to there is
// incomplete. After Refresh, the stream from an earlier position includes the shard. CheckShards records
// shards that have left.
func (c *Cluster) CheckShards(ctx context.Context, at mongo.OpTime) error {
	aware, end, err := c.withClusterTime(ctx, c.Router, at)
	if err != nil {
		return err
	}
	defer end()
	now, err := listShards(aware, c.Router, bson.E{Key: "afterClusterTime", Value: at.TS})
	if err != nil {
		return fmt.Errorf("list shards: %w", err)
	}
	for _, m := range now {
		if !c.reads(m.Name) {
			return mongo.Retry("shard "+m.Name+" has joined "+c.Router.Address()+
				": it is read from the last saved position on", nil, "")
		}
	}
	t, i, ok := driver.SessionFromContext(aware).ClusterTime().Lookup("$clusterTime", "clusterTime").TimestampOK()
	if !ok {
		t = math.MaxUint32 // unknown
	}
	return c.left.update(c, now, bson.Timestamp{T: t, I: i})
}

// CheckSameShards is CheckShards that returns an error also if one has left.
func (c *Cluster) CheckSameShards(ctx context.Context, at mongo.OpTime) error {
	err := c.CheckShards(ctx, at)
	gone, _ := c.left.leftBy(bson.Timestamp{T: math.MaxUint32, I: math.MaxUint32})
	if err == nil && len(gone) > 0 || errors.Is(err, errShardMissed) {
		err = mongo.Retry("a shard has left "+c.Router.Address(), nil, "")
	}
	return err
}

// listShards reads the shards from a majority of the config servers.
func listShards(ctx context.Context, router *mongo.Cluster, concern ...bson.E) (all []shardEntry, err error) {
	majority := append(bson.D{{Key: "level", Value: "majority"}}, concern...)
	cur, err := router.Client.Database("config").RunCommandCursor(ctx,
		bson.D{{Key: "find", Value: "shards"}, {Key: "readConcern", Value: majority}})
	if err == nil {
		err = cur.All(ctx, &all)
	}
	if err == nil && len(all) == 0 {
		err = errors.New("there are none")
	}
	slices.SortFunc(all, func(a, b shardEntry) int { return cmp.Compare(a.Name, b.Name) })
	return all, err
}

// openShard opens a shard and checks that it is the right replica set.
func openShard(ctx context.Context, m shardEntry, o Options) (s Shard, err error) {
	uri := o.Shards[m.Name]
	if uri == "" {
		if uri, err = mongo.MemberURI(o.URI, m.Host); err != nil {
			return s, fmt.Errorf("shard %s: %w", m.Name, err)
		}
	}
	connect := o.Connect
	if connect == nil {
		connect = mongo.Connect
	}
	c, err := connect(ctx, uri, o.Mongo)
	if err != nil {
		return s, mongo.WithHint(fmt.Errorf("shard %s: %w", m.Name, err), cmp.Or(mongo.HintOf(err),
			"millrace reads each shard itself: it has to be reachable from here, with the user of the router "+
				"or by another connection string"))
	}
	set, _, known := strings.Cut(m.Host, "/")
	if known && c.Info.SetName != set {
		c.Close()
		return s, fmt.Errorf("shard %s: %s is the replica set %q, the cluster has %q",
			m.Name, mongo.Redact(uri), c.Info.SetName, set)
	}
	return Shard{Name: m.Name, Cluster: c}, nil
}
