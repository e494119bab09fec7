package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/millrace/millrace/test/kit"
)

// connect returns a client that the test's end disconnects.
func connect(t *testing.T, uri string) *mongo.Client {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(uri).
		SetServerMonitoringMode(options.ServerMonitoringModePoll).SetHeartbeatInterval(500 * time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A driver looks for a server to say goodbye to, for half a minute.
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = client.Disconnect(ctx)
	})
	return client
}

// insert writes a document with the write concern given.
func insert(ctx context.Context, client *mongo.Client, id any, wc *writeconcern.WriteConcern) error {
	coll := client.Database("test").Collection("c", options.Collection().SetWriteConcern(wc))
	_, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: id}})
	return err
}

// mustInsert writes a document to a majority. On a busy machine members may elect
// another primary at any time, more than once while the driver tries.
func mustInsert(t *testing.T, client *mongo.Client, id any) {
	t.Helper()
	kit.Until(t, "a majority has the document", func() bool {
		err := insert(t.Context(), client, id, writeconcern.Majority())
		return err == nil || mongo.IsDuplicateKeyError(err) // of an earlier try
	})
}

// must fails the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// isGone reports whether a process has ended; a zombie has.
func isGone(pid int) bool {
	return !hasArgument(pid, "--dbpath")
}

func TestStopLeavesNothing(t *testing.T) {
	t.Parallel()
	NeedServers(t)
	c, err := Start(t.Context(), Options{Proxy: true})
	must(t, err)
	mustInsert(t, connect(t, c.URI()), 1)
	pid, dir := c.Members()[0].Pid(), c.Dir()
	must(t, c.Stop())
	if !isGone(pid) {
		t.Errorf("process %d is still there", pid)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory %s is still there: %v", dir, err)
	}
	must(t, c.Stop()) // once more does no harm
}

func TestStandalone(t *testing.T) {
	t.Parallel()
	c := ForTest(t, Options{Topology: "standalone", Auth: true, TLS: true})
	must(t, insert(t.Context(), connect(t, c.URI()), 1, nil))
	must(t, insert(t.Context(), connect(t, c.X509URI()), 2, nil))
	if err := c.StepDown(t.Context()); err == nil {
		t.Error("a standalone stepped down")
	}
}

func TestFailover(t *testing.T) {
	t.Parallel()
	c := ForTest(t, Options{Topology: "rs:3"})
	client := connect(t, c.URI())
	mustInsert(t, client, "before")

	old, err := c.Primary(t.Context())
	must(t, err)
	must(t, c.StepDown(t.Context()))
	primary, err := c.Primary(t.Context())
	must(t, err)
	if primary == old {
		t.Errorf("member %d is primary still", old)
	}
	mustInsert(t, client, "after step down")

	must(t, c.Members()[primary].Kill())
	if pid := c.Members()[primary].Pid(); pid != 0 {
		t.Errorf("pid of a killed member is %d", pid)
	}
	mustInsert(t, client, "after kill")
	must(t, c.Members()[primary].Start(t.Context()))
	must(t, c.Members()[primary].Stop())
	must(t, c.Members()[primary].Start(t.Context()))

	direct := connect(t, c.DirectURI(primary))
	coll := direct.Database("test").Collection("c", options.Collection().SetReadPreference(readpref.Nearest()))
	kit.Until(t, "the member has caught up", func() bool {
		n, err := coll.CountDocuments(t.Context(), bson.D{})
		return err == nil && n == 3
	})
}

func TestStepDownOfTheOnlyMember(t *testing.T) {
	t.Parallel()
	c := ForTest(t, Options{})
	must(t, c.StepDown(t.Context()))
	must(t, c.Members()[0].Kill())
	must(t, c.Members()[0].Start(t.Context()))
	mustInsert(t, connect(t, c.URI()), 1)
}

