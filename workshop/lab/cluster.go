// Package lab starts real mongod clusters on the loopback interface for the demo, the tests and the benchmarks.
// [Cluster.Stop] ends a cluster's processes by id; on Linux the kernel does so when their starter dies. Clusters
// that outlive their starter are made by [Store.Up].
package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// startTimeout bounds Start without a deadline, but for the download. Under wine64 members take minutes.
	startTimeout = 10 * time.Minute
	fetchTimeout = 15 * time.Minute // fetchTimeout bounds the download.
	portAttempts = 5                // how often Start chooses other ports when another process takes one.
)

// Cluster is a running cluster. Its methods may be called concurrently.
type Cluster struct {
	opts    Options
	topo    topology
	log     *slog.Logger
	mongod  string   // path of the binary
	env     []string // its additional environment
	dir     string
	tempDir *TempDir // nil when Options.Dir was given
	layout  *layout
	kept    bool // the layout comes from an earlier start
	leases  leases
	tls     *TLSFiles
	keyFile *keyFile // between members; nil without Auth
	members []*Member
	reuse   *reuse  // nil unless the cluster is kept for other tests
	shared  *shared // nil unless other tests of the process may use the cluster
}

// Start starts a cluster and waits for a writable primary and all members. ctx bounds the start alone.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if limit := keepFor(o); limit > 0 {
		return reuseCluster(ctx, o, limit)
	}
	c, err := newCluster(o)
	if err != nil {
		return nil, err
	}
	if err := c.findBinary(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("lab: start cluster %s: %w", c.Name(), err), c.Stop())
	}
	return c, nil
}

// newCluster checks the options and starts nothing yet.
func newCluster(o Options) (*Cluster, error) {
	o, found, err := o.resolve()
	if err != nil {
		return nil, err
	}
	topo, err := parseTopology(o.Topology)
	if err != nil {
		return nil, err
	}
	return &Cluster{opts: o, topo: topo, log: o.Logger, layout: found, kept: found != nil}, nil
}

// WithTimeout bounds a context that has no deadline yet.
func WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

func (c *Cluster) findBinary(ctx context.Context) (err error) {
	ctx, cancel := WithTimeout(ctx, fetchTimeout)
	defer cancel()
	c.mongod, c.env, err = Mongod(ctx, c.opts.Version)
	return err
}

// start does what Start says, except for cleaning up after an error.
func (c *Cluster) start(ctx context.Context) error {
	begin := time.Now()
	if err := c.prepare(ctx); err != nil {
		return err
	}
	if err := c.launchAll(ctx); err != nil {
		return err
	}
	if c.opts.launched != nil {
		if err := c.opts.launched(c); err != nil {
			return err
		}
	}
	if err := c.configure(ctx); err != nil {
		return err
	}
	// Not before: a layout says that the cluster is complete.
	if err := c.layout.save(c.dir); err != nil {
		return err
	}
	c.log.Info("cluster is up", "cluster", c.Name(), "members", len(c.members), "took", time.Since(begin))
	return nil
}

// prepare makes the directory and the files that members share.
func (c *Cluster) prepare(ctx context.Context) (err error) {
	if c.opts.Dir == "" {
		if c.tempDir, err = NewTempDir(); err != nil {
			return err
		}
		c.dir = c.tempDir.path
	} else if c.dir, err = filepath.Abs(c.opts.Dir); err != nil {
		return fmt.Errorf("find the data directory: %w", err)
	} else if err = os.MkdirAll(c.dir, 0o700); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	if c.opts.TLS && c.byWine() {
		return ErrNoTLS
	}
	if c.opts.Secrets == "" {
		return c.writeSecrets(c.dir)
	}
	// Clusters that share it may start side by side.
	unlock, err := lockFile(ctx, filepath.Join(c.opts.Secrets, "secrets.lock"))
	if err != nil {
		return fmt.Errorf("share a key file: %w", err)
	}
	defer unlock()
	return c.writeSecrets(c.opts.Secrets)
}

// writeSecrets makes what members prove themselves with, unless it is there.
func (c *Cluster) writeSecrets(dir string) (err error) {
	if c.opts.Auth && c.topo.replicaSet {
		if c.keyFile, err = writeKeyFile(dir); err != nil {
			return err
		}
	}
	if c.opts.TLS {
		if c.tls, err = writeTLSFiles(dir); err != nil {
			return err
		}
	}
	return nil
}

// launchAll starts all members, on other ports when one was taken meanwhile.
func (c *Cluster) launchAll(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		err := c.placeMembers(ctx)
		if err == nil {
			err = c.eachMember(ctx, func(ctx context.Context, m *Member) error { return m.launch(ctx) })
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, errPortTaken) || c.opts.Port != 0 || c.kept || attempt == portAttempts {
			return err
		}
		c.log.Debug("a port was taken meanwhile, choosing others", "cluster", c.Name())
		if err := c.endAll((*Member).Kill); err != nil {
			return err
		}
	}
}

