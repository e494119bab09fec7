package service

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/workshop/lab"
)

// nodeEnv makes the test binary a node of a NATS cluster.
const nodeEnv = "MILLRACE_TEST_NATS_NODE"

func TestMain(m *testing.M) {
	if raw := os.Getenv(nodeEnv); raw != "" {
		var n node
		if err := json.Unmarshal([]byte(raw), &n); err != nil {
			panic(err)
		}
		if err := n.serve(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// node is a server of a cluster.
type node struct {
	Name, Dir, Token string
	Port, Routing    int   // for clients, and for the other nodes
	Others           []int // all nodes' Routing
}

// serve runs the node until it is killed.
func (n *node) serve() error {
	routes := []string{}
	for _, port := range n.Others {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", port))
	}
	s, err := server.NewServer(&server.Options{ServerName: n.Name, Host: "127.0.0.1", Port: n.Port, Authorization: n.Token,
		StoreDir: n.Dir, JetStream: true, JetStreamMaxStore: 16 << 30,
		Cluster: server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: n.Routing},
		Routes:  server.RoutesFromStr(strings.Join(routes, ","))})
	if err != nil {
		return err
	}
	s.Start()
	s.WaitForShutdown()
	return nil
}

// cluster is a NATS cluster of three nodes, each a process of its own.
type cluster struct {
	*testing.T
	nodes     []node
	running   []*test.Process
	token     string
	tokenFile string
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{T: t, token: "a token of the test", tokenFile: filepath.Join(t.TempDir(), "token")}
	if err := os.WriteFile(c.tokenFile, []byte(c.token), 0o600); err != nil {
		t.Fatal(err)
	}
	var routing []int
	for range 3 {
		routing = append(routing, lab.PortForTest(t))
	}
	for i := range 3 {
		c.nodes = append(c.nodes, node{Name: fmt.Sprintf("n%d", i), Dir: t.TempDir(), Token: c.token,
			Port: lab.PortForTest(t), Routing: routing[i], Others: routing})
		c.running = append(c.running, nil)
		c.start(i)
	}
	c.whole()
	return c
}

func (c *cluster) start(i int) {
	c.Helper()
	raw, err := json.Marshal(c.nodes[i])
	if err != nil {
		c.Fatal(err)
	}
	c.running[i] = test.StartWith(c.T, []string{nodeEnv + "=" + string(raw)}, os.Args[0])
}

func (c *cluster) uri() string {
	list := []string{}
	for _, n := range c.nodes {
		list = append(list, fmt.Sprintf("nats://127.0.0.1:%d", n.Port))
	}
	return strings.Join(list, ",")
}

// with has do ask the cluster until it is satisfied.
func (c *cluster) with(what string, do func(jetstream.JetStream) bool) {
	c.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		conn, err := nats.Connect(c.uri(), nats.Token(c.token))
		if err != nil {
			continue
		}
		js, err := jetstream.New(conn)
		ok := err == nil && do(js)
		conn.Close()
		if ok {
			return
		}
	}
	c.Fatalf("%s did not come", what)
}

// whole waits until three nodes keep what is stored.
func (c *cluster) whole() {
	c.Helper()
	c.with("a cluster of three", func(js jetstream.JetStream) bool {
		_, err := js.CreateOrUpdateStream(c.Context(),
			jetstream.StreamConfig{Name: "whole", Subjects: []string{"whole"}, Replicas: 3})
		return err == nil
	})
	c.current("whole")
}

// current waits until all nodes have all of a stream.
func (c *cluster) current(stream string) {
	c.Helper()
	c.with("three nodes that have all of "+stream, func(js jetstream.JetStream) bool {
		s, err := js.Stream(c.Context(), stream)
		if err != nil {
			return false
		}
		group := s.CachedInfo().Cluster
		behind := func(p *jetstream.PeerInfo) bool { return p.Offline || !p.Current }
		return group != nil && group.Leader != "" && len(group.Replicas) == 2 && !slices.ContainsFunc(group.Replicas, behind)
	})
}

// leader is the node that leads a stream.
func (c *cluster) leader(stream string) (i int) {
	c.Helper()
	c.with("a leader of "+stream, func(js jetstream.JetStream) bool {
		s, err := js.Stream(c.Context(), stream)
		if err != nil || s.CachedInfo().Cluster == nil {
			return false
		}
		i = slices.IndexFunc(c.nodes, func(n node) bool { return n.Name == s.CachedInfo().Cluster.Leader })
		return i >= 0
	})
	return i
}

// TestNodesDie: of a cluster of three the node that leads the leases is killed while a
// job copies, and later two nodes, so that nothing can be stored. One run has the job
// each time, and the target is the same in the end.
func TestNodesDie(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	c := startCluster(t)
	b := newBed(t, c)
	churn := b.churn()
	b.startWorker("w1")
	b.startWorker("w2")
	b.create()
	b.phase(true, job.PhaseCopying, job.PhaseIndexing, job.PhaseOverlap, job.PhaseFollowing)
	c.current(leases)
	i := c.leader(leases)
	c.running[i].Kill()
	if now := c.leader(leases); now == i {
		t.Fatalf("node %d leads after its end", i)
	}
	b.until("a word of the job after a node died", b.heardAnew())
	c.start(i)
	for _, stream := range []string{leases, "KV_millrace-jobs", "KV_millrace-reports", "KV_millrace-workers"} {
		c.current(stream)
	}
	c.running[0].Kill()
	c.running[1].Kill()
	b.until("the end of the lease", func() bool { j := b.job(); return j != nil && j.Lease == nil })
	c.start(0)
	c.start(1)
	b.until("a word of the job with three nodes again", b.heardAnew())
	b.catchUp(churn)
	churn.Stop()
	b.finish()
	b.endAll()
}

// leases is the stream below the bucket of leases.
const leases = "KV_millrace-leases"

// heardAnew is whether the job has said something since, and runs.
func (b *bed) heardAnew() func() bool {
	from := time.Now()
	return func() bool {
		j := b.job()
		return j != nil && j.Report != nil && j.Report.At.After(from) && j.Lease != nil
	}
}
