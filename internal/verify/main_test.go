package verify

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// servers are started on first use, shared by the package's tests, and stopped
// by TestMain.
type servers struct {
	mu   sync.Mutex
	labs map[string]*lab.Cluster
	open map[string]*mongo.Cluster
}

var shared = servers{labs: map[string]*lab.Cluster{}, open: map[string]*mongo.Cluster{}}

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	for _, c := range shared.open {
		c.Close()
	}
	for _, c := range shared.labs {
		if err := c.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	os.Exit(code)
}

// cluster is a shared server of a version.
func cluster(t testing.TB, version, topology string) *mongo.Cluster {
	t.Helper()
	lab.NeedServers(t)
	shared.mu.Lock()
	defer shared.mu.Unlock()
	key := version + " " + topology
	if c := shared.open[key]; c != nil {
		return c
	}
	l, err := lab.Start(context.Background(), lab.Options{Version: version, Topology: topology, LeanJournal: true,
		SetParameters: map[string]string{"enableTestCommands": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	shared.labs[key] = l
	c, err := mongo.Connect(t.Context(), l.URI(), mongo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	shared.open[key] = c
	return c
}

// bed is a source and a target collection on one server or two.
type bed struct {
	t        testing.TB
	src, dst *mongo.Cluster
	pair     Pair
}

func newBed(t testing.TB, src, dst *mongo.Cluster) *bed {
	db := "v" + bson.NewObjectID().Hex()
	b := &bed{t: t, src: src, dst: dst, pair: pairOfNames(db+"_s.c", db+"_t.c")}
	own := b.pair // the test may set another
	t.Cleanup(func() {
		b.drop(src, own.Source)
		b.drop(dst, own.Target)
	})
	return b
}

func (b *bed) drop(c *mongo.Cluster, ns string) {
	db, _ := mongo.SplitNS(ns)
	_ = c.Client.Database(db).Drop(context.Background())
}

func (b *bed) create(options ...bson.E) {
	b.t.Helper()
	for c, ns := range map[*mongo.Cluster]string{b.src: b.pair.Source, b.dst: b.pair.Target} {
		b.createOn(c, ns, options...)
	}
	if b.src == b.dst {
		b.createOn(b.src, b.pair.Source, options...)
	}
}

func (b *bed) createOn(c *mongo.Cluster, ns string, options ...bson.E) {
	b.t.Helper()
	db, coll := mongo.SplitNS(ns)
	if _, err := c.Command(b.t.Context(), db, append(bson.D{{Key: "create", Value: coll}}, options...)); err != nil &&
		!mongo.IsCode(err, mongo.CodeNamespaceExists) {
		b.t.Fatal(err)
	}
}

// insert writes documents as they are.
func insert(t testing.TB, c *mongo.Cluster, ns string, docs ...bson.Raw) {
	t.Helper()
	db, coll := mongo.SplitNS(ns)
	for len(docs) > 0 {
		n := chunk(len(docs), 8<<20, func(i int) int { return len(docs[i]) })
		part := make(bson.A, n)
		for i := range part {
			part[i] = docs[i]
		}
		res, err := c.Command(t.Context(), db, bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: part},
			{Key: "ordered", Value: true}, {Key: "bypassDocumentValidation", Value: true}})
		if err != nil {
			t.Fatal(err)
		}
		if e, err := res.LookupErr("writeErrors"); err == nil {
			t.Fatalf("insert into %s: %s", ns, e)
		}
		docs = docs[n:]
	}
}

// pairOfNames pairs two collections by no rules.
func pairOfNames(source, target string) Pair { return Pair{Route: transform.Unruled(source, target)} }

// run compares the bed's pair.
func (b *bed) run(o Options) (*Report, Stats) {
	b.t.Helper()
	e := New(b.src, b.dst, o)
	ctx, cancel := context.WithTimeout(b.t.Context(), 6*time.Minute)
	defer cancel()
	r, err := e.Run(ctx, []Pair{b.pair})
	if err != nil {
		b.t.Fatal(err)
	}
	s := e.Stats()
	if s.BufferedBytes != 0 {
		b.t.Errorf("%d bytes still accounted for after the run", s.BufferedBytes)
	}
	return r, s
}

// seeded returns a generator of the test's seed.
func seeded(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(testseed.Of(t), 1))
}
