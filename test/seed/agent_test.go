package seed

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// ground is a replica set under writes, of which a secondary is copied by
// processes.
type ground struct {
	t            *testing.T
	bin, program string
	set          *lab.Cluster
	member       *lab.Member
	port         string // of the agent
	pem, token   string // files of the agent
	source       *driver.Database
	proxy        string // address by which the agent reaches the member; "" is its own
}

func newGround(t *testing.T, version, topology string) *ground {
	t.Helper()
	return newGroundOf(t, lab.Options{Topology: topology, Version: version})
}

func newGroundOf(t *testing.T, o lab.Options) *ground {
	t.Helper()
	set := lab.ForTest(t, o)
	g := &ground{t: t, bin: test.BuildMillrace(t), program: mongod(t, o.Version), set: set, member: secondary(t, set),
		port: freePort(t)}
	g.pem, g.token = certificate(t), filepath.Join(t.TempDir(), "token")
	g.source = kit.Client(t, g.uri()).Database("admin")
	must(t, os.WriteFile(g.token, []byte("a token of more than sixteen characters\n"), 0o600))
	return g
}

// uri is that of the member that is copied.
func (g *ground) uri() string { return g.set.DirectURI(g.member.Index) }

// serve starts an agent and waits until it listens.
func (g *ground) serve(more ...string) *test.Process {
	g.t.Helper()
	uri := g.uri()
	if g.proxy != "" {
		uri = "mongodb://" + g.proxy + "/?directConnection=true"
	}
	args := []string{"seed", "serve", "--uri", uri, "--dbpath", g.member.DBPath, "--listen", "127.0.0.1:" + g.port,
		"--listen-tls-cert", g.pem, "--token-file", g.token}
	p := test.Start(g.t, g.bin, append(args, more...)...)
	kit.Until(g.t, "the agent listens", func() bool {
		select {
		case <-p.Done():
			g.t.Fatalf("the agent ended: %s", p.Output())
		default:
		}
		return strings.Contains(p.Output(), "msg=serving")
	})
	return p
}

// pull starts a puller into a directory.
func (g *ground) pull(dir string, more ...string) *test.Process {
	g.t.Helper()
	args := []string{"seed", "pull", "--from", "https://127.0.0.1:" + g.port, "--dbpath", dir, "--ca-file", g.pem,
		"--token-file", g.token}
	return test.Start(g.t, g.bin, append(args, more...)...)
}

// newcomer is a puller that makes a member of its copy.
type newcomer struct {
	*test.Process
	host, report string
}

func (g *ground) newcomer(dir string) newcomer {
	g.t.Helper()
	port := freePort(g.t)
	n := newcomer{host: "127.0.0.1:" + port, report: filepath.Join(g.t.TempDir(), "report.json")}
	n.Process = g.pull(dir,
		append([]string{"--report", n.report, "--set-uri", g.set.URI(), "--join", n.host, "--start", "--", g.program},
			memberFlags(g.set.Name(), dir, port)...)...)
	g.t.Cleanup(func() { endMember(n.report) })
	return n
}

// joined waits for the puller's end and returns its report.
func (g *ground) joined(n newcomer) result {
	g.t.Helper()
	if err := n.Wait(5 * time.Minute); err != nil {
		g.t.Fatalf("%v\n%s", err, n.Output())
	}
	r, err := readResult(n.report)
	must(g.t, err)
	g.t.Logf("%s", n.Output())
	return r
}

func readResult(report string) (r result, err error) {
	raw, err := os.ReadFile(report)
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	return r, err
}

// endMember ends the mongod of a report, and waits: its directory is removed
// after it.
func endMember(report string) {
	r, err := readResult(report)
	if err != nil || r.Result.Pid <= 0 {
		return
	}
	deadline := time.Now().Add(time.Minute)
	for syscall.Kill(r.Result.Pid, syscall.SIGKILL) == nil && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
}

// same compares a new member with the primary, after the writes.
func (g *ground) same(n newcomer, db string) {
	g.t.Helper()
	primary, member := kit.Client(g.t, g.set.URI()), kit.Client(g.t, "mongodb://"+n.host+"/?directConnection=true")
	kit.Until(g.t, "the new member has the same content",
		func() bool { return hash(g.t, primary, db) == hash(g.t, member, db) })
	raw, err := member.Database("admin").RunCommand(g.t.Context(), bson.D{{Key: "serverStatus", Value: 1}}).Raw()
	must(g.t, err)
	if v, err := raw.LookupErr("metrics", "repl", "initialSync", "completed"); err != nil || v.AsInt64() != 0 {
		g.t.Errorf("%s made an initial sync: %v, %v", n.host, v, err)
	}
	if votes := g.votes(n.host); votes != 1 {
		g.t.Errorf("%s has %d votes", n.host, votes)
	}
}

// votes of a member; -1 when it is none.
func (g *ground) votes(host string) int64 {
	g.t.Helper()
	raw, err := kit.Client(g.t, g.set.URI()).Database("admin").
		RunCommand(g.t.Context(), bson.D{{Key: "replSetGetConfig", Value: 1}}).Raw()
	must(g.t, err)
	list, err := raw.Lookup("config", "members").Array().Values()
	must(g.t, err)
	for _, m := range list {
		if m.Document().Lookup("host").StringValue() == host {
			return m.Document().Lookup("votes").AsInt64()
		}
	}
	return -1
}

// certificate is one for 127.0.0.1 with its key, and its own authority.
func certificate(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "agent"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:        true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	name := filepath.Join(t.TempDir(), "agent.pem")
	must(t, os.WriteFile(name, append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...), 0o600))
	return name
}

// TestPullersBecomeMembers: an agent and two pullers, as processes over TLS,
// under writes: one lock, two members with the primary's content. An older
// server does the same for one.
func TestPullersBecomeMembers(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	for _, c := range []struct {
		version, topology string
		pullers           int
	}{{"6.0", "rs:3", 2}, {"4.2", "rs:2", 1}} {
		t.Run(c.version, func(t *testing.T) {
			if !slices.Contains(lab.Versions("4.2"), c.version) {
				t.Skip("in the matrix")
			}
			g := newGround(t, c.version, c.topology)
			db := kit.Client(t, g.set.URI()).Database("pull")
			fill(t, db)
			stop := write(t, db)
			agent := g.serve("--pullers", strconv.Itoa(c.pullers))
			var all []newcomer
			for range c.pullers {
				all = append(all, g.newcomer(filepath.Join(t.TempDir(), "new")))
			}
			for _, n := range all {
				if r := g.joined(n); r.Result.LockSeconds <= 0 || r.Result.Resumed {
					t.Errorf("%+v", r)
				}
			}
			stop()
			for _, n := range all {
				g.same(n, "pull")
			}
			if n := strings.Count(agent.Output(), "was locked and works again"); n != 1 {
				t.Errorf("the source was locked %d times\n%s", n, agent.Output())
			}
			if isLocked(t, g.uri()) {
				t.Error("the source is still locked")
			}
			agent.Interrupt()
		})
	}
}
