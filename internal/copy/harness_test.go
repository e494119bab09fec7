package copy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/wire"
	"github.com/millrace/millrace/workshop/lab"
)

// clusters are started on first use and shared by the package's tests, which
// work in databases of their own.
type clusters struct {
	mu  sync.Mutex
	all map[string]*shared
}

type shared struct {
	lab *lab.Cluster
	c   *mongo.Cluster
}

var servers = clusters{all: map[string]*shared{}}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, s := range servers.all {
		s.c.Close()
		if err := s.lab.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// server gives the cluster of a version, e.g. "6.0".
func server(t testing.TB, version string) *mongo.Cluster {
	t.Helper()
	lab.NeedServers(t)
	servers.mu.Lock()
	defer servers.mu.Unlock()
	if s := servers.all[version]; s != nil {
		return s.c
	}
	ctx := context.Background()
	l, err := lab.Start(ctx, lab.Options{Version: version, LeanJournal: true})
	if err != nil {
		t.Fatalf("start %s: %v", version, err)
	}
	c, err := mongo.Connect(ctx, l.URI(), mongo.Options{})
	if err != nil {
		_ = l.Stop()
		t.Fatal(err)
	}
	servers.all[version] = &shared{l, c}
	return c
}

// must runs a command.
func must(t testing.TB, c *mongo.Cluster, db string, cmd bson.D) bson.Raw {
	t.Helper()
	raw, err := c.Command(t.Context(), db, cmd)
	if err != nil {
		t.Fatalf("%v: %v", cmd[0], err)
	}
	if errs := wire.ParseWriteResult([]byte(raw)).Errors; len(errs) > 0 {
		t.Fatalf("%v: %s", cmd[0], errs[0].Message)
	}
	return raw
}

// insert loads documents in batches.
func insert(t testing.TB, c *mongo.Cluster, db, coll string, docs []any) {
	t.Helper()
	for len(docs) > 0 {
		n := min(len(docs), 5000)
		must(t, c, db, bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: bson.A(docs[:n])}})
		docs = docs[n:]
	}
}

// taskOf copies a collection by no rules.
func taskOf(source schema.Collection, target string) Task {
	return Task{Source: source, Route: transform.Unruled(source.NS, target)}
}

// source describes a collection as package catalog does.
func source(t testing.TB, c *mongo.Cluster, db, name string) schema.Collection {
	t.Helper()
	raw := must(t, c, db, bson.D{{Key: "listCollections", Value: 1},
		{Key: "filter", Value: bson.D{{Key: "name", Value: name}}}})
	vals, _ := raw.Lookup("cursor", "firstBatch").Array().Values()
	if len(vals) != 1 {
		t.Fatalf("%s.%s: %d collections", db, name, len(vals))
	}
	d := vals[0].Document()
	col := schema.Collection{NS: db + "." + name, Type: schema.TypeCollection, IDIndex: true,
		Options: d.Lookup("options").Document()}
	data := name
	if typ, _ := d.Lookup("type").StringValueOK(); typ == "timeseries" {
		buckets := source(t, c, db, mongo.BucketsPrefix+name)
		buckets.NS, buckets.Type, buckets.IDIndex = col.NS, schema.TypeTimeSeries, false
		return buckets
	}
	if col.Clustered() {
		col.IDIndex = false
	}
	sub, u := d.Lookup("info", "uuid").Binary()
	col.UUID = bson.Binary{Subtype: sub, Data: u}
	st := must(t, c, db, bson.D{{Key: "collStats", Value: data}})
	col.Count, _ = st.Lookup("count").AsInt64OK()
	col.Bytes, _ = st.Lookup("size").AsInt64OK()
	return col
}

