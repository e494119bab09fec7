package schema

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// safeBuffer is a log that several goroutines write.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestMemberDown: a secondary of the target that is down does not delay an index build,
// also not one that another process has begun; where a build has to wait for it, the
// status and the log name it.
func TestMemberDown(t *testing.T) {
	for _, version := range append(lab.Versions("4.4", "5.0"), "sharded") {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			testMemberDown(t, version)
		})
	}
}

func testMemberDown(t *testing.T, version string) {
	uri, set := threeMembers(t, version)
	c := dial.Cluster(t, uri, mongo.Options{AppName: "test"})
	do(t, c, "d", `{"insert":"c","documents":[{"_id":1,"a":1},{"_id":2,"a":2}],"writeConcern":{"w":3}}`)
	primary, err := set.Primary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	down := set.Members()[(primary+1)%3]
	if err := down.Kill(); err != nil {
		t.Fatal(err)
	}
	var log safeBuffer
	with := func(quorum any) *Target {
		l := slog.New(slog.NewTextHandler(&log, nil))
		return NewTarget(c, TargetOptions{Log: l, Builds: NewBuilds(c, quorum, l)})
	}
	build := func(to *Target, name string) <-chan error {
		done := make(chan error, 1)
		go func() {
			spec := js(t, `{"v":2,"key":{"`+name+`":1},"name":"`+name+`"}`)
			done <- to.Indexes.Build(t.Context(), "d.c", []stream.Index{{Name: name, Spec: spec}}, BeforeConsistent)
		}()
		return done
	}
	ends := func(what string, done <-chan error) {
		t.Helper()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(2 * time.Minute):
			t.Fatalf("%s does not end while a secondary is down; the log: %s", what, log.String())
		}
	}
	ends("a build", build(with(nil), "plain"))

	if c.Info.Version.AtLeast(5, 0) { // those of 4.4 that have built it already do not vote again
		foreign := buildForAll(t, c)
		ends("a build that another process has begun", build(with(nil), "both"))
		ends("that process' own", foreign)
	}

	all := with(3)
	waits := build(all, "all")
	kit.Until(t, "the build is known to stand still", func() bool {
		s := all.o.Builds.Stalled()
		return len(s) == 1 && s[0].NS == "d.c" && strings.Contains(s[0].Why, "member "+down.Host()+" is down")
	})
	if !strings.Contains(log.String(), "makes no progress") || !strings.Contains(log.String(), down.Host()) {
		t.Errorf("the log does not name the member: %s", log.String())
	}
	if err := down.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ends("a build for all members", waits)
	if all.o.Builds.UnderWay() {
		t.Error("a build that has ended is under way")
	}
}

// buildForAll has a build begin that waits for all members that vote, and that the server
// knows by two names.
func buildForAll(t *testing.T, c *mongo.Cluster) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := c.Command(context.Background(), "d", bson.D{{Key: "createIndexes", Value: "c"},
			{Key: "indexes", Value: bson.A{
				js(t, `{"key":{"both":1},"name":"both"}`), js(t, `{"key":{"foreign":1},"name":"foreign"}`)}}})
		done <- err
	}()
	kit.Until(t, "the other process' build begins", func() bool {
		_, building, err := indexes(t.Context(), c, "d.c")
		return err == nil && len(building) == 2
	})
	return done
}

// threeMembers starts a replica set, or a cluster of one shard, of three members.
func threeMembers(t *testing.T, version string) (uri string, set *lab.Cluster) {
	t.Helper()
	if version != "sharded" {
		set = lab.ForTest(t, lab.Options{Topology: "rs:3", Version: version, LeanJournal: true})
		return set.URI(), set
	}
	c := sharded.ForTest(t,
		sharded.Options{Options: lab.Options{Version: "6.0", Topology: "sharded:1x3", LeanJournal: true}, Routers: 1})
	return c.URI(), c.Shards()[0]
}