func TestAuthAndTLS(t *testing.T) {
	t.Parallel()
	c := ForTest(t, Options{Topology: "rs:3", Auth: true, TLS: true})
	mustInsert(t, connect(t, c.URI()), "scram")
	mustInsert(t, connect(t, c.X509URI()), "x509")
	mustInsert(t, connect(t, c.DirectURI(mustPrimary(t, c))), "direct")

	nobody := connect(t, c.uri(login{}, c.Hosts(), c.discovery()))
	if err := insert(t.Context(), nobody, "nobody", nil); err == nil {
		t.Error("a client without a login may write")
	}
	plain := connect(t, buildURI(root(), c.Hosts(), []parameter{{"serverSelectionTimeoutMS", "300"}}))
	if err := insert(t.Context(), plain, "plain", nil); err == nil {
		t.Error("a client without TLS may write")
	}
}

// mustPrimary returns the primary's index.
func mustPrimary(t *testing.T, c *Cluster) int {
	t.Helper()
	i, err := c.Primary(t.Context())
	must(t, err)
	return i
}

func TestOptionsReachTheServer(t *testing.T) {
	t.Parallel()
	c := ForTest(t, Options{
		Name: "named", CacheGB: 0.25, OplogMB: 50,
		SetParameters: map[string]string{"ttlMonitorSleepSecs": "7"}, Args: []string{"--slowms", "77"},
	})
	var reply struct {
		Parsed struct {
			Net struct {
				BindIP string `bson:"bindIp"`
			} `bson:"net"`
			Replication struct {
				Set   string `bson:"replSet"`
				Oplog int    `bson:"oplogSizeMB"`
			} `bson:"replication"`
			Parameters map[string]string `bson:"setParameter"`
			Profiling  struct {
				Slow int `bson:"slowOpThresholdMs"`
			} `bson:"operationProfiling"`
		} `bson:"parsed"`
	}
	admin := connect(t, c.URI()).Database("admin")
	must(t, admin.RunCommand(t.Context(), bson.D{{Key: "getCmdLineOpts", Value: 1}}).Decode(&reply))
	p := reply.Parsed
	if p.Net.BindIP != loopback || p.Replication.Set != "named" || p.Replication.Oplog != 50 ||
		p.Parameters["ttlMonitorSleepSecs"] != "7" || p.Profiling.Slow != 77 {
		t.Errorf("the server was started with %+v", p)
	}
}

