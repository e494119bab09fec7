package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// TB is the part of testing.TB that [ForTest] needs, so that programs do not link the testing package.
type TB interface {
	Helper()
	Cleanup(func())
	Failed() bool
	Name() string
	Skip(args ...any)
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	Context() context.Context
}

// NeedServers skips a test under go test -short.
func NeedServers(t TB) {
	t.Helper()
	if Short() {
		t.Skip("needs a mongod")
	}
}

// ForTest starts a cluster with a lean journal, or takes an emptied one that earlier tests of the process have used.
// It skips the test under -short. After a failed test it logs the ends of the servers' logs and stops the cluster.
func ForTest(t TB, o Options) *Cluster {
	t.Helper()
	NeedServers(t)
	o.LeanJournal = true
	c, err := startShared(t.Context(), o)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		end := (*Cluster).putBack
		if t.Failed() {
			if c.reuse != nil {
				c.reuse.spent = true
			}
			c.LogTails(t)
			end = (*Cluster).Stop
		}
		if err := end(c); err != nil {
			t.Logf("%v", err)
		}
	})
	return c
}

// LogTails logs the ends of the servers' logs.
func (c *Cluster) LogTails(t TB) {
	t.Helper()
	for _, m := range c.Members() {
		t.Logf("log of member %d of %s (pid %d) ends with:\n%s", m.Index, c.Name(), m.Pid(),
			strings.Join(m.logTail(25), "\n"))
	}
}

// InMatrix reports MILLRACE_TEST_MATRIX, which make matrix sets for what make test has no time for.
func InMatrix() bool { return os.Getenv("MILLRACE_TEST_MATRIX") != "" }

// Brief reports MILLRACE_TEST_BRIEF, of make test: do a fixed part of the work. A test run by name does all.
func Brief() bool { return os.Getenv("MILLRACE_TEST_BRIEF") != "" && testFlag("test.run") == "" }

// Nightly skips the test in make test. make nightly, go test, make matrix and make soak run it.
func Nightly(t TB) {
	t.Helper()
	if Brief() {
		t.Skip("make nightly plays it, and go test")
	}
}

// Share skips the test in make test but for one in n of many similar ones, chosen by name.
func Share(t TB, n uint64) {
	t.Helper()
	h := fnv.New64a()
	_, _ = io.WriteString(h, t.Name())
	if h.Sum64()>>32%n != 0 { // similar names differ little in the low bits
		Nightly(t)
	}
}

// Versions are the servers that a test runs with: 6.0, and in the matrix the older ones too.
func Versions(older ...string) []string {
	if !InMatrix() {
		return []string{"6.0"}
	}
	return append(older, "6.0")
}

// ProxyForTest is a proxy before any server that a test has.
func ProxyForTest(t TB, upstream string) *Proxy {
	t.Helper()
	p, err := newProxy(0, upstream, func(net.Conn) int { return client }, 0)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(p.close)
	return p
}

// PortForTest is a port that nothing listens on, and that no other test gets.
func PortForTest(t TB) int {
	t.Helper()
	var l leases
	ports, err := l.free(1)
	t.Cleanup(l.release)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return ports[0]
}

// With MILLRACE_LAB_KEEP=15m a test takes a cluster that an earlier test left running, or starts one that runs on
// for that time. MILLRACE_TEST_BENCH is the millrace-bench whose `lab guard` ends it. Kept are clusters of one
// member without users, TLS, proxies, quotas, disks and own names. Each is emptied first, and ended when a test
// failed on it, stopped a member or was interrupted.

// Short reports whether go test runs with -short: tests that need servers are skipped.
func Short() bool { return testFlag("test.short") == "true" }

// testFlag is the value of a flag of go test, without linking its package.
func testFlag(name string) string {
	if f := flag.Lookup(name); f != nil {
		return f.Value.String()
	}
	return ""
}

// keepFor is how long clusters of tests are kept; 0 is not at all.
func keepFor(o Options) time.Duration {
	if !o.ordinary() || flag.Lookup("test.v") == nil {
		return 0
	}
	d, err := time.ParseDuration(os.Getenv("MILLRACE_LAB_KEEP"))
	if err != nil {
		return 0
	}
	return d
}

// reuse is the use of a kept cluster by a test.
type reuse struct {
	store  *Store
	state  *State
	unlock func()
	cancel context.CancelFunc
	spent  bool // it is not to be used again
}

