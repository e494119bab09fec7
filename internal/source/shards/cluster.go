// Package shards reads a sharded cluster directly from its shards and merges their oplogs into one
// source. It omits the events of chunk moves, which change no document.
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
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/source/oplog"
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

// Direct returns an error if a shard cannot be asked, or refuses direct reads of user data, as shards
// do from 8.0 on. Such a shard refuses even listDatabases, which other shards permit every user.
func (c *Cluster) Direct(ctx context.Context) error {
	return c.Each(ctx, func(ctx context.Context, i int) error {
		_, err := c.Shards[i].Command(ctx, "admin", bson.D{{Key: "listDatabases", Value: 1}, {Key: "nameOnly", Value: true}})
		return mongo.Wrap(mongo.NeedsRole(err, "give the shard's own user the role directShardOperations, or read through "+
			"the routers: --via routers"), "read from the shard directly")
	})
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

const (
	maxLookBytes = 256 << 20 // of the events that a Look sorts
	changeSize   = 512       // approximate size of a schema change in memory, in bytes
)

// Look returns the events of collections within a span, and all schema changes, in the order of the
// stream, as oplog.Look does. It omits chunk moves; a schema change may appear once per shard, with
// the shard's name.
func (c *Cluster) Look(ctx context.Context, collections []string, span oplog.Span) (all []stream.Event, err error) {
	left := maxLookBytes
	for _, s := range c.Shards {
		ctx, end, err := c.withClusterTime(ctx, s.Cluster, span.Until) // it may not know that time
		if err != nil {
			return nil, err
		}
		look := oplog.Look{Cluster: s.Cluster, SkipMigrated: true, Collections: collections}
		err = look.Each(ctx, span, func(ev *stream.Event) error {
			left -= len(ev.Doc) + len(ev.Key.ID.Data)
			one := *ev
			one.Doc = slices.Clone(ev.Doc)
			one.Key.ID.Data = slices.Clone(ev.Key.ID.Data)
			if ch := one.Change; ch != nil {
				left -= changeSize + len(ch.Options)
				ch.Shard, ch.UUID.Data = s.Name, slices.Clone(ch.UUID.Data)
			}
			if left < 0 {
				return mongo.WithHint(errors.New(
					"too many writes to capped collections, or schema changes, since the last checkpoint"),
					"exclude them, or start again with --restart")
			}
			all = append(all, one)
			return nil
		})
		end()
		if err != nil {
			return nil, fmt.Errorf("shard %s: %w", s.Name, err)
		}
	}
	slices.SortStableFunc(all, func(a, b stream.Event) int { return a.At.Compare(b.At) })
	return all, nil
}

// configName stands for the config servers among connection strings by shard.
const configName = "config"

// Before reports a cluster with a shard older than a version.
func (c *Cluster) Before(major, minor int) bool {
	return slices.ContainsFunc(c.Shards, func(s Shard) bool { return !s.Info.Version.AtLeast(major, minor) })
}

// needsOwnerFilter reports a cluster with shards before 6.0, which do not mark writes to orphans: each
// event is compared with the document's owner.
func (c *Cluster) needsOwnerFilter() bool { return c.Before(6, 0) }

// openConfig opens the config servers if they must be read continuously.
func (c *Cluster) openConfig(ctx context.Context) error {
	if c.opt.Data || !c.needsOwnerFilter() {
		return nil
	}
	config, err := c.connectConfig(ctx, "before 6.0 millrace reads the config servers' oplog: they have to be reachable "+
		"from here, with the user of the router or by another connection string")
	c.config = config
	return err
}

// connectConfig opens the config servers. hint is the remedy if they cannot be reached.
func (c *Cluster) connectConfig(ctx context.Context, hint string) (*mongo.Cluster, error) {
	uri := c.opt.Shards[configName]
	var err error
	if uri == "" {
		var hosts string
		if hosts, err = configHosts(ctx, c.Shards[0]); err == nil {
			uri, err = mongo.MemberURI(c.opt.URI, hosts)
		}
		err = mongo.Wrap(err, "find the config servers")
	}
	var config *mongo.Cluster
	if err == nil {
		config, err = mongo.Connect(ctx, uri, c.opt.Mongo)
		err = mongo.Wrap(err, "config servers")
	}
	return config, mongo.WithHint(err, cmp.Or(mongo.HintOf(err), hint))
}

func (c *Cluster) readConfig(config *mongo.Cluster) ownership.Config {
	return ownership.Config{Cluster: config, Advance: c.advance(Shard{Name: configName, Cluster: config})}
}

// Config returns the config servers, which Close closes; nil from 6.0 on.
func (c *Cluster) Config() *mongo.Cluster { return c.config }

// configHosts reads the config servers' set and members from a shard, with the privilege getShardMap
// of clusterMonitor.
func configHosts(ctx context.Context, s Shard) (string, error) {
	raw, err := s.Command(ctx, "admin", bson.D{{Key: "getShardMap", Value: 1}})
	if err != nil {
		return "", fmt.Errorf("ask shard %s: %w", s.Name, err)
	}
	hosts, ok := raw.Lookup("map", "config").StringValueOK()
	if !ok {
		return "", errors.New("shard " + s.Name + " does not know them")
	}
	return hosts, nil
}

// ownerFilter returns a function that wraps a shard's source in a filteredSource, if needed.
func (c *Cluster) ownerFilter() func(Shard, stream.Source) stream.Source {
	if c.trustAll || !c.needsOwnerFilter() {
		return func(_ Shard, s stream.Source) stream.Source { return s }
	}
	history := ownership.NewHistory(ownership.HistoryOptions{
		Config: c.readConfig(c.config), Shards: len(c.Shards), ByEpoch: c.Before(5, 0),
		Removed: func(shard string) error {
			if c.reads(shard) {
				return nil
			}
			return errShardMissed
		},
	})
	all := map[string]*mongo.Cluster{}
	for _, s := range c.Shards {
		all[s.Name] = s.Cluster
	}
	return func(s Shard, src stream.Source) stream.Source {
		return &filteredSource{Source: src, shard: s, history: history, router: c.Router, shards: all}
	}
}
