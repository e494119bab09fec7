package mongo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/tag"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/wire"
)

// Kind is a deployment's shape.
type Kind string

// The shapes millrace tells apart.
const (
	KindReplicaSet Kind = "replica set"
	KindStandalone Kind = "standalone"
	KindSharded    Kind = "sharded cluster"
)

// Info identifies a deployment.
type Info struct {
	Kind    Kind
	Version Version
	FCV     string        // feature compatibility version, "" when not readable
	SetName string        // replica-set name
	SetID   bson.ObjectID // id of the replica set, or the sharded cluster: the same at any address
	Hosts   []string
	// Role and Shard, its name, say what the replica set is in a sharded cluster; "" when not readable.
	Role  Role
	Shard string
	// Connections is how many the primary, or the router, accepts from all clients; 0 when not readable.
	Connections int64
}

// Options shape a connection.
type Options struct {
	AppName string
	// ReadPreference of data reads; nil reads the primary.
	ReadPreference *readpref.ReadPref
	// ServerSelectionTimeout bounds the wait for a suitable server. Default: the connection string's, else 30 s.
	ServerSelectionTimeout time.Duration
	Warm                   int // how many connections of the pool to the primary are opened at once
	// ChooseCompression measures whether compressed messages move more, unless the connection string names a
	// compressor. Chosen may be nil; it is called when the choice changes.
	ChooseCompression bool
	Chosen            func(wire.Compression)
	// MaxPoolSize bounds connections per server of the pool, default 64.
	MaxPoolSize uint64
	MostInUse   int // what Cluster.Limit bounds later
}

// Cluster is an open deployment: the driver's client for ordinary commands and a wire.Pool for the hot path. They
// share connections until RenewConnections. It is safe for concurrent use.
type Cluster struct {
	Client *driver.Client
	Pool   *wire.Pool
	Info   Info

	uri    string
	direct bool     // to one server, whatever it is
	seeds  []string // the hosts that uri names
	first  hello    // of the server that identified the deployment
	read   *readpref.ReadPref
	asks   *questions // of Client
}

const (
	// maxConnecting is how many connections to a server may be opened at once.
	maxConnecting = 16
	// clientConnections is how many connections to a server the client may have besides the pool's.
	clientConnections = 64
	// idleTime is how long a connection may stay unused.
	idleTime = time.Minute
)

// Connect opens uri and reads the deployment's identity. Its errors contain no credentials.
func Connect(ctx context.Context, uri string, o Options) (*Cluster, error) {
	opts, err := ParseURI(uri)
	if err != nil {
		return nil, err
	}
	opts.SetAppName(o.AppName).SetRetryWrites(true).SetMaxPoolSize(cmp.Or(o.MaxPoolSize, 64) + clientConnections)
	if opts.MaxConnecting == nil {
		opts.SetMaxConnecting(maxConnecting) // far away, each takes several round trips
	}
	if opts.MaxConnIdleTime == nil {
		opts.SetMaxConnIdleTime(idleTime)
	}
	if o.ServerSelectionTimeout > 0 || opts.ServerSelectionTimeout == nil {
		opts.SetServerSelectionTimeout(cmp.Or(o.ServerSelectionTimeout, 30*time.Second))
	}
	if opts.ServerMonitoringMode == nil {
		// This saves a connection to each server. The next reply reports changes, and without a primary the driver
		// checks the servers twice a second.
		opts.SetServerMonitoringMode(options.ServerMonitoringModePoll)
	}
	checks := watchHeartbeats(opts)
	asks := &questions{}
	opts = asks.watch(*opts)
	openPool := wire.Open
	if o.ChooseCompression {
		openPool = func(opts *options.ClientOptions) (*wire.Pool, error) { return wire.OpenChoosing(opts, o.Chosen) }
	}
	pool, err := openPool(opts)
	if err != nil {
		return nil, fmt.Errorf("connect %s: %w", Redact(uri), scrub(err, uri))
	}
	pool.Limit(o.MostInUse)
	sharing := *opts
	var client *driver.Client
	if err = pool.Share(&sharing); err == nil {
		client, err = driver.Connect(&sharing)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect %s: %w", Redact(uri), scrub(err, uri)), pool.Close(ctx))
	}
	c := &Cluster{Client: client, Pool: pool, uri: uri, direct: opts.Direct != nil && *opts.Direct, seeds: opts.Hosts,
		read: o.ReadPreference, asks: asks}
	if err := c.identifyWithin(ctx, *opts.ServerSelectionTimeout, o.Warm); err != nil {
		c.Close()
		err = explainReach(explainMember(ctx, err, opts, c.Address()), opts, checks)
		return nil, WithHint(fmt.Errorf("reach %s: %w", Redact(uri), scrub(err, uri)), HintOf(err))
	}
	return c, nil
}