const (
	inUseSuffix = ".borrowed.lock"
	dirtySuffix = ".dirty" // there while a test uses the cluster
)

// reuseCluster returns a kept cluster with these options, and starts one if all are in use.
func reuseCluster(ctx context.Context, o Options, limit time.Duration) (*Cluster, error) {
	store, err := NewStore("")
	if err != nil {
		return nil, err
	}
	key, err := o.Key()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(key))
	for i := 0; ; i++ {
		o.Name = "kept-" + hex.EncodeToString(sum[:4]) + "-" + strconv.Itoa(i)
		unlock, err := tryLock(store.path(o.Name, inUseSuffix))
		if err != nil {
			return nil, fmt.Errorf("lab: reuse a cluster: %w", err)
		}
		if unlock == nil {
			continue
		}
		l := &reuse{store: store, unlock: unlock}
		c, err := l.take(ctx, o, limit)
		if err != nil {
			unlock()
			return nil, fmt.Errorf("lab: reuse cluster %s: %w", o.Name, err)
		}
		return c, nil
	}
}

func (l *reuse) take(ctx context.Context, o Options, limit time.Duration) (c *Cluster, err error) {
	_, dirty := os.Stat(l.store.path(o.Name, dirtySuffix))
	l.state, err = l.store.read(o.Name)
	// Its end must not come during the test.
	if err != nil || dirty == nil || l.state.Running() == 0 || time.Until(l.state.Until) < limit/3 {
		if err == nil {
			err = l.store.Down(ctx, o.Name)
		} else if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		if err != nil {
			return nil, err
		}
		if l.state, err = l.store.Up(ctx, o); err != nil {
			return nil, err
		}
		if err := l.store.SetGuard(l.state, limit, os.Getenv("MILLRACE_TEST_BENCH"), "lab", "guard", "--for", limit.String(),
			"--name", o.Name); err != nil {
			return nil, errors.Join(err, l.store.Down(ctx, o.Name))
		}
	}
	if err := os.WriteFile(l.store.path(o.Name, dirtySuffix), nil, 0o600); err != nil {
		return nil, err
	}
	o.Dir = l.state.Dir
	if c, err = newCluster(o); err != nil {
		return nil, err
	}
	if err := errors.Join(c.findBinary(ctx), c.prepare(ctx), c.placeMembers(ctx)); err != nil {
		return nil, err
	}
	ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	for i, m := range c.members {
		m.proc.Store(adopt(ctx, l.state.Members[i].Process))
	}
	c.reuse = l
	return c, c.dropAll(ctx)
}

// adopt makes a process of one that another program has started.
func adopt(ctx context.Context, id Identity) *process {
	p := &process{pid: id.Pid, Child: &Child{done: make(chan struct{})}}
	go func() {
		if Poll(ctx, 20*time.Millisecond, func() (bool, error) { return id.exited(), nil }) == nil {
			close(p.done)
		}
	}()
	return p
}

// dropAll removes the databases that an earlier test has left.
func (c *Cluster) dropAll(ctx context.Context) error {
	return c.withMember(ctx, 0, c.rootLogin(), func(ctx context.Context, client *mongo.Client) error {
		names, err := client.ListDatabaseNames(ctx,
			bson.D{{Key: "name", Value: bson.D{{Key: "$nin", Value: bson.A{"admin", "config", "local"}}}}})
		for _, name := range names {
			err = errors.Join(err, client.Database(name).Drop(ctx))
		}
		return err
	})
}

// release returns a cluster, and ends it where a test has changed more than data.
func (l *reuse) release(c *Cluster) error {
	if l.unlock == nil {
		return nil // given back before
	}
	defer func() {
		l.cancel() // not before: until then the ends of processes are noticed
		l.unlock()
		l.unlock = nil
	}()
	for i, m := range c.members {
		l.spent = l.spent || m.Pid() != l.state.Members[i].Process.Pid
	}
	if l.spent {
		err := errors.Join(c.endAll((*Member).Kill), l.store.Down(context.Background(), c.Name()))
		return errors.Join(err, os.Remove(l.store.path(c.Name(), dirtySuffix)))
	}
	return os.Remove(l.store.path(c.Name(), dirtySuffix))
}
