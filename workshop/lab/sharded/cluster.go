// Package sharded starts real sharded clusters on the loopback interface, of real mongods without a mongos. It sends
// the servers' own commands that a mongos would send, tried on each version. It changes databases, collections,
// chunks, shards and the balancer, and reports the owner of a document. It routes nothing.
package sharded

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/router"
)

const (
	// startTimeout bounds Start without a deadline, the download of a mongod included.
	startTimeout = 20 * time.Minute
	// goodbye bounds a driver's end: it looks for a server to tell, for up to half a minute.
	goodbye   = 100 * time.Millisecond
	configSet = "config" // the name of the config servers' folder.
)

// Cluster is a running sharded cluster. Its methods may be called concurrently.
type Cluster struct {
	Map
	opts    Options
	topo    topology
	log     *slog.Logger
	dir     string       // empty when each set has a temporary one
	secrets string       // directory of what all sets share
	tempDir *lab.TempDir // the secrets', if they need one
	names   []string     // of the shards to start with
	kept    bool         // they come from an earlier start

	next    int // the number of the next shard
	routers []*router.Router
	shared  *shared // nil unless other tests of the process may use the cluster
}

// members are the sets of a cluster. Their methods may be called concurrently.
type members struct {
	name   string // of the cluster
	server router.Version

	mu     sync.Mutex
	config *set
	shards []*set
	gone   []*set // were removed from the cluster and run still
}

type set struct {
	*lab.Cluster
	name   string // as a shard
	client *mongo.Client
}

// Start starts all sets side by side and joins them to one cluster. ctx bounds the start alone.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	c, err := newCluster(o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := lab.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("lab: start sharded cluster %s: %w", c.Name(), err), c.Stop())
	}
	return c, nil
}

// newCluster checks the options and starts nothing yet.
func newCluster(o Options) (*Cluster, error) {
	o, topo, err := o.check()
	if err != nil {
		return nil, err
	}
	c := &Cluster{Map: Map{&members{}}, opts: o, topo: topo, log: o.Logger}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if o.Dir != "" {
		if err := c.openDir(); err != nil {
			return nil, err
		}
	}
	if c.opts.Name == "" {
		c.opts.Name, err = lab.RandomName("sh")
	}
	c.name = c.opts.Name
	return c, err
}

// start does what Start says, except for cleaning up after an error.
func (c *Cluster) start(ctx context.Context) error {
	begin := time.Now()
	if err := c.prepare(); err != nil {
		return err
	}
	err := c.startSets(ctx)
	if err != nil {
		return err
	}
	if c.server, err = c.askVersion(ctx); err != nil {
		return err
	}
	for _, s := range c.sets() {
		if err := c.join(ctx, s); err != nil {
			return err
		}
	}
	for i := range c.opts.Routers {
		if _, err := c.StartRouter(ctx, c.routerAddress(i)); err != nil {
			return err
		}
	}
	if err := c.save(); err != nil {
		return err
	}
	c.log.Info("sharded cluster is up", "cluster", c.Name(), "shards", len(c.names), "took", time.Since(begin))
	return nil
}

// prepare finds a place for what the sets share, and names the shards.
func (c *Cluster) prepare() (err error) {
	if c.dir == "" && (c.opts.Auth || c.opts.TLS) {
		if c.tempDir, err = lab.NewTempDir(); err != nil {
			return err
		}
		c.secrets = c.tempDir.Path()
	}
	if len(c.names) == 0 {
		for range c.topo.shards {
			c.names = append(c.names, c.nextName())
		}
	}
	return nil
}

func (c *Cluster) nextName() string {
	c.next++
	return "s" + strconv.Itoa(c.next-1)
}

