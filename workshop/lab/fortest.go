package lab

import (
	"context"
	"hash/fnv"
	"io"
	"net"
	"os"
	"strings"
)

// TB is the part of testing.TB that [ForTest] needs, so that programs which
// use this package do not link the testing package.
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

// ForTest starts a cluster, with a lean journal, and stops it at the end of the
// test, which it skips under go test -short; when the test failed, the ends of the servers' logs are logged.
func ForTest(t TB, o Options) *Cluster {
	t.Helper()
	NeedServers(t)
	o.LeanJournal = true
	c, err := Start(t.Context(), o)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			if c.loan != nil {
				c.loan.spent = true
			}
			c.LogTails(t)
		}
		if err := c.Stop(); err != nil {
			t.Logf("%v", err)
		}
	})
	return c
}

// LogTails logs the ends of the servers' logs.
func (c *Cluster) LogTails(t TB) {
	t.Helper()
	for _, m := range c.Members() {
		t.Logf("log of member %d of %s (pid %d) ends with:\n%s", m.Index, c.Name(), m.Pid(), strings.Join(m.logTail(25), "\n"))
	}
}

// InMatrix reports whether make matrix runs the test, which sets MILLRACE_TEST_MATRIX:
// it then does what make test has no time for.
func InMatrix() bool { return os.Getenv("MILLRACE_TEST_MATRIX") != "" }

// Brief reports whether make test runs the test, which sets MILLRACE_TEST_BRIEF: the test then
// does a part of its work, the same part each time. A test that is run by its name does all.
func Brief() bool { return os.Getenv("MILLRACE_TEST_BRIEF") != "" && testFlag("test.run") == "" }

// Nightly skips the test in make test, which has no time for it. make nightly plays the test,
// and so do go test, make matrix and make soak.
func Nightly(t TB) {
	t.Helper()
	if Brief() {
		t.Skip("make nightly plays it, and go test")
	}
}

// Share skips the test in make test as [Nightly] does, but for one in n of many similar ones:
// the names decide, so these are always the same.
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
