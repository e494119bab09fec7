package topology

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
)

// defaultTimeout bounds one member's answer: a member that is down must not
// hold up the view of the others.
const defaultTimeout = 3 * time.Second

// Observer reads replica sets. It asks each member itself where it can be
// reached. Its methods are not to be called concurrently.
type Observer struct {
	opts    *options.ClientOptions // as the connection string says
	uri     string
	app     string // name of the connections
	timeout time.Duration
	seeds   []string
	clients map[string]*driver.Client
	sources map[string]seenSource
	cpu     map[string]cpuSample
	primary string          // the last one seen
	silent  map[string]bool // did not answer the last time
	facts   map[string]facts
	lean    bool // asks for no more than a tree needs
}

type seenSource struct {
	source string
	since  time.Time
}

// cpuSample is a server's processor time at a moment.
type cpuSample struct {
	at      time.Time
	seconds float64
}

// Open prepares an observer of the replica set behind uri; timeout bounds each
// member's answer, 0 is 3 seconds. Nothing is connected yet.
func Open(uri string, timeout time.Duration) (*Observer, error) {
	opts, err := mongo.ParseURI(uri)
	if err != nil {
		return nil, err
	}
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	return &Observer{
		opts: opts, uri: uri, app: appName, timeout: timeout, seeds: slices.Clone(opts.Hosts),
		clients: map[string]*driver.Client{}, sources: map[string]seenSource{}, cpu: map[string]cpuSample{},
		silent: map[string]bool{}, facts: map[string]facts{},
	}, nil
}

// Lean makes the observer ask members for no more than a tree needs, so that
// looking often costs little: their processor time stays unknown.
func (o *Observer) Lean() { o.lean = true }

// Close disconnects from all members.
func (o *Observer) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, c := range o.clients {
		wg.Go(func() { _ = c.Disconnect(ctx) })
	}
	wg.Wait()
}

// client returns a client of one member alone.
func (o *Observer) client(host string) (*driver.Client, error) {
	if c := o.clients[host]; c != nil {
		return c, nil
	}
	// Of the connection string only what it takes to get in: a direct connection
	// to one member has no set, and an SRV record would lead elsewhere.
	opts := options.Client().SetHosts([]string{host}).SetDirect(true).SetAppName(o.app).
		SetServerSelectionTimeout(o.timeout).SetConnectTimeout(o.timeout).SetMaxPoolSize(noteWriters + 4).
		SetServerMonitoringMode(options.ServerMonitoringModePoll)
	opts.Auth, opts.TLSConfig, opts.Compressors, opts.ServerAPIOptions = o.opts.Auth, o.opts.TLSConfig, o.opts.Compressors,
		o.opts.ServerAPIOptions
	c, err := driver.Connect(opts)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", host, err)
	}
	o.clients[host] = c
	return c, nil
}

// on does something with one member, within the time that it has to answer.
func (o *Observer) on(ctx context.Context, host string, do func(context.Context, *driver.Client) error) error {
	c, err := o.client(host)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	return do(ctx, c)
}