// Close disconnects. It waits up to 5 s for operations under way.
func (c *Cluster) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = c.Client.Disconnect(ctx)
	_ = c.Pool.Close(ctx)
}

func (c *Cluster) Limit(most int) { c.Pool.Limit(most) }

// Address is the connection string without credentials.
func (c *Cluster) Address() string { return Redact(c.uri) }

// Same reports that both are one deployment: by the set's id, its members, or the address.
func (c *Cluster) Same(other *Cluster) bool {
	a, b := c.Info, other.Info
	return !a.SetID.IsZero() && a.SetID == b.SetID || c.Address() == other.Address() ||
		slices.ContainsFunc(a.Hosts, func(h string) bool { return slices.Contains(b.Hosts, h) })
}

// Reader selects the member that data reads go to.
func (c *Cluster) Reader() wire.Selector { return wire.ByReadPreference(c.read) }

// Access identifies the servers, the user and the read preference. It is secret, as the connection string is.
func (c *Cluster) Access() string {
	if !c.Chooses() {
		return c.uri
	}
	return c.uri + "\x00" + c.read.String()
}

// Checkout is Pool.Checkout with a hint where no member suits a read preference.
func (c *Cluster) Checkout(ctx context.Context, sel wire.Selector) (*wire.Conn, error) {
	conn, err := c.Pool.Checkout(ctx, sel)
	if _, none := wire.UnsuitableServers(err); none && sel == c.Reader() && c.Chooses() {
		err = WithHint(err, "correct --read-preference and --read-tags, or start a member that they choose (rs.conf() "+
			"shows tags)")
	}
	return conn, err
}

// MayChoose reports whether the configuration has members that suit the read preference, up or not. It is true
// where that cannot be read.
func (c *Cluster) MayChoose(ctx context.Context) (bool, error) {
	raw, err := c.permitted(ctx, "admin", bson.D{{Key: "replSetGetConfig", Value: 1}})
	if err != nil || raw == nil || !c.Chooses() {
		return true, err
	}
	var reply struct {
		Config SetConfig `bson:"config"`
	}
	if err := bson.Unmarshal(raw, &reply); err != nil {
		return true, fmt.Errorf("read the configuration of %s: %w", c.Address(), err)
	}
	readable, chosen := 0, 0
	for _, m := range reply.Config.Members {
		if m.Arbiter || m.Hidden {
			continue
		}
		readable++
		sets := c.read.TagSets()
		has := func(set tag.Set) bool {
			return !slices.ContainsFunc(set, func(t tag.Tag) bool { return m.Tags[t.Name] != t.Value })
		}
		if len(sets) == 0 || slices.ContainsFunc(sets, has) {
			chosen++
		}
	}
	alone := c.read.Mode() == readpref.SecondaryMode && readable < 2
	return chosen > 0 && !alone, nil
}

// Chooses reports a read preference other than the primary.
func (c *Cluster) Chooses() bool { return c.read != nil && c.read.Mode() != readpref.PrimaryMode }

func (c *Cluster) Command(ctx context.Context, db string, cmd any) (bson.Raw, error) {
	return c.Client.Database(db).RunCommand(ctx, cmd, options.RunCmd().SetReadPreference(readpref.Primary())).Raw()
}

// Documents runs a command on the primary that lists documents. The first reply mostly has all: then it takes the
// client half the time of a cursor.
func (c *Cluster) Documents(ctx context.Context, db string, cmd bson.D) ([]bson.Raw, error) {
	raw, err := c.Command(ctx, db, cmd)
	if err != nil {
		return nil, err
	}
	id, _ := raw.Lookup("cursor", "id").AsInt64OK()
	if id == 0 {
		values, err := raw.Lookup("cursor", "firstBatch").Array().Values()
		docs := make([]bson.Raw, len(values))
		for i, v := range values {
			docs[i] = v.Document()
		}
		return docs, err
	}
	ns, _ := raw.Lookup("cursor", "ns").StringValueOK()
	_, coll := SplitNS(ns)
	_, _ = c.Command(ctx, db, bson.D{{Key: "killCursors", Value: coll}, {Key: "cursors", Value: bson.A{id}}})
	cur, err := c.Client.Database(db).RunCommandCursor(ctx, cmd, options.RunCmd().SetReadPreference(readpref.Primary()))
	if err != nil {
		return nil, err
	}
	var docs []bson.Raw
	err = cur.All(ctx, &docs)
	return docs, err
}

