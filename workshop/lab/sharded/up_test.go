package sharded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/router"
)

// TestMain lets the test's own program be a router or a gate, as millrace-bench is.
func TestMain(m *testing.M) {
	if len(os.Args) != 7 || os.Args[1] != "lab" {
		os.Exit(m.Run())
	}
	if err := beFront(os.Args[2], os.Args[4], os.Args[6]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// beFront is a router or a gate until it is ended.
func beFront(role, listen, to string) error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	var f lab.Front
	var err error
	if role == "gate" {
		f, err = router.StartGate(ctx, listen, to)
	} else if uri, readErr := os.ReadFile(to); readErr != nil {
		return readErr
	} else {
		f, err = router.Start(ctx, router.Options{ConfigURI: string(uri), Listen: listen})
	}
	if err != nil {
		return err
	}
	fmt.Println(f.Host())
	<-ctx.Done()
	return f.Close()
}

// throughRouters is a client of a cluster's routers, which may end before it.
func throughRouters(t *testing.T, uri string) *mongo.Client {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetServerMonitoringMode(options.ServerMonitoringModePoll))
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), goodbye)
		defer cancel()
		_ = client.Disconnect(ctx)
	})
	return client
}

// Routers take clients, and one that was closed can be started again.
func TestRouters(t *testing.T) {
	c := ForTest(t, Options{Options: lab.Options{Auth: true, TLS: true}, Routers: 2})
	must(t, c.CreateDatabase(t.Context(), "db", "s0"))
	must(t, c.ShardCollection(t.Context(), "db.c", Sharding{Key: bson.D{{Key: "_id", Value: "hashed"}}, Chunks: 4}))
	coll := throughRouters(t, c.URI()).Database("db").Collection("c")
	var docs []any
	for i := range 100 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}})
	}
	_, err := coll.InsertMany(t.Context(), docs)
	must(t, err)
	a, b := owned(t, c, "s0", "db.c"), owned(t, c, "s1", "db.c")
	if a+b != 100 || a == 0 || b == 0 {
		t.Errorf("the shards own %d and %d documents", a, b)
	}
	first := c.Routers()[0]
	must(t, first.Close())
	kit.Until(t, "the other router counts all", func() bool {
		n, err := coll.CountDocuments(t.Context(), bson.D{})
		return err == nil && n == 100
	})
	again, err := c.StartRouter(t.Context(), first.Host())
	must(t, err)
	if again.Host() != first.Host() || len(c.Routers()) != 2 {
		t.Errorf("the router is back at %s, was at %s", again.Host(), first.Host())
	}
}

// A cluster outlives its starter, routers and all, and ends with Down.
func TestUp(t *testing.T) {
	lab.NeedServers(t)
	store, err := lab.NewStore(filepath.Join(t.TempDir(), "store"))
	must(t, err)
	program, err := os.Executable()
	must(t, err)
	o := Options{Options: lab.Options{Name: "up", Topology: "sharded:1x1", CacheGB: 0.25, LeanJournal: true}, Routers: 2,
		RefuseDirect: true}
	state, err := Up(t.Context(), store, o, program)
	must(t, err)
	t.Cleanup(func() { _ = store.Down(context.Background(), "up") }) // where the test has not come so far
	var roles []string
	for _, m := range state.Members {
		roles = append(roles, m.Role)
	}
	slices.Sort(roles)
	if !slices.Equal(roles, []string{"configsvr", "gate", "router", "router", "shardsvr"}) || state.Running() != 5 {
		t.Errorf("the members are %+v", state.Members)
	}
	_, err = throughRouters(t, state.URI).Database("db").Collection("c").InsertOne(t.Context(), key(1))
	must(t, err)
	gate := state.Members[slices.IndexFunc(state.Members, func(m lab.MemberState) bool { return m.Role == "gate" })].Host
	direct := throughRouters(t, "mongodb://"+gate+"/?directConnection=true")
	wantRefused(t, "find", "db.c", direct.Database("db").Collection("c").FindOne(t.Context(), bson.D{}).Err())
	if _, err := Up(t.Context(), store, o, program); err == nil {
		t.Error("it comes up twice")
	}
	must(t, store.Down(t.Context(), "up"))
	if state.Running() != 0 {
		t.Errorf("%d processes run still", state.Running())
	}
	if _, err := os.Stat(state.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the data are still there: %v", err)
	}
}

// When a router does not come up nothing is left.
func TestFailedUp(t *testing.T) {
	lab.NeedServers(t)
	store, err := lab.NewStore(filepath.Join(t.TempDir(), "store"))
	must(t, err)
	began := time.Now()
	o := Options{Options: lab.Options{Name: "failed", Topology: "sharded:1x1", CacheGB: 0.25, LeanJournal: true},
		Routers: 1}
	if _, err := Up(t.Context(), store, o, "/bin/false"); err == nil {
		t.Fatal("a cluster whose router ends at once is up")
	}
	states, err := store.List()
	if err != nil || len(states) != 0 {
		t.Errorf("%v after it began there is %+v, %v", time.Since(began), states, err)
	}
}