// startSets starts the config servers and the shards side by side.
func (c *Cluster) startSets(ctx context.Context) error {
	shards := make([]*set, len(c.names))
	group, starting := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		c.config, err = c.startSet(starting, configSet, c.port(0))
		return err
	})
	for i, name := range c.names {
		group.Go(func() (err error) {
			shards[i], err = c.startSet(starting, name, c.port(c.configPorts()+i*c.shardPorts()))
			return err
		})
	}
	err := group.Wait()
	// Those that did start are ended with the others.
	c.shards = slices.DeleteFunc(shards, func(s *set) bool { return s == nil })
	return err
}

// port is the nth of the servers, where the first is fixed, and else 0.
func (c *Cluster) port(n int) int {
	if c.opts.Port == 0 || c.kept {
		return 0 // or what the set itself has kept
	}
	return c.opts.Port + c.opts.Routers + n
}

// configPorts is how many ports the config servers take.
func (c *Cluster) configPorts() int {
	if c.opts.Proxy || c.opts.PeerLatency > 0 {
		return 2 * c.opts.ConfigMembers
	}
	return c.opts.ConfigMembers
}

// shardPorts is how many ports a shard takes.
func (c *Cluster) shardPorts() int {
	if c.opts.Proxy || c.opts.PeerLatency > 0 || c.opts.RefuseDirect {
		return 2 * c.topo.members
	}
	return c.topo.members
}

// startSet starts one replica set and connects to it.
func (c *Cluster) startSet(ctx context.Context, name string, port int) (*set, error) {
	o := c.opts.Options
	o.Name, o.Port, o.Secrets = c.opts.Name+"-"+name, port, c.secrets
	o.Role, o.Topology = lab.ShardServer, "rs:"+strconv.Itoa(c.topo.members)
	if name == configSet {
		o.Role, o.Topology = lab.ConfigServer, "rs:"+strconv.Itoa(c.opts.ConfigMembers)
	}
	if c.dir != "" {
		o.Dir = filepath.Join(c.dir, name)
	}
	if c.opts.RefuseDirect && o.Role == lab.ShardServer {
		o.Front = startGate
	}
	if c.opts.part != nil {
		o = c.opts.part(o)
	}
	servers, err := lab.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	// Most of it is for servers alone. The streaming monitor's end may take ten seconds; local refuses retries.
	client, err := mongo.Connect(options.Client().ApplyURI(servers.SystemURI()).SetAppName(router.AppName).
		SetRetryWrites(false).SetServerMonitoringMode(options.ServerMonitoringModePoll).
		SetHeartbeatInterval(500 * time.Millisecond))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %s: %w", o.Name, err), servers.Stop())
	}
	return &set{Cluster: servers, name: name, client: client}, nil
}

// startGate starts a gate in this process.
func startGate(ctx context.Context, listen, upstream string) (lab.Front, error) {
	return router.StartGate(ctx, listen, upstream)
}

func (s *set) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	_ = s.client.Disconnect(ctx) // whoever is gone by then needs no goodbye
	return s.Stop()
}

// Stop ends all processes by id, waits, and removes what was temporary. It may be called twice.
func (c *Cluster) Stop() error {
	c.mu.Lock()
	all := slices.Concat(c.shards, c.gone)
	if c.config != nil {
		all = append(all, c.config)
	}
	routers := c.routers
	c.mu.Unlock()
	var group errgroup.Group
	errs := make([]error, len(all))
	for _, r := range routers { // before those whom they would look for
		errs = append(errs, r.Close())
	}
	for i, s := range all {
		group.Go(func() error {
			errs[i] = s.stop()
			return nil
		})
	}
	_ = group.Wait() // each has put its error into its place
	if c.tempDir != nil {
		errs = append(errs, c.tempDir.Remove())
	}
	return errors.Join(errs...)
}

// Name of the cluster; its sets' names begin with it.
func (c *Cluster) Name() string { return c.name }

// Config is the set of the config servers.
func (c *Cluster) Config() *lab.Cluster { return c.config.Cluster }

// ConfigURI is the config servers' connection string with the servers' own login, for a router of the lab.
func (c *Cluster) ConfigURI() string { return c.config.SystemURI() }

