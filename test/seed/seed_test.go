// Package seed runs millrace seed as a process: killed, cut, and followed by a
// sync.
package seed

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// elected reports what a writer meets when members elect another primary, as they
// do at any time on a busy machine, and what a change of several steps leaves then.
func elected(err error) bool {
	return mongo.Classify(err) == mongo.ClassRetry || driver.IsDuplicateKeyError(err)
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

func secondary(t *testing.T, c *lab.Cluster) *lab.Member {
	t.Helper()
	p, err := c.Primary(t.Context())
	must(t, err)
	return c.Members()[(p+1)%len(c.Members())]
}

func isLocked(t *testing.T, uri string) bool {
	t.Helper()
	raw, err := kit.Client(t, uri).Database("admin").
		RunCommand(t.Context(), bson.D{{Key: "currentOp", Value: 1}, {Key: "fsync", Value: true}}).Raw()
	must(t, err)
	locked, _ := raw.Lookup("fsyncLock").BooleanOK()
	return locked
}

// mongod is a script that runs the lab's mongod.
func mongod(t *testing.T, version string) string {
	t.Helper()
	path, env, err := lab.Mongod(t.Context(), version)
	must(t, err)
	script := filepath.Join(t.TempDir(), "mongod")
	must(t, os.WriteFile(script, []byte("#!/bin/sh\nexec env "+strings.Join(env, " ")+" "+path+` "$@"`+"\n"), 0o700))
	return script
}

type result struct {
	Result struct {
		Position    string
		Job         string
		Pid         int
		LockSeconds float64
		Resumed     bool
	}
}

// seed runs the command and returns its report. A mongod that it started ends
// with the test.
func seed(t *testing.T, bin string, args ...string) result {
	t.Helper()
	report := filepath.Join(t.TempDir(), "report.json")
	args = append([]string{"seed", "local", "--report", report}, args...)
	out, err := exec.CommandContext(t.Context(), bin, args...).CombinedOutput()
	raw, readErr := os.ReadFile(report)
	var r result
	if readErr == nil {
		must(t, json.Unmarshal(raw, &r))
	}
	t.Cleanup(func() {
		if r.Result.Pid > 0 {
			_ = syscall.Kill(r.Result.Pid, syscall.SIGKILL)
		}
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
	return r
}

// TestCloneIsFollowed: an independent set made of a member's files while the
// old one is written to, then followed from where it stands: a migration by
// files.
func TestCloneIsFollowed(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	bin := test.BuildMillrace(t)
	for _, version := range lab.Versions("4.2", "4.4", "5.0") {
		t.Run(version, func(t *testing.T) {
			src := lab.ForTest(t, lab.Options{Topology: "rs:3", Version: version})
			sc := kit.Client(t, src.URI())
			test.LoadChurn(t, sc.Database("clone"))
			churn := test.StartChurn(t, sc.Database("clone"),
				test.ChurnOptions{Seed: testseed.Of(t), SchemaEvery: 200 * time.Millisecond, Pause: 5 * time.Millisecond,
					Expected: elected})
			m := secondary(t, src)
			dir, host := filepath.Join(t.TempDir(), "clone"), "127.0.0.1:"+freePort(t)
			r := seed(t, bin,
				append([]string{"--from-uri", src.DirectURI(m.Index), "--from-dbpath", m.DBPath, "--to-dbpath", dir,
					"--as-new-set", "clone", "--new-set-host", host, "--start", "--", mongod(t, version)},
					memberFlags("clone", dir, host[strings.Index(host, ":")+1:])...)...)
			dst := "mongodb://" + host + "/?replicaSet=clone"
			dc := kit.Client(t, dst)
			unlike(t, sc, dc)
			churn.Stop()
			out, err := exec.CommandContext(t.Context(), bin, "sync", "--source", src.URI(), "--target", dst, "--include",
				"clone.*",
				"--job", r.Result.Job, "--mode", "incremental", "--start-at", r.Result.Position, "--until", "caught-up").
				CombinedOutput()
			if err != nil {
				t.Fatalf("sync: %v\n%s", err, out)
			}
			diffs, err := test.Compare(t.Context(), sc, dc, test.CompareOptions{})
			must(t, err)
			for _, d := range diffs {
				t.Error(d)
			}
		})
	}
}

// unlike makes sure that the clone is a set of its own.
func unlike(t *testing.T, source, clone *driver.Client) {
	t.Helper()
	id := func(c *driver.Client) string {
		raw, err := c.Database("admin").RunCommand(t.Context(), bson.D{{Key: "replSetGetConfig", Value: 1}}).Raw()
		must(t, err)
		return raw.Lookup("config", "settings", "replicaSetId").String()
	}
	if id(source) == id(clone) {
		t.Error("the clone has its source's replica set id")
	}
}

// write inserts and updates until stopped, some hundred a second.
func write(t *testing.T, d *driver.Database) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		pace := time.NewTicker(2 * time.Millisecond)
		defer pace.Stop()
		for n := 0; ctx.Err() == nil; n++ {
			<-pace.C
			_, err := d.Collection("c0").InsertOne(ctx,
				bson.D{{Key: "_id", Value: 1_000_000 + n}, {Key: "a", Value: fmt.Sprint(n)}})
			if err == nil {
				_, err = d.Collection("c1").UpdateOne(ctx, bson.D{{Key: "_id", Value: n % 10_000}},
					bson.D{{Key: "$set", Value: bson.D{{Key: "a", Value: fmt.Sprint(n)}}}})
			}
			if err != nil && ctx.Err() == nil && !elected(err) {
				t.Errorf("write: %v", err)
				return
			}
		}
	})
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stop)
	return stop
}

func hash(t *testing.T, c *driver.Client, db string) string {
	t.Helper()
	raw, err := c.Database(db).RunCommand(t.Context(), bson.D{{Key: "dbHash", Value: 1}}).Raw()
	must(t, err)
	return raw.Lookup("collections").String()
}

func fill(t *testing.T, d *driver.Database) {
	t.Helper()
	pad := strings.Repeat("0123456789", 40)
	for c := range 4 {
		var docs []any
		for i := range 10_000 {
			docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "a", Value: fmt.Sprint(i * 7919 % 10_007)},
				{Key: "pad", Value: pad + fmt.Sprint(i*104729)}})
		}
		coll := d.Collection("c" + strconv.Itoa(c))
		_, err := coll.InsertMany(t.Context(), docs)
		must(t, err)
		_, err = coll.Indexes().CreateOne(t.Context(), driver.IndexModel{Keys: bson.D{{Key: "a", Value: 1}}})
		must(t, err)
	}
}

// refuses starts a mongod on an incomplete copy, as a member of its set.
func refuses(t *testing.T, program, set, dir string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, memberFlags(set, dir, freePort(t))...).CombinedOutput()
	if err == nil || ctx.Err() != nil || !strings.Contains(string(out), "28661") {
		t.Fatalf("a mongod on an incomplete copy: %v, %v\n%s", err, ctx.Err(), out[max(0, len(out)-2000):])
	}
}

// memberFlags are those of a new member.
func memberFlags(set, dir, port string) []string {
	return []string{"--replSet", set, "--bind_ip", "127.0.0.1", "--port", port, "--nounixsocket", "--dbpath", dir,
		"--wiredTigerCacheSizeGB", "0.25", "--setParameter", "diagnosticDataCollectionEnabled=false"}
}
