package memory

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/service/api"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/router"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// doubled is what there is many of. load makes n of them in databases that begin with a
// prefix.
type doubled struct {
	name string
	n    int
	load func(b *bed, prefix string, n int)
}

func doubles() []doubled {
	return []doubled{
		{"databases", 500, loadDatabases},
		{"collections", 1000, loadCollections},
		{"indexes on one collection", 30, loadIndexes},
		{"views", 500, loadViews},
	}
}

const doublesHeader = "| what | n | step | processor, n | 2n | ratio | peak, n | 2n |"

// TestDoubling: twice as much takes no more than about twice the processor time.
func TestDoubling(t *testing.T) {
	lab.Nightly(t)
	if testing.Short() {
		t.Skip("long")
	}
	b := newBed(t, lab.Options{OplogMB: 990, CacheGB: 1})
	for i, one := range doubles() {
		t.Run(one.name, func(t *testing.T) {
			part := *b
			part.T = t
			part.doubled(one.name, one.n, func(n int) map[string]used {
				prefix := fmt.Sprintf("double%d_%d_", i, n) // jobs have it, too
				one.load(&part, prefix, n)
				defer part.drop(part.sc, prefix)
				return part.steps(prefix)
			})
		})
	}
	b.table(doublesHeader)
}

// doubled measures n and twice as many. The fixed part of a step makes the ratio smaller.
func (b *bed) doubled(name string, n int, measure func(n int) map[string]used) {
	b.Helper()
	const most, least = 3, 2 * time.Second
	one, two := measure(n), measure(2*n)
	for _, step := range []string{"copy", "structure", "verify", "define", "list"} {
		x, y := one[step], two[step]
		if y.took == 0 {
			continue
		}
		ratio := y.cpu.Seconds() / max(x.cpu.Seconds(), 0.01)
		b.row("| %s | %d | %s | %.2f s | %.2f s | %.2f | %d MB | %d MB |", name, n, step, x.cpu.Seconds(),
			y.cpu.Seconds(), ratio, x.peak>>20, y.peak>>20)
		b.Logf("%d and %d %s, %s: %s and %s of CPU, ratio %.2f, peak memory %s and %s", n, 2*n, name, step, x.cpu, y.cpu,
			ratio, test.Megabytes(x.peak), test.Megabytes(y.peak))
		if ratio > most && y.cpu > least {
			b.Errorf("%s of twice as many %s takes %.2f times the processor time, want at most %d", step, name, ratio, most)
		}
		if y.peak > limit {
			b.Errorf("%s of %d %s: peak memory %s, want at most %s", step, 2*n, name, test.Megabytes(y.peak),
				test.Megabytes(limit))
		}
	}
}

// steps copies, compares, and copies the structure alone.
func (b *bed) steps(prefix string) map[string]used {
	b.Helper()
	out := map[string]used{}
	include := []string{"--include", prefix + "*.*"}
	sync := func(job string, more ...string) used {
		return b.millrace(nil, append(append([]string{"sync", "--job", prefix + job}, include...), more...)...)
	}
	out["copy"] = sync("full", "--mode", "full")
	out["verify"] = b.millrace(nil, append([]string{"verify"}, include...)...)
	b.drop(b.tc, prefix)
	out["structure"] = sync("structure", "--mode", "structure")
	b.drop(b.tc, prefix)
	return out
}

// drop drops the databases that begin with a prefix.
func (b *bed) drop(c *mongo.Client, prefix string) {
	b.Helper()
	names, err := c.ListDatabaseNames(b.Context(), bson.D{})
	b.ok(err)
	var g errgroup.Group
	g.SetLimit(8)
	for _, name := range names {
		if strings.HasPrefix(name, prefix) {
			g.Go(func() error { return c.Database(name).Drop(b.Context()) })
		}
	}
	b.ok(g.Wait())
}

// each does something with the numbers below n, eight at a time.
func (b *bed) each(n int, do func(i int) error) {
	b.Helper()
	var g errgroup.Group
	g.SetLimit(8)
	for i := range n {
		g.Go(func() error { return do(i) })
	}
	b.ok(g.Wait())
}

func insertFew(b *bed, c *mongo.Collection, n int) error {
	var docs []any
	for i := range n {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "x", Value: strings.Repeat("x", 200)}})
	}
	_, err := c.InsertMany(b.Context(), docs)
	return err
}

func loadDatabases(b *bed, prefix string, n int) {
	b.each(n, func(i int) error {
		c := b.sc.Database(fmt.Sprint(prefix, i)).Collection("c")
		if _, err := c.Indexes().CreateOne(b.Context(), mongo.IndexModel{Keys: kit.D("x", 1)}); err != nil {
			return err
		}
		return insertFew(b, c, 20)
	})
}