// Shards are the sets of the shards, in the order of ShardNames.
func (c *Cluster) Shards() []*lab.Cluster {
	var clusters []*lab.Cluster
	for _, s := range c.sets() {
		clusters = append(clusters, s.Cluster)
	}
	return clusters
}

// ShardNames are the names of the shards, in the order in which they joined.
func (c *Cluster) ShardNames() []string { return c.members.names() }

// Shard is the set of a shard, nil if no shard has that name.
func (c *Cluster) Shard(name string) *lab.Cluster {
	if s, err := c.shard(name); err == nil {
		return s.Cluster
	}
	return nil
}

// Direct returns the cluster's client of a shard's own servers, logged in as the servers are.
func (c *Cluster) Direct(shard string) (*mongo.Client, error) {
	s, err := c.shard(shard)
	if err != nil {
		return nil, err
	}
	return s.client, nil
}

// sets are those of the shards.
func (m *members) sets() []*set {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.shards)
}

func (m *members) names() []string {
	var names []string
	for _, s := range m.sets() {
		names = append(names, s.name)
	}
	return names
}

func (m *members) shard(name string) (*set, error) {
	for _, s := range m.sets() {
		if s.name == name {
			return s, nil
		}
	}
	return nil, fmt.Errorf("lab: %s has no shard %q; it has %q", m.name, name, m.names())
}

const (
	defaultTopology = "sharded:2x1"
	maxShards       = 16 // maxShards keeps a slip of the finger from filling the machine.
)

// Options describes one cluster.
type Options struct {
	// Options are those of each set, but: Topology is "sharded:SxM" for S shards of M members (default
	// "sharded:2x1"). Name and Dir are the cluster's. Port is the first router's, or config server's. Role and
	// Secrets stay empty.
	lab.Options
	ConfigMembers int // ConfigMembers is how many members the config servers' set has; 0 means 1.

	// Routers is how many routers of the lab listen, the first on Port, before the servers; 0 is none.
	Routers int

	// RefuseDirect makes the shards refuse direct reads and writes of user data with error 13, as those from 8.0 on do
	// (see [router.Gate]). The lab's routers and Direct are permitted.
	RefuseDirect bool

	part func(lab.Options) lab.Options // part changes the options of a set, set by Up.
}

// topology is the parsed form of Options.Topology.
type topology struct{ shards, members int }

// Is reports whether a topology is that of a sharded cluster.
func Is(topology string) bool { return strings.HasPrefix(topology, "sharded:") }

// Members is how many servers have data in a cluster of a topology, 0 when that is none of a sharded cluster.
func Members(topology string) int {
	t, _ := parseTopology(topology)
	return t.shards * t.members
}

func parseTopology(s string) (topology, error) {
	counts, ok := strings.CutPrefix(s, "sharded:")
	left, right, x := strings.Cut(counts, "x")
	shards, err1 := strconv.Atoi(left)
	members, err2 := strconv.Atoi(right)
	if !ok || !x || err1 != nil || err2 != nil || shards < 1 || shards > maxShards || members < 1 {
		return topology{}, fmt.Errorf("lab: topology %q is unknown; use sharded:SxM for S shards (at most %d) of M members",
			s, maxShards)
	}
	return topology{shards, members}, nil
}

// check refuses what the options do not mean here, and sets the defaults.
func (o Options) check() (Options, topology, error) {
	o.Topology = cmp.Or(o.Topology, defaultTopology)
	o.ConfigMembers = cmp.Or(o.ConfigMembers, 1)
	topo, err := parseTopology(o.Topology)
	if err != nil {
		return o, topo, err
	}
	if o.Role != "" || o.Secrets != "" {
		return o, topo, errors.New("lab: a sharded cluster sets the roles and the key file of its sets itself")
	}
	if o.RefuseDirect && o.TLS {
		return o, topo, errors.New("lab: shards that refuse direct reads cannot have TLS: what refuses reads the messages")
	}
	return o, topo, nil
}

