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

// Observer reads a replica set by asking each member. It is not safe for concurrent use.
type Observer struct {
	opts    *options.ClientOptions // as the connection string says
	uri     string
	app     string // name of the connections
	timeout time.Duration
	seeds   []string
	hosts   map[string]*hostState
	primary string // the last one seen
	lean    bool   // asks for no more than a tree needs
}

type hostState struct {
	client *driver.Client // nil before the first connection
	silent bool           // did not answer the last time
	facts  facts
	source string // as last seen
	since  time.Time
	cpu    float64 // processor time in seconds, at cpuAt
	cpuAt  time.Time
}

// Open returns an observer of the replica set behind uri. timeout bounds each member's answer; 0 is 3 seconds.
func Open(uri string, timeout time.Duration) (*Observer, error) {
	opts, err := mongo.ParseURI(uri)
	if err != nil {
		return nil, err
	}
	if timeout <= 0 {
		timeout = 3 * time.Second // a member that is down does not delay the others for longer
	}
	return &Observer{opts: opts, uri: uri, app: appName, timeout: timeout, seeds: slices.Clone(opts.Hosts),
		hosts: map[string]*hostState{}}, nil
}

// Lean makes observations cheap: processor times stay unknown.
func (o *Observer) Lean() { o.lean = true }

func (o *Observer) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, h := range o.hosts {
		if h.client != nil {
			wg.Go(func() { _ = h.client.Disconnect(ctx) })
		}
	}
	wg.Wait()
}

func (o *Observer) host(name string) *hostState {
	if o.hosts[name] == nil {
		o.hosts[name] = &hostState{}
	}
	return o.hosts[name]
}

func (o *Observer) client(host string) (*driver.Client, error) {
	h := o.host(host)
	if h.client != nil {
		return h.client, nil
	}
	// A direct connection has no set, and an SRV record would lead elsewhere.
	opts := options.Client().SetHosts([]string{host}).SetDirect(true).SetAppName(o.app).
		SetServerSelectionTimeout(o.timeout).SetConnectTimeout(o.timeout).SetMaxPoolSize(noteWriters + 4).
		SetServerMonitoringMode(options.ServerMonitoringModePoll)
	opts.Auth, opts.TLSConfig, opts.Compressors, opts.ServerAPIOptions = o.opts.Auth, o.opts.TLSConfig, o.opts.Compressors,
		o.opts.ServerAPIOptions
	c, err := driver.Connect(opts)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", host, err)
	}
	h.client = c
	return c, nil
}

// on calls do with a client of one member, for no longer than limit.
func (o *Observer) on(ctx context.Context, host string, limit time.Duration,
	do func(context.Context, *driver.Client) error) error {
	c, err := o.client(host)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return do(ctx, c)
}

// Observe reads the set. A member that does not answer is described by what the others have heard of it.
// It fails when no member answers.
func (o *Observer) Observe(ctx context.Context) (*Set, error) {
	first, err := o.discover(ctx)
	if err != nil {
		return nil, err
	}
	views := map[string]*view{}
	// The primary first: then no member is compared with a position older than its own.
	primary := first.status.Primary().Name
	if primary != "" {
		q := o.question(primary)
		if first.host == primary {
			q.status = &first.status
		}
		views[primary] = q.ask(ctx)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, m := range first.config.Members {
		if m.Host == primary {
			continue
		}
		q := o.question(m.Host)
		wg.Go(func() {
			v := q.ask(ctx)
			mu.Lock()
			defer mu.Unlock()
			views[m.Host] = v
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	for host, v := range views {
		h := o.host(host)
		if h.silent = v.err != nil; !h.silent {
			h.facts = v.facts
		}
	}
	set := o.assemble(first, views)
	o.remember(set)
	return set, nil
}

// limit bounds a member's answer. It is short for one that did not answer the last time.
func (o *Observer) limit(host string) time.Duration {
	if o.host(host).silent {
		return max(o.timeout/8, 100*time.Millisecond)
	}
	return o.timeout
}

type discovery struct {
	host   string // the member
	config mongo.SetConfig
	status mongo.SetStatus
}

// discover asks one member after another for the configuration, the last primary first.
func (o *Observer) discover(ctx context.Context) (*discovery, error) {
	hosts := slices.Clone(o.seeds)
	for h := range o.hosts {
		if !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
	}
	slices.SortStableFunc(hosts, func(a, b string) int {
		return cmp.Or(boolRank(o.host(a).silent)-boolRank(o.host(b).silent),
			boolRank(b == o.primary)-boolRank(a == o.primary))
	})
	var failed []error
	for _, h := range hosts {
		d, err := o.discoverFrom(ctx, h)
		o.host(h).silent = err != nil
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
	d := &discovery{host: host}
	err := o.on(ctx, host, o.limit(host), func(ctx context.Context, c *driver.Client) (err error) {
		if d.config, err = mongo.ReadSetConfig[mongo.SetConfig](ctx, c); err != nil {
			return mongo.ExplainReach(err, o.opts)
		}
		d.status, err = mongo.ReadSetStatus(ctx, c)
		return err
	})
	return d, err
}

func (o *Observer) remember(s *Set) {
	o.primary = ""
	if p := s.Primary(); p != nil {
		o.primary = p.Host
	}
	for i := range s.Members {
		m := &s.Members[i]
		h := o.host(m.Host)
		if h.source != m.Source {
			h.source, h.since = m.Source, s.At
		}
		if m.Source != "" {
			m.SourceSince = h.since
		}
	}
}

func boolRank(b bool) int {
	if b {
		return 1
	}
	return 0
}

type view struct {
	status *mongo.SetStatus
	facts  facts
	cpu    float64 // seconds of processor time, -1 unknown
	err    error
}

// facts cannot change while a server runs.
type facts struct {
	uptime   int64 // seconds, when last asked
	started  time.Time
	override *bool
	version  string
}

// of reports whether these are the facts of the server that answered: it was not restarted. Its start is computed
// from whole seconds.
func (f facts) of(uptime int64, started time.Time) bool {
	return !f.started.IsZero() && uptime >= f.uptime && started.Sub(f.started).Abs() <= 2*time.Second
}

type question struct {
	client *driver.Client
	err    error // why there is no client
	limit  time.Duration
	status *mongo.SetStatus // nil unless it has answered already
	known  facts
	cpu    bool // asks for the processor time
}

func (o *Observer) question(host string) question {
	c, err := o.client(host)
	return question{client: c, err: err, limit: o.limit(host), known: o.host(host).facts, cpu: !o.lean}
}

func (q question) ask(ctx context.Context) *view {
	ctx, cancel := context.WithTimeout(ctx, q.limit)
	defer cancel()
	s, err := q.status, q.err
	if s == nil && err == nil {
		s = &mongo.SetStatus{}
		*s, err = mongo.ReadSetStatus(ctx, q.client)
	}
	if err != nil {
		return &view{err: err}
	}
	v := &view{status: s, cpu: -1, facts: q.known}
	uptime := s.Self().Uptime
	started := s.Date.Add(-time.Duration(uptime) * time.Second)
	fresh := !q.known.of(uptime, started)
	// Privileges for the rest may be missing.
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

// readServer returns the version and the processor time in seconds, -1 if unknown.
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

// readFacts asks whether the member may chain although the set may not. A server without the parameter returns
// an error, which is an answer too.
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