// DataSize returns the documents and bytes of a collection of a replica set or standalone by the
// primary's counters, 0 for a collection that does not exist. Routers do not estimate. The statistics
// of collStats take five times as long, for their counters of the storage engine (seen on 6.0.5).
func (c *Cluster) DataSize(ctx context.Context, ns string) (count, bytes int64, err error) {
	db, _ := SplitNS(ns)
	raw, err := c.Command(ctx, db, bson.D{{Key: "dataSize", Value: ns}, {Key: "estimate", Value: true}})
	if err != nil {
		return 0, 0, fmt.Errorf("size of %s on %s: %w", ns, c.Address(), err)
	}
	count, _ = raw.Lookup("numObjects").AsInt64OK()
	bytes, _ = raw.Lookup("size").AsInt64OK()
	return count, bytes, nil
}

type hello struct {
	LocalTime    time.Time `bson:"localTime"`
	SetName      string    `bson:"setName"`
	Msg          string    `bson:"msg"`
	Hosts        []string  `bson:"hosts"`
	Passives     []string  `bson:"passives"`
	Arbiters     []string  `bson:"arbiters"`
	Primary      string    `bson:"primary"`
	Writable     bool      `bson:"ismaster"`
	Secondary    bool      `bson:"secondary"`
	Arbiter      bool      `bson:"arbiterOnly"`
	Ghost        bool      `bson:"isreplicaset"` // wants a set's configuration
	ConfigServer int       `bson:"configsvr"`
	LastWrite    Positions `bson:"lastWrite"`
	ClusterTime  struct {
		ClusterTime bson.Timestamp `bson:"clusterTime"`
	} `bson:"$clusterTime"`
	// Committed is in replies of shards and config servers alone (seen on 4.2 to 6.0).
	Committed bson.Timestamp `bson:"lastCommittedOpTime"`
}

const msgRouter = "isdbgrid"

func (c *Cluster) hello(ctx context.Context) (h hello, err error) {
	raw, err := c.Command(ctx, "admin", bson.D{{Key: "isMaster", Value: 1}})
	if err == nil {
		err = bson.Unmarshal(raw, &h)
	}
	h.LastWrite.Now = h.LocalTime
	return h, err
}

// Ahead is how far the clock of the primary, or of a router, is ahead of this machine's.
func (c *Cluster) Ahead(ctx context.Context) (time.Duration, error) {
	h, err := c.hello(ctx)
	if err != nil {
		return 0, fmt.Errorf("clock of %s: %w", c.Address(), err)
	}
	return time.Until(h.LocalTime), nil
}

func helloOn(ctx context.Context, conn *wire.Conn) (hello, error) {
	raw, err := conn.Run(ctx, "admin", bson.D{{Key: "isMaster", Value: 1}})
	if err != nil {
		return hello{}, err
	}
	return parseHello(raw)
}

// parseHello reads the reply. The term is -1 where there is none.
func parseHello(raw []byte) (h hello, err error) {
	h.LastWrite.Last.Term = -1
	err = bson.Unmarshal(raw, &h)
	return h, err
}

// identifyWithin retries after an election or a cut, up to limit.
func (c *Cluster) identifyWithin(ctx context.Context, limit time.Duration, warm int) error {
	for began := time.Now(); ; {
		err := c.identify(ctx, warm)
		// The driver cancels the opening of a connection when another one fails.
		cut := errors.Is(err, context.Canceled) && ctx.Err() == nil
		if err == nil || Classify(err) != ClassRetry && !cut || time.Since(began) > limit {
			return err
		}
		if pace.Pause(ctx, 200*time.Millisecond) != nil {
			return err
		}
	}
}