// layout is what a kept directory has to remember beside what each set does.
type layout struct {
	Name   string   `json:"name"`
	Shards []string `json:"shards"`
	Next   int      `json:"next"` // the number of the next shard
}

const layoutFile = "sharded.json"

// openDir makes the directory ready, and reads which shards an earlier start left there.
func (c *Cluster) openDir() (err error) {
	if c.dir, err = filepath.Abs(c.opts.Dir); err != nil {
		return fmt.Errorf("lab: find the data directory: %w", err)
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return fmt.Errorf("lab: make the data directory: %w", err)
	}
	c.secrets = c.dir
	data, err := os.ReadFile(filepath.Join(c.dir, layoutFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lab: read what the directory holds: %w", err)
	}
	var l layout
	if err := json.Unmarshal(data, &l); err != nil {
		return fmt.Errorf("lab: read %s: %w", filepath.Join(c.dir, layoutFile), err)
	}
	if c.opts.Name != "" && c.opts.Name != l.Name {
		return fmt.Errorf("lab: %s holds another cluster (%s); start that one or choose another directory", c.dir, l.Name)
	}
	c.opts.Name, c.names, c.next, c.kept = l.Name, l.Shards, l.Next, true
	return nil
}

func (c *Cluster) save() error {
	if c.dir == "" {
		return nil
	}
	names := c.ShardNames()
	c.mu.Lock()
	defer c.mu.Unlock()
	data, err := json.Marshal(layout{Name: c.Name(), Shards: names, Next: c.next})
	if err == nil {
		err = os.WriteFile(filepath.Join(c.dir, layoutFile), data, 0o600)
	}
	return lab.Wrap(err, "write the layout")
}

// loopback is the only address on which anything listens.
const loopback = "127.0.0.1"

// routerAddress is where the nth router listens.
func (c *Cluster) routerAddress(n int) string {
	if c.opts.Port == 0 {
		return loopback + ":0"
	}
	return net.JoinHostPort(loopback, strconv.Itoa(c.opts.Port+n))
}

// StartRouter starts one more router, also at the address of a closed one; empty is a free port. Stop closes it.
func (c *Cluster) StartRouter(ctx context.Context, address string) (*router.Router, error) {
	r, err := router.Start(ctx, router.Options{ConfigURI: c.ConfigURI(), Listen: address, Logger: c.log})
	if err != nil {
		return nil, fmt.Errorf("lab: start a router of %s: %w", c.Name(), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.IndexFunc(c.routers, func(old *router.Router) bool { return old.Host() == r.Host() }); i >= 0 {
		c.routers[i] = r // it was closed
		return r, nil
	}
	c.routers = append(c.routers, r)
	return r, nil
}

// Routers are those that were started, in this order.
func (c *Cluster) Routers() []*router.Router {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.routers)
}

// URI is the connection string of all routers, with the root user; empty if there are none.
func (c *Cluster) URI() string {
	var hosts []string
	for _, r := range c.Routers() {
		hosts = append(hosts, r.Host())
	}
	if len(hosts) == 0 {
		return ""
	}
	return c.Config().RouterURI(hosts)
}

// ForTest starts a cluster, or takes an emptied one, as lab.ForTest does, by default with small caches.
func ForTest(t lab.TB, o Options) *Cluster {
	t.Helper()
	lab.NeedServers(t)
	o.LeanJournal = true
	if o.CacheGB == 0 {
		o.CacheGB = 0.25
	}
	c, err := startShared(t.Context(), o)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		end := (*Cluster).putBack
		if t.Failed() {
			for _, s := range append(c.Shards(), c.Config()) {
				s.LogTails(t)
			}
			end = (*Cluster).Stop
		}
		if err := end(c); err != nil {
			t.Logf("%v", err)
		}
	})
	return c
}