func loadCollections(b *bed, prefix string, n int) {
	db := b.sc.Database(prefix + "one")
	b.each(n, func(i int) error {
		c := db.Collection(fmt.Sprint("c", i))
		if _, err := c.Indexes().CreateOne(b.Context(), mongo.IndexModel{Keys: kit.D("x", 1)}); err != nil {
			return err
		}
		return insertFew(b, c, 20)
	})
}

func loadIndexes(b *bed, prefix string, n int) {
	c := b.sc.Database(prefix + "one").Collection("c")
	var models []mongo.IndexModel
	for i := range n {
		models = append(models, mongo.IndexModel{Keys: kit.D(fmt.Sprint("f", i), 1, "x", 1)})
	}
	_, err := c.Indexes().CreateMany(b.Context(), models)
	b.ok(err)
	b.ok(insertFew(b, c, 10_000))
}

func loadViews(b *bed, prefix string, n int) {
	db := b.sc.Database(prefix + "one")
	b.ok(insertFew(b, db.Collection("c"), 20))
	for i := range n {
		on := "c"
		if i%5 != 0 { // up to five deep
			on = fmt.Sprint("v", i-1)
		}
		b.ok(db.CreateView(b.Context(), fmt.Sprint("v", i), on, bson.A{kit.D("$match", kit.D("x", i))}))
	}
}

// TestDoublingOfChunks is TestDoubling between sharded clusters.
func TestDoublingOfChunks(t *testing.T) {
	lab.Nightly(t)
	if testing.Short() {
		t.Skip("long")
	}
	start := func() (*sharded.Cluster, string) {
		c := sharded.ForTest(t, sharded.Options{Options: lab.Options{Topology: "sharded:2x1",
			SetParameters: map[string]string{"orphanCleanupDelaySecs": "0"}}})
		r, err := router.Start(t.Context(), router.Options{ConfigURI: c.ConfigURI()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		return c, r.URI()
	}
	src, source := start()
	_, target := start()
	b := bedBetween(t, source, target)
	b.doubled("chunks", 5000, func(n int) map[string]used {
		db := fmt.Sprintf("double%d_one", n)
		b.ok(src.CreateDatabase(t.Context(), db, src.ShardNames()[0]))
		b.ok(src.ShardCollection(t.Context(), db+".c", sharded.Sharding{Key: kit.D("_id", "hashed"), Chunks: n}))
		chunks, err := b.sc.Database("config").Collection("chunks").CountDocuments(t.Context(), bson.D{})
		b.ok(err)
		if int(chunks) < n {
			t.Fatalf("%d chunks, want %d", chunks, n)
		}
		b.ok(insertFew(b, b.sc.Database(db).Collection("c"), 20_000))
		return b.steps(fmt.Sprintf("double%d_", n))
	})
	b.table(doublesHeader)
}

// TestDoublingOfDefinitions makes and lists the definitions of jobs.
func TestDoublingOfDefinitions(t *testing.T) {
	lab.Nightly(t)
	if testing.Short() {
		t.Skip("long")
	}
	b := &bed{T: t, bin: test.BuildMillrace(t), rows: &[]string{}}
	b.doubled("definitions", 1000, b.definitions)
	b.table(doublesHeader)
}

func (b *bed) definitions(n int) map[string]used {
	b.Helper()
	const lists = 20
	dir := b.TempDir()
	at := fmt.Sprintf("127.0.0.1:%d", lab.PortForTest(b))
	env := []string{"MILLRACE_SECRET_S=mongodb://127.0.0.1:1/", "MILLRACE_SECRET_T=mongodb://127.0.0.1:2/"}
	p := test.StartWith(b.T, env, b.bin, "serve", "--no-worker", "--data-dir", dir, "--listen", at,
		"--nats-listen", "127.0.0.1:0")
	peak := watchPeak(p)
	var token []byte
	kit.Until(b, "serve runs", func() (there bool) {
		var err error
		token, err = os.ReadFile(filepath.Join(dir, "token"))
		return err == nil
	})
	c := api.NewClient("http://"+at, strings.TrimSpace(string(token)))
	defer c.Close()
	kit.Until(b, "serve answers", func() bool {
		_, err := c.Jobs(b.Context(), "", "")
		return err == nil
	})
	began, before := time.Now(), cpuOf(p.Pid())
	b.each(n, func(i int) error {
		var one api.NewJob
		one.Name, one.Paused = fmt.Sprintf("job-%05d", i), true
		one.Settings = fmt.Appendf(nil, `{"source": "env:S", "target": "env:T", "include": [%q]}`, one.Name+".*")
		_, _, err := c.Create(b.Context(), one)
		return err
	})
	made := cpuOf(p.Pid())
	for range lists {
		all, err := c.Jobs(b.Context(), "", "")
		b.ok(err)
		if len(all) != n {
			b.Fatalf("%d of %d jobs are listed", len(all), n)
		}
	}
	listed, took := cpuOf(p.Pid()), time.Since(began)
	p.Interrupt()
	most := peak()
	return map[string]used{"define": {most, made - before, took}, "list": {most, listed - made, took}}
}