// dump reads a collection in natural order.
func dump(t testing.TB, c *mongo.Cluster, db, coll string) [][]byte {
	t.Helper()
	ctx := t.Context()
	conn, err := c.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	cur, err := conn.OpenCursor(ctx, db, bson.D{{Key: "find", Value: coll},
		{Key: "hint", Value: bson.D{{Key: "$natural", Value: 1}}}}, wire.CursorOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var docs [][]byte
	for {
		b, err := cur.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		_ = b.Each(func(doc []byte) error { docs = append(docs, doc); return nil })
		if b.Done {
			return docs
		}
	}
}

func byID(docs [][]byte) map[string][]byte {
	m := make(map[string][]byte, len(docs))
	for _, d := range docs {
		id := bsonraw.IDOf(d)
		m[string(rune(id.Type))+string(id.Data)] = d
	}
	return m
}

// same fails the test unless both sides hold the same documents, byte for byte.
func same(t testing.TB, want, got [][]byte) {
	t.Helper()
	w, g := byID(want), byID(got)
	if len(w) != len(want) || len(g) != len(got) {
		t.Errorf("_ids are not unique: %d of %d, %d of %d", len(w), len(want), len(g), len(got))
	}
	bad := 0
	for id, doc := range w {
		if !bytes.Equal(doc, g[id]) {
			if bad++; bad <= 5 {
				t.Errorf("want %v\n got %v", bson.Raw(doc), bson.Raw(g[id]))
			}
		}
	}
	for id := range g {
		if _, ok := w[id]; !ok {
			if bad++; bad <= 5 {
				t.Errorf("too much: %v", bson.Raw(g[id]))
			}
		}
	}
	if bad > 0 {
		t.Fatalf("%d of %d documents differ", bad, len(w))
	}
}

func sameOrder(t testing.TB, want, got [][]byte) {
	t.Helper()
	if len(want) != len(got) {
		t.Fatalf("want %d documents, got %d", len(want), len(got))
	}
	for i := range want {
		if !bytes.Equal(want[i], got[i]) {
			t.Fatalf("document %d: want %v, got %v", i, bson.Raw(want[i]), bson.Raw(got[i]))
		}
	}
}

// memStore is a Store in memory that can crash.
type memStore struct {
	mu      sync.Mutex
	states  map[string]scan.Slice
	crashed bool
	saves   int
	onWrite func(n int64) // n counts writes
	writes  atomic.Int64
}

var errCrashed = errors.New("store has crashed")

func newStore() *memStore { return &memStore{states: map[string]scan.Slice{}} }

func (m *memStore) LoadSlices(context.Context) ([]scan.Slice, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.crashed = false
	var out []scan.Slice
	for _, s := range m.states { // through BSON, as a real store keeps them
		raw, err := bson.Marshal(s)
		if err != nil {
			return nil, err
		}
		var back scan.Slice
		if err := bson.Unmarshal(raw, &back); err != nil {
			return nil, err
		}
		out = append(out, back)
	}
	return out, nil
}

func (m *memStore) SaveSlices(_ context.Context, changed []scan.Slice) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.crashed {
		return errCrashed
	}
	m.saves++
	for _, s := range changed {
		m.states[fmt.Sprint(s.Collection, "/", s.N)] = s
	}
	return nil
}

func (m *memStore) SameTerm(int64) error {
	if n := m.writes.Add(1); m.onWrite != nil {
		m.onWrite(n)
	}
	return nil
}

func (m *memStore) crash() {
	m.mu.Lock()
	m.crashed = true
	m.mu.Unlock()
}

// small makes tiny slices and batches, so that little data passes through all
// that large data does.
func small(t testing.TB, src *mongo.Cluster) Options {
	pos, err := src.Positions(t.Context())
	if src.Info.Kind == mongo.KindSharded {
		pos.Last, err = src.ClusterTime(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		BatchBytes: 8 << 10, SmallBytes: 1, SliceBytes: 32 << 10, SaveEvery: 5 * time.Millisecond,
		AfterClusterTime: pos.Last, Inserted: oplog.FindInsertion, Log: slog.New(slog.NewTextHandler(testLog{t},
			&slog.HandlerOptions{Level: slog.LevelWarn})),
	}
}

type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("%s", bytes.TrimSpace(p))
	return len(p), nil
}
