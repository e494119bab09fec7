package seed

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// guardEnv makes the test binary the guardian of a lock, privateEnv that of a private
// mongod.
const (
	guardEnv   = "MILLRACE_SEED_TEST_GUARD"
	privateEnv = "MILLRACE_SEED_TEST_PRIVATE"
)

var shared struct {
	once    sync.Once
	cluster *lab.Cluster
	err     error
}

func TestMain(m *testing.M) {
	if os.Getenv(guardEnv) != "" {
		if Guard(context.Background(), os.Stdin, os.Stdout) != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(privateEnv) != "" {
		code, err := Private(os.Stdin, os.Args[1:])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code)
	}
	if uri := os.Getenv(holdEnv); uri != "" {
		hold(uri)
	}
	code := m.Run()
	if shared.cluster != nil {
		if err := shared.cluster.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	os.Exit(code)
}

// guardCommand is this binary as a guardian.
func guardCommand() []string { return []string{"env", guardEnv + "=1", os.Args[0]} }

// privateCommand is this binary as the guardian of a private mongod.
func privateCommand() []string { return []string{"env", privateEnv + "=1", os.Args[0]} }

// threeMembers is the package's replica set of three.
func threeMembers(t *testing.T) *lab.Cluster {
	t.Helper()
	lab.NeedServers(t)
	shared.once.Do(func() {
		shared.cluster, shared.err = lab.Start(context.Background(), lab.Options{Topology: "rs:3"})
	})
	must(t, shared.err)
	return shared.cluster
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func connect(t *testing.T, uri string) *driver.Client {
	t.Helper()
	return kit.Client(t, uri, options.Client().SetReadPreference(readpref.PrimaryPreferred()))
}

// secondary is a member that is not the primary.
func secondary(t *testing.T, c *lab.Cluster) *lab.Member {
	t.Helper()
	p, err := c.Primary(t.Context())
	must(t, err)
	return c.Members()[(p+1)%len(c.Members())]
}

// fill writes collections with indexes and returns their database.
func fill(t *testing.T, uri, db string, colls, docs int) *driver.Database {
	t.Helper()
	d := connect(t, uri).Database(db)
	pad := strings.Repeat("x", 300)
	for i := range colls {
		c := d.Collection("c" + strconv.Itoa(i))
		var batch []any
		for j := range docs {
			batch = append(batch, bson.D{{Key: "_id", Value: j}, {Key: "a", Value: j % 17},
				{Key: "b", Value: strconv.Itoa(j * 7)}, {Key: "pad", Value: pad}})
		}
		_, err := c.InsertMany(t.Context(), batch)
		must(t, err)
		for _, k := range []string{"a", "b"} {
			_, err = c.Indexes().CreateOne(t.Context(), driver.IndexModel{Keys: bson.D{{Key: k, Value: 1}}})
			must(t, err)
		}
	}
	return d
}

// writer inserts and updates until stopped.
func writer(t *testing.T, d *driver.Database) (stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	n := 0
	wg.Go(func() {
		for ctx.Err() == nil {
			_, err := d.Collection("c0").
				InsertOne(ctx, bson.D{{Key: "_id", Value: 1_000_000 + n}, {Key: "a", Value: n}, {Key: "b", Value: "w"}})
			if err == nil {
				_, err = d.Collection("c1").
					UpdateOne(ctx, bson.D{{Key: "_id", Value: n % 100}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "a", Value: 1}}}})
			}
			if err != nil && ctx.Err() == nil {
				t.Errorf("write: %v", err)
				return
			}
			n++
		}
	})
	once := sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(once)
	return func() int { once(); return n }
}

// freePort is a port that nobody listens on now.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// mongod is a script that runs the lab's mongod of a version.
func mongod(t *testing.T, version string) string {
	t.Helper()
	path, env, err := lab.Mongod(t.Context(), version)
	must(t, err)
	script := filepath.Join(t.TempDir(), "mongod")
	must(t, os.WriteFile(script, []byte("#!/bin/sh\nexec env "+strings.Join(env, " ")+" "+path+` "$@"`+"\n"), 0o700))
	return script
}

// memberCommand starts a new member.
func memberCommand(t *testing.T, version, set, dbpath string, port int) []string {
	t.Helper()
	cmd := []string{mongod(t, version), "--bind_ip", "127.0.0.1", "--port", strconv.Itoa(port), "--nounixsocket",
		"--dbpath", dbpath, "--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "990", "--setParameter",
		"diagnosticDataCollectionEnabled=false"}
	if set != "" {
		cmd = append(cmd, "--replSet", set)
	}
	return cmd
}

// endLater ends a started mongod with the test.
func endLater(t *testing.T, pid *int) {
	t.Cleanup(func() {
		if *pid > 0 {
			_ = syscall.Kill(*pid, syscall.SIGKILL)
		}
	})
}

// hashes is the dbHash of a database.
func hashes(t *testing.T, c *driver.Client, db string) string {
	t.Helper()
	raw, err := c.Database(db).RunCommand(t.Context(), bson.D{{Key: "dbHash", Value: 1}},
		options.RunCmd().SetReadPreference(readpref.PrimaryPreferred())).Raw()
	must(t, err)
	return raw.Lookup("collections").String()
}

// isLocked asks a member for a lock.
func isLocked(t *testing.T, uri string) bool {
	t.Helper()
	raw, err := connect(t, uri).Database("admin").
		RunCommand(t.Context(), bson.D{{Key: "currentOp", Value: 1}, {Key: "fsync", Value: true}}).Raw()
	must(t, err)
	locked, _ := raw.Lookup("fsyncLock").BooleanOK()
	return locked
}

// removeMember takes a member out of the set again.
func removeMember(t *testing.T, uri, host string) {
	t.Helper()
	set, err := connectSet(t.Context(), uri)
	must(t, err)
	defer set.Disconnect(context.Background())
	must(t, reconfigure(t.Context(), set, func(cfg *replConfig) error {
		cfg.Members = slices.DeleteFunc(cfg.Members, func(m replMember) bool { return m.Host == host })
		return nil
	}))
}