// placeMembers decides where members listen and keep their data, and puts the proxies before them.
func (c *Cluster) placeMembers(ctx context.Context) (err error) {
	if !c.kept {
		c.layout, err = newLayout(&c.leases, c.opts.Name, c.topo.members, c.opts.Port, c.opts.proxied())
		if err != nil {
			return err
		}
	}
	c.members = nil
	for i, port := range c.layout.Ports {
		dir := filepath.Join(c.dir, strconv.Itoa(i))
		c.members = append(c.members, &Member{
			Index: i, Port: port, DBPath: filepath.Join(dir, "db"), dir: dir, cluster: c,
		})
	}
	return errors.Join(c.startDisks(), c.startProxies(ctx))
}

// Stop ends all processes by id, waits, and removes a temporary directory. It may be called twice.
func (c *Cluster) Stop() error {
	if c.reuse != nil {
		return c.reuse.release(c)
	}
	end := (*Member).Kill // the data are removed
	if c.tempDir == nil {
		end = (*Member).Stop
	}
	errs := []error{c.endAll(end)}
	c.leases.release()
	if c.tempDir != nil {
		errs = append(errs, c.tempDir.Remove())
	}
	return errors.Join(errs...)
}

func (c *Cluster) endAll(end func(*Member) error) error {
	err := c.eachMember(context.Background(), func(_ context.Context, m *Member) error { return end(m) })
	for _, m := range c.members {
		err = errors.Join(err, m.closeFront())
		if m.disk != nil {
			err = errors.Join(err, m.disk.close())
		}
	}
	return err
}

func (c *Cluster) arguments(m *Member) []string {
	args := []string{
		"--bind_ip", loopback, "--port", strconv.Itoa(m.Port),
		"--dbpath", m.DBPath, "--logpath", m.LogPath(), "--logappend",
		"--wiredTigerCacheSizeGB", strconv.FormatFloat(max(c.opts.CacheGB, leastCacheGB), 'f', -1, 64),
		// The diagnostic collector costs a wake-up a second and many files.
		"--setParameter", "diagnosticDataCollectionEnabled=false",
	}
	if !c.byWine() { // Windows has none
		args = append(args, "--nounixsocket")
	}
	if c.topo.replicaSet {
		args = append(args, "--replSet", c.opts.Name, "--oplogSize", strconv.Itoa(c.opts.OplogMB))
	}
	if c.opts.Role != "" {
		args = append(args, "--"+string(c.opts.Role))
	}
	if engine := c.opts.engine(); engine != "" {
		args = append(args, "--wiredTigerEngineConfigString", engine)
	}
	if atLeast5(c.opts.Version) {
		// Else a clean shutdown lets clients drain for 15 seconds.
		args = append(args, "--setParameter", "shutdownTimeoutMillisForSignaledShutdown=100")
	}
	switch {
	case c.keyFile != nil:
		args = append(args, "--keyFile", c.keyFile.path)
	case c.opts.Auth:
		args = append(args, "--auth")
	}
	if c.tls != nil {
		args = append(args, c.tls.arguments()...)
	}
	if c.opts.TestCommands {
		args = append(args, "--setParameter", "enableTestCommands=1")
	}
	for _, name := range slices.Sorted(maps.Keys(c.opts.SetParameters)) {
		args = append(args, "--setParameter", name+"="+c.opts.SetParameters[name])
	}
	return append(args, c.opts.Args...)
}

// Name of the cluster and its replica set.
func (c *Cluster) Name() string { return c.opts.Name }

// Dir is the directory that holds data, logs, key file and certificates.
func (c *Cluster) Dir() string { return c.dir }

// Members returns the members, by index.
func (c *Cluster) Members() []*Member { return slices.Clone(c.members) }

// TLSFiles returns the certificates, nil without Options.TLS.
func (c *Cluster) TLSFiles() *TLSFiles { return c.tls }

// URI is the connection string of the cluster, credentials included, through the proxies if there are any.
func (c *Cluster) URI() string { return c.uri(c.rootLogin(), c.Hosts(), c.discovery()) }

// DirectURI is the connection string of member i alone, never through its proxy.
func (c *Cluster) DirectURI(i int) string { return c.directURI(i, c.rootLogin()) }

// SystemURI is URI as the members log in to each other; it is URI without Auth. Only the lab may use it.
func (c *Cluster) SystemURI() string {
	return c.uri(c.systemLogin(), c.Hosts(), c.discovery())
}

// RouterURI is the connection string of routers at these hosts, with the users of config servers, without TLS.
func (c *Cluster) RouterURI(hosts []string) string { return buildURI(c.rootLogin(), hosts, nil) }

// X509URI is URI with the client certificate as login; empty unless the cluster has Auth and TLS.
func (c *Cluster) X509URI() string {
	if !c.opts.Auth || c.tls == nil {
		return ""
	}
	who := login{source: "$external", mechanism: "MONGODB-X509"}
	return c.uri(who, c.Hosts(), append(c.discovery(), parameter{"tlsCertificateKeyFile", c.tls.Client}))
}