// identify fills Info, and warms connections. The first command shows whether the server can be reached and
// accepts the user; the others run at once.
func (c *Cluster) identify(ctx context.Context, warm int) error {
	h, err := c.hello(ctx)
	if err != nil {
		return err
	}
	c.first = h
	if c.Pool.Limited() {
		// Before other commands: one that is given back while another is opened counts twice.
		c.Pool.Warm(ctx, math.MaxInt)
		warm = 0
	}
	var build, config, status, shard bson.Raw
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		c.Pool.Warm(gctx, warm)
		return nil
	})
	g.Go(func() (err error) {
		build, err = c.Command(gctx, "admin", bson.D{{Key: "buildInfo", Value: 1}})
		return err
	})
	g.Go(func() (err error) {
		c.Info.FCV, err = c.Compatibility(gctx)
		return err
	})
	ask := func(reply *bson.Raw, cmd bson.D) {
		g.Go(func() (err error) {
			*reply, err = c.permitted(gctx, "admin", cmd)
			return err
		})
	}
	ask(&config, bson.D{{Key: "replSetGetConfig", Value: 1}})
	if h.SetName != "" && h.Writable { // other members may take no reads
		ask(&shard, bson.D{{Key: "find", Value: "system.version"},
			{Key: "filter", Value: bson.D{{Key: "_id", Value: "shardIdentity"}}}})
	}
	ask(&status, bson.D{{Key: "serverStatus", Value: 1}, {Key: "metrics", Value: 0}, {Key: "wiredTiger", Value: 0},
		{Key: "repl", Value: 0}, {Key: "locks", Value: 0}, {Key: "tcmalloc", Value: 0}})
	if err := g.Wait(); err != nil {
		return err
	}
	used, _ := status.Lookup("connections", "current").AsInt64OK()
	left, _ := status.Lookup("connections", "available").AsInt64OK()
	c.Info.Connections = used + left
	c.Info.Kind, c.Info.SetName, c.Info.Hosts = KindStandalone, h.SetName, h.Hosts
	switch {
	case h.Msg == msgRouter:
		c.Info.Kind = KindSharded
	case h.SetName != "":
		c.Info.Kind = KindReplicaSet
	}
	version, _ := build.Lookup("version").StringValueOK()
	if c.Info.Version, err = ParseVersion(version); err != nil {
		return err
	}
	switch c.Info.Kind {
	case KindReplicaSet:
		c.Info.SetID, _ = config.Lookup("config", "settings", "replicaSetId").ObjectIDOK()
		var known bool
		switch c.Info.Shard, known = shard.Lookup("cursor", "firstBatch", "0", "shardName").StringValueOK(); {
		case h.ConfigServer != 0:
			c.Info.Role = RoleConfig
		case known || !h.Committed.IsZero():
			c.Info.Role = RoleShard
		}
	case KindSharded:
		about, err := c.permitted(ctx, "config", bson.D{{Key: "find", Value: "version"}, {Key: "limit", Value: 1}})
		if err != nil {
			return err
		}
		c.Info.SetID, _ = about.Lookup("cursor", "firstBatch", "0", "clusterId").ObjectIDOK()
	}
	return nil
}

// permitted runs a command that not every user may run, or every server knows; its reply is empty then. A
// transient failure is an error: a set without id would be taken for another one.
func (c *Cluster) permitted(ctx context.Context, db string, cmd bson.D) (bson.Raw, error) {
	raw, err := c.Command(ctx, db, cmd)
	if err == nil || Classify(err) == ClassRetry || ctx.Err() != nil {
		return raw, err
	}
	return nil, nil
}

// Compatibility reads the featureCompatibilityVersion, such as "6.0"; "" of a router or without the privilege.
func (c *Cluster) Compatibility(ctx context.Context) (string, error) {
	raw, err := c.permitted(ctx, "admin", bson.D{{Key: "getParameter", Value: 1},
		{Key: "featureCompatibilityVersion", Value: 1}})
	fcv, _ := raw.Lookup("featureCompatibilityVersion", "version").StringValueOK()
	return fcv, err
}

// OlderFCV reports a featureCompatibilityVersion older than another; never where one is "".
func OlderFCV(fcv, than string) bool {
	a, err1 := ParseVersion(fcv)
	b, err2 := ParseVersion(than)
	return err1 == nil && err2 == nil && a.OlderThan(b)
}

// Positions are a replica set's replication positions by its primary.
type Positions struct {
	Last     OpTime    `bson:"opTime"`         // newest write
	Majority OpTime    `bson:"majorityOpTime"` // newest majority-committed write
	Now      time.Time `bson:"-"`              // the primary's wall clock of the answer
}

// Positions asks the primary where its oplog stands.
func (c *Cluster) Positions(ctx context.Context) (Positions, error) {
	h, err := c.hello(ctx)
	if err != nil {
		return Positions{}, fmt.Errorf("read replication position of %s: %w", c.Address(), err)
	}
	return h.LastWrite, nil
}