// Observe reads the set. Members that do not answer are described by what the
// others have heard of them. It fails when no member answers.
func (o *Observer) Observe(ctx context.Context) (*Set, error) {
	first, err := o.discover(ctx)
	if err != nil {
		return nil, err
	}
	views := map[string]*view{}
	// The primary first: what the others have applied is then never compared
	// with a position older than their own answer needs.
	primary := first.status.primary()
	if primary != "" {
		q := o.question(primary)
		if first.host == primary {
			q.status = first.status
		}
		views[primary] = q.ask(ctx)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	questions := map[string]question{} // made first: the observer's maps are not for concurrent use
	for _, m := range first.config.Members {
		if m.Host != primary {
			questions[m.Host] = o.question(m.Host)
		}
	}
	for host, q := range questions {
		wg.Go(func() {
			v := q.ask(ctx)
			mu.Lock()
			defer mu.Unlock()
			views[host] = v
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	for host, v := range views {
		o.silent[host] = v.err != nil
		if v.err == nil {
			o.facts[host] = v.facts
		}
	}
	set := o.assemble(first, views)
	o.remember(set)
	return set, nil
}

// patience is how long a member may take to answer. One that was silent the
// last time is given less, so that a member that is down does not slow down
// every look at the others.
func (o *Observer) patience(host string) time.Duration {
	if o.silent[host] {
		return max(o.timeout/8, 100*time.Millisecond)
	}
	return o.timeout
}

// discovery is what some member says of the whole set.
type discovery struct {
	host   string // the member
	config *setConfig
	status *status
}

// discover asks one member after another, the last primary first, for the
// configuration.
func (o *Observer) discover(ctx context.Context) (*discovery, error) {
	hosts := slices.Clone(o.seeds)
	for h := range o.clients {
		if !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
	}
	slices.SortStableFunc(hosts, func(a, b string) int {
		return cmp.Or(boolRank(o.silent[a])-boolRank(o.silent[b]), boolRank(b == o.primary)-boolRank(a == o.primary))
	})
	var failed []error
	for _, h := range hosts {
		d, err := o.discoverFrom(ctx, h)
		o.silent[h] = err != nil
		if err == nil {
			return d, nil
		}
		failed = append(failed, fmt.Errorf("ask %s: %w", h, err))
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return nil, mongo.WithHint(fmt.Errorf("no member of %s describes its replica set: %w", mongo.Redact(o.uri),
		errors.Join(failed...)), "the address has to be that of a replica set; the user needs the role clusterMonitor, and "+
		"clusterManager to change anything")
}

func (o *Observer) discoverFrom(ctx context.Context, host string) (*discovery, error) {
	c, err := o.client(host)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.patience(host))
	defer cancel()
	config, err := readConfig(ctx, c)
	if err != nil {
		return nil, mongo.ExplainReach(err, o.opts)
	}
	status, err := readStatus(ctx, c)
	if err != nil {
		return nil, err
	}
	return &discovery{host, config, status}, nil
}

// remember keeps what the next observation is compared with.
func (o *Observer) remember(s *Set) {
	o.primary = ""
	if p := s.Primary(); p != nil {
		o.primary = p.Host
	}
	for i := range s.Members {
		m := &s.Members[i]
		was, known := o.sources[m.Host]
		if m.Source == "" {
			delete(o.sources, m.Host)
			continue
		}
		if !known || was.source != m.Source {
			was = seenSource{m.Source, s.At}
			o.sources[m.Host] = was
		}
		m.SourceSince = was.since
	}
}

func boolRank(b bool) int {
	if b {
		return 1
	}
	return 0
}

// setConfig is the reply of replSetGetConfig, as far as it matters.
type setConfig struct {
	ID       string         `bson:"_id"`
	Version  int64          `bson:"version"`
	Members  []memberConfig `bson:"members"`
	Settings struct {
		Chaining     *bool         `bson:"chainingAllowed"`
		ReplicaSetID bson.ObjectID `bson:"replicaSetId"`
	} `bson:"settings"`
}

type memberConfig struct {
	ID          int               `bson:"_id"`
	Host        string            `bson:"host"`
	Arbiter     bool              `bson:"arbiterOnly"`
	Hidden      bool              `bson:"hidden"`
	BuildIndex  *bool             `bson:"buildIndexes"`
	Priority    *float64          `bson:"priority"`
	Votes       *int              `bson:"votes"`
	Tags        map[string]string `bson:"tags"`
	Delay       int64             `bson:"secondaryDelaySecs"`
	DelayBefore int64             `bson:"slaveDelay"` // its name before 5.0
}

// status is the reply of replSetGetStatus, as far as it matters.
type status struct {
	Date     time.Time `bson:"date"`
	Term     int64     `bson:"term"`
	State    int       `bson:"myState"`
	SyncHost string    `bson:"syncSourceHost"`
	SyncTo   string    `bson:"syncingTo"` // its name before 4.4
	OpTimes  struct {
		Applied   mongo.OpTime `bson:"appliedOpTime"`
		Durable   mongo.OpTime `bson:"durableOpTime"`
		AppliedAt time.Time    `bson:"lastAppliedWallTime"`
		DurableAt time.Time    `bson:"lastDurableWallTime"`
	} `bson:"optimes"`
	Members     []memberStatus `bson:"members"`
	InitialSync bson.Raw       `bson:"initialSyncStatus"`
}

type memberStatus struct {
	Name      string       `bson:"name"`
	Health    float64      `bson:"health"`
	State     string       `bson:"stateStr"`
	Uptime    int64        `bson:"uptime"` // seconds
	Applied   mongo.OpTime `bson:"optime"`
	Durable   mongo.OpTime `bson:"optimeDurable"`
	AppliedAt time.Time    `bson:"lastAppliedWallTime"`
	DurableAt time.Time    `bson:"lastDurableWallTime"`
	Heartbeat time.Time    `bson:"lastHeartbeat"`
	Ping      float64      `bson:"pingMs"`
	SyncHost  string       `bson:"syncSourceHost"`
	SyncTo    string       `bson:"syncingTo"`
	Elected   time.Time    `bson:"electionDate"`
	Self      bool         `bson:"self"`
}

func readConfig(ctx context.Context, c *driver.Client) (*setConfig, error) {
	var reply struct {
		Config setConfig `bson:"config"`
	}
	err := c.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetGetConfig", Value: 1}}).Decode(&reply)
	return &reply.Config, err
}

func readStatus(ctx context.Context, c *driver.Client) (*status, error) {
	var s status
	err := c.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetGetStatus", Value: 1}}).Decode(&s)
	return &s, err
}

// primary is the address of the member that is taken for the primary, "" for none.
func (s *status) primary() string {
	for _, m := range s.Members {
		if m.State == StatePrimary {
			return m.Name
		}
	}
	return ""
}

// of returns what the status says of a member.
func (s *status) of(host string) *memberStatus {
	for i := range s.Members {
		if s.Members[i].Name == host {
			return &s.Members[i]
		}
	}
	return nil
}

// view is one member's own answer.
type view struct {
	status *status
	facts  facts
	cpu    float64 // seconds of processor time, -1 unknown
	err    error
}

// facts are what a server is asked once, for it cannot change while it runs.
type facts struct {
	uptime   int64 // seconds, when last asked
	started  time.Time
	override *bool
	version  string
}

// startNoise is how far off a start is that is computed from whole seconds.
const startNoise = 2 * time.Second

// of says that these are the facts of the server that has answered, which was
// not started again since.
func (f facts) of(uptime int64, started time.Time) bool {
	return !f.started.IsZero() && uptime >= f.uptime && started.Sub(f.started).Abs() <= startNoise
}

// question is what one member is to be asked. It may be asked beside others.
type question struct {
	client *driver.Client
	err    error // why it cannot be asked
	limit  time.Duration
	status *status // its answer, where it has been asked already
	known  facts
	cpu    bool // its processor time is wanted
}

func (o *Observer) question(host string) question {
	c, err := o.client(host)
	return question{client: c, err: err, limit: o.patience(host), known: o.facts[host], cpu: !o.lean}
}

// ask asks for all that a member knows of itself and the others.
func (q question) ask(ctx context.Context) *view {
	ctx, cancel := context.WithTimeout(ctx, q.limit)
	defer cancel()
	s, err := q.status, q.err
	if s == nil && err == nil {
		s, err = readStatus(ctx, q.client)
	}
	if err != nil {
		return &view{err: err}
	}
	v := &view{status: s, cpu: -1, facts: q.known}
	var uptime int64
	for _, m := range s.Members {
		if m.Self {
			uptime = m.Uptime
		}
	}
	started := s.Date.Add(-time.Duration(uptime) * time.Second)
	fresh := !q.known.of(uptime, started)
	// What follows is good to know but not needed: rights may be missing.
	if fresh {
		v.facts = readFacts(ctx, q.client, started)
	}
	v.facts.uptime = uptime
	if fresh || q.cpu {
		version, cpu := readServer(ctx, q.client)
		v.facts.version, v.cpu = cmp.Or(version, v.facts.version), cpu
	}
	return v
}

// readServer asks for the version and the processor time used, -1 if unknown.
func readServer(ctx context.Context, c *driver.Client) (version string, cpu float64) {
	var server struct {
		Version string `bson:"version"`
		Extra   struct {
			User   int64 `bson:"user_time_us"`
			System int64 `bson:"system_time_us"`
		} `bson:"extra_info"`
	}
	sections := bson.D{{Key: "serverStatus", Value: 1}}
	for _, name := range []string{"asserts", "connections", "locks", "metrics", "network", "opcounters", "opLatencies",
		"wiredTiger", "repl", "mirroredReads"} {
		sections = append(sections, bson.E{Key: name, Value: 0})
	}
	if err := c.Database("admin").RunCommand(ctx, sections).Decode(&server); err != nil {
		return "", -1
	}
	if us := server.Extra.User + server.Extra.System; us > 0 {
		return server.Version, float64(us) / 1e6
	}
	return server.Version, -1
}

// readFacts asks whether the member may chain although the set may not; what
// servers that do not know the parameter say is an answer, too.
func readFacts(ctx context.Context, c *driver.Client, started time.Time) facts {
	var parameter struct {
		Override *bool `bson:"enableOverrideClusterChainingSetting"`
	}
	err := c.Database("admin").RunCommand(ctx,
		bson.D{{Key: "getParameter", Value: 1}, {Key: "enableOverrideClusterChainingSetting", Value: 1}}).Decode(&parameter)
	if answer := (driver.CommandError{}); err != nil && !errors.As(err, &answer) {
		return facts{} // to be asked again
	}
	return facts{started: started, override: parameter.Override}
}