func TestManyAtOnce(t *testing.T) {
	Nightly(t)
	t.Parallel()
	NeedServers(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			c, err := Start(t.Context(), Options{})
			if err == nil {
				err = c.Stop()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// What looks taken only because a process is being started is listened on.
func TestListenWhileProcessesStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var starting sync.WaitGroup
	starting.Go(func() {
		for ctx.Err() == nil {
			_ = exec.CommandContext(ctx, "true").Run()
		}
	})
	defer starting.Wait()
	defer cancel()
	var l leases
	defer l.release()
	ports, err := l.free(1)
	if err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		on, err := listen(ports[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := on.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFixedPortTaken(t *testing.T) {
	t.Parallel()
	c := ForTest(t, Options{Topology: "standalone"})
	_, err := Start(t.Context(), Options{Topology: "standalone", Port: c.Members()[0].Port})
	if !errors.Is(err, errPortTaken) {
		t.Errorf("Start on a taken port: %v", err)
	}
	// What a port taken between choice and use looks like.
	err = c.Members()[0].launchTwin(t)
	if !errors.Is(err, errPortTaken) {
		t.Errorf("mongod on a taken port: %v", err)
	}
}

// launchTwin starts a second mongod on the same port.
func (m *Member) launchTwin(t *testing.T) error {
	dir := t.TempDir()
	twin := &Member{Port: m.Port, DBPath: filepath.Join(dir, "db"), dir: dir, cluster: m.cluster}
	return twin.launch(t.Context())
}

func TestBadArgumentIsExplained(t *testing.T) {
	t.Parallel()
	NeedServers(t)
	_, err := Start(t.Context(), Options{Args: []string{"--noSuchOption"}})
	if err == nil || !strings.Contains(err.Error(), "noSuchOption") {
		t.Errorf("Start = %v", err)
	}
}

func TestCancelledStartLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Start(ctx, Options{Dir: dir}); err == nil {
		t.Skip("this machine is too fast to cancel a start")
	}
	data, err := os.ReadDir("/proc")
	must(t, err)
	for _, e := range data {
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && strings.Contains(string(line), dir) {
			t.Errorf("left running: %q", line)
		}
	}
}

func TestKeptDirectoryStartsAgain(t *testing.T) {
	t.Parallel()
	NeedServers(t)
	o := Options{Dir: t.TempDir(), Auth: true, TLS: true, Proxy: true}
	c, err := Start(t.Context(), o)
	must(t, err)
	name := c.Name()
	mustInsert(t, connect(t, c.URI()), 1)
	must(t, c.Stop())

	wrong := o
	wrong.Topology = "rs:3"
	if _, err := Start(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), "another cluster") {
		t.Errorf("another topology in the same directory: %v", err)
	}
	c = ForTest(t, o)
	if c.Name() != name {
		t.Errorf("the cluster is called %s, was %s", c.Name(), name)
	}
	n, err := connect(t, c.X509URI()).Database("test").Collection("c").CountDocuments(t.Context(), bson.D{})
	if err != nil || n != 1 {
		t.Errorf("it holds %d documents, %v; want 1", n, err)
	}
}

// childEnv makes the test binary start a cluster, tell of it, and wait.
const childEnv = "MILLRACE_LAB_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		os.Exit(m.Run())
	}
	c, err := Start(context.Background(), Options{})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(c.Members()[0].Pid(), c.Dir())
	_, _ = io.Copy(io.Discard, os.Stdin) // until killed
}

func TestMembersDieWithTheirParent(t *testing.T) {
	NeedServers(t)
	cmd := exec.Command(os.Args[0])
	tmp := t.TempDir()
	cmd.Env = append(os.Environ(), childEnv+"=1", "MILLRACE_LAB_DIR="+tmp) // where no other test tidies up
	stdin, err := cmd.StdinPipe()
	must(t, err)
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var pid int
	var dir string
	_, err = fmt.Fscan(stdout, &pid, &dir)
	must(t, err)
	if isGone(pid) {
		t.Fatalf("no mongod %d", pid)
	}
	must(t, cmd.Process.Signal(syscall.SIGKILL))
	_ = cmd.Wait() // it was killed, and says so
	kit.Until(t, "mongod has died too", func() bool { return isGone(pid) })

	// The directory goes with the next start.
	if _, err := os.Stat(dir); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MILLRACE_LAB_DIR", tmp)
	removeLeftOvers()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory %s is still there: %v", dir, err)
	}
}

func TestMatrix(t *testing.T) {
	versions := Versions("4.2", "4.4", "5.0", "6.0.27", "7.0")
	if len(versions) == 1 {
		t.Skip("MILLRACE_TEST_MATRIX is not set")
	}
	for _, version := range versions {
		for _, topology := range []string{"rs:1", "rs:3"} {
			t.Run(version+" "+topology, func(t *testing.T) {
				if _, _, err := Mongod(t.Context(), version); errors.Is(err, errNoWine) {
					t.Skip(err)
				}
				c := ForTest(t, Options{Version: version, Topology: topology, Auth: true, TLS: version != "7.0", Proxy: true})
				uri := cmp.Or(c.X509URI(), c.URI())
				var info struct {
					Version string `bson:"version"`
				}
				admin := connect(t, c.URI()).Database("admin")
				must(t, admin.RunCommand(t.Context(), bson.D{{Key: "buildInfo", Value: 1}}).Decode(&info))
				if !versionMatches(version, info.Version) {
					t.Errorf("the server is a %s", info.Version)
				}
				must(t, c.StepDown(t.Context()))
				mustInsert(t, connect(t, uri), 1)
				m := c.Members()[mustPrimary(t, c)]
				must(t, m.Stop())
				must(t, m.Start(t.Context()))
			})
		}
	}
}