// Hosts are the members' addresses for clients and for each other, by index: those of the proxies if there are any.
func (c *Cluster) Hosts() []string {
	var hosts []string
	for _, m := range c.members {
		hosts = append(hosts, m.publicHost())
	}
	return hosts
}

// discovery tells a driver what kind of cluster it will find.
func (c *Cluster) discovery() []parameter {
	if c.topo.replicaSet {
		return []parameter{{"replicaSet", c.opts.Name}}
	}
	return []parameter{{"directConnection", "true"}}
}

// rootLogin returns the root user, or no login when the cluster has no users.
func (c *Cluster) rootLogin() login {
	if !c.opts.Auth {
		return login{}
	}
	return root()
}

// systemLogin is the user that members are to each other, by the key file. It exists before other users.
func (c *Cluster) systemLogin() login {
	if c.keyFile == nil {
		return login{}
	}
	return login{"__system", c.keyFile.secret, "local", "SCRAM-SHA-256"}
}

func (c *Cluster) directURI(i int, who login) string {
	return c.uri(who, []string{c.members[i].Host()}, []parameter{{"directConnection", "true"}})
}

// uri adds the options for an encrypted connection, if the cluster wants one.
func (c *Cluster) uri(who login, hosts []string, params []parameter) string {
	if c.tls != nil {
		params = append(params, parameter{"tls", "true"}, parameter{"tlsCAFile", c.tls.CA})
	}
	return buildURI(who, hosts, params)
}

// layout is what a kept directory stores for the next start: a set knows its members by their addresses.
type layout struct {
	Name    string `json:"name"`
	Ports   []int  `json:"ports"`
	Proxies []int  `json:"proxies,omitempty"`
}

const layoutFile = "layout.json"

// readLayout returns the layout of a directory, nil if it holds no cluster.
func readLayout(dir string) (*layout, error) {
	name := filepath.Join(dir, layoutFile)
	data, err := os.ReadFile(name)
	if dir == "" || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lab: read what the directory holds: %w", err)
	}
	l := &layout{}
	if err := json.Unmarshal(data, l); err != nil {
		return nil, fmt.Errorf("lab: read %s: %w", name, err)
	}
	return l, nil
}

// adopt makes options fit the cluster that the directory holds already.
func (l *layout) adopt(o Options) (Options, error) {
	if l == nil {
		return o, nil
	}
	if o.Name == "" {
		o.Name = l.Name
	}
	topo, err := parseTopology(o.Topology)
	if err != nil {
		return o, err
	}
	if o.Name != l.Name || topo.members != len(l.Ports) || o.proxied() != (len(l.Proxies) > 0) ||
		o.Port != 0 && o.Port != l.Ports[0] {
		return o,
			fmt.Errorf("lab: %s holds another cluster (%s, ports %v, proxies %v); start that one or choose another directory",
				o.Dir, l.Name, l.Ports, l.Proxies)
	}
	return o, nil
}

// newLayout chooses ports for a new cluster; with a fixed port the proxies follow the members.
func newLayout(reserved *leases, name string, members, port int, proxy bool) (*layout, error) {
	n := members
	if proxy {
		n *= 2
	}
	ports, err := reserved.choose(port, n)
	if err != nil {
		return nil, err
	}
	return &layout{Name: name, Ports: ports[:members], Proxies: ports[members:]}, nil
}

func (l *layout) save(dir string) error {
	data, err := json.Marshal(l)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, layoutFile), data, 0o600)
	}
	return Wrap(err, "write the layout")
}

// The root user's credentials are no secret. A connection string has to escape their characters, for the tests.
const (
	rootUser     = "root@lab"
	rootPassword = "p@ss:w/rd%"
)

// login is whom a connection logs in as.
type login struct {
	user, password, source, mechanism string
}

func root() login { return login{rootUser, rootPassword, "admin", "SCRAM-SHA-256"} }

// parameter is one option of a connection string; they keep their order.
type parameter struct{ key, value string }

// buildURI makes a connection string; the zero login is none.
func buildURI(who login, hosts []string, params []parameter) string {
	var b strings.Builder
	b.WriteString("mongodb://")
	if who.user != "" {
		b.WriteString(escape(who.user) + ":" + escape(who.password) + "@")
	}
	b.WriteString(strings.Join(hosts, ",") + "/")
	if who.mechanism != "" {
		params = append(params, parameter{"authSource", who.source}, parameter{"authMechanism", who.mechanism})
	}
	for i, p := range params {
		b.WriteString(map[bool]string{true: "?", false: "&"}[i == 0])
		b.WriteString(p.key + "=" + escape(p.value))
	}
	return b.String()
}

// escape percent-escapes for a URI. QueryEscape writes a space as +, which connection strings do not know.
func escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
