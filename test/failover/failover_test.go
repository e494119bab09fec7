package failover

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/lab"
	"github.com/millrace/millrace/test"
)

// seed is that of MILLRACE_TEST_SEED, or a new one.
func seed(t *testing.T) uint64 {
	t.Helper()
	n := uint64(time.Now().UnixNano())
	if s := os.Getenv("MILLRACE_TEST_SEED"); s != "" {
		var err error
		if n, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d", n)
	return n
}

// bench is a source and a target of three members each, with writers on the
// source and a job between them.
type bench struct {
	t              *testing.T
	source, target *lab.Cluster
	sc, tc         *mongo.Client
	bin            string
	seed           uint64
	churn          *test.Churn
	marks          int
}

const database = "churned"

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, seed: seed(t), bin: test.BuildMillrace(t)}
	var g errgroup.Group
	o := lab.Options{Topology: "rs:3", Proxy: true}
	g.Go(func() error { b.source = lab.ForTest(t, o); return nil })
	g.Go(func() error { b.target = lab.ForTest(t, o); return nil })
	_ = g.Wait()
	if t.Failed() {
		t.FailNow()
	}
	// Writers see a failure soon; reads at the end wait for a primary.
	b.sc, b.tc = test.Connect(t, uri(b.source)), test.Connect(t, uri(b.target))
	test.LoadChurn(t, b.sc.Database(database))
	// The log is a plain collection here: after a kill a server's counts and
	// sizes are off (server manual, collStats), and a capped collection rolls
	// off by them, on the target at another document than on the source.
	if err := b.sc.Database(database).Collection("log").Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.churn = test.StartChurn(t, b.sc.Database(database), test.ChurnOptions{
		Seed: b.seed, SchemaEvery: 500 * time.Millisecond, Expected: func(error) bool { return true },
	})
	return b
}

// uri lets a client notice a silent network within seconds.
func uri(c *lab.Cluster) string {
	return c.URI() + "&connectTimeoutMS=2000&heartbeatFrequencyMS=1000"
}

func (b *bench) start(more ...string) *test.Process {
	b.t.Helper()
	args := []string{"sync", "--source", uri(b.source), "--target", uri(b.target), "--include", database + ".*", "--include", database + "-x.*", "--job", "faults"}
	return test.Start(b.t, b.bin, append(args, more...)...)
}

// mark waits until a write to the source has arrived on the target.
func (b *bench) mark(p *test.Process, after string) {
	b.t.Helper()
	b.marks++
	began := time.Now()
	ctx, cancel := context.WithTimeout(b.t.Context(), 2*time.Minute)
	defer cancel()
	id := bson.D{{Key: "_id", Value: fmt.Sprint("mark", b.marks)}}
	source := b.sc.Database(database).Collection("marks", options.Collection().SetWriteConcern(writeconcern.Majority()))
	b.await(ctx, p, after, func() error {
		_, err := source.UpdateOne(ctx, id, bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: b.marks}}}}, options.UpdateOne().SetUpsert(true))
		return err
	})
	written := time.Since(began)
	b.await(ctx, p, after, func() error { return b.tc.Database(database).Collection("marks").FindOne(ctx, id).Err() })
	b.t.Logf("%-40s written after %5.1f s, there after %5.1f s", after, written.Seconds(), time.Since(began).Seconds())
}

// await tries again until do succeeds.
func (b *bench) await(ctx context.Context, p *test.Process, after string, do func() error) {
	b.t.Helper()
	for {
		err := do()
		if err == nil {
			return
		}
		select {
		case <-p.Done():
			b.t.Fatalf("after %q: millrace ended\n%s", after, p.Output())
		case <-ctx.Done():
			b.t.Fatalf("after %q: %v\n%s", after, err, p.Output())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// faults are those of both sides.
func (b *bench) faults() []Fault {
	return append(Of("source", b.source, database), Of("target", b.target, "")...)
}

// suffer lets a fault strike for a while.
func (b *bench) suffer(f Fault, r *rand.Rand) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 2*time.Minute)
	defer cancel()
	if err := f.Strike(ctx); err != nil {
		b.t.Fatalf("%s: %v", f.Name, err)
	}
	time.Sleep(time.Duration(500+r.IntN(2500)) * time.Millisecond)
	if err := f.Heal(ctx); err != nil {
		b.t.Fatalf("%s, healing: %v", f.Name, err)
	}
}

// finish ends the writers, lets the job finalize and compares.
func (b *bench) finish(p *test.Process) {
	b.t.Helper()
	b.churn.Stop()
	p.Interrupt()
	p = b.start("--until", "caught-up")
	if err := p.Wait(5 * time.Minute); err != nil {
		b.t.Fatalf("the last run: %v\n%s", err, p.Output())
	}
	b.t.Logf("%d operations written meanwhile", b.churn.Operations())
	b.compare()
}

// compare wants no difference.
func (b *bench) compare() {
	b.t.Helper()
	ours := func(ns string) bool {
		return strings.HasPrefix(ns, database+".") || strings.HasPrefix(ns, database+"-x.")
	}
	diffs, err := test.Compare(b.t.Context(), b.sc, b.tc, test.CompareOptions{Source: ours, Target: ours})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, d := range diffs {
		b.t.Errorf("seed %d: %s", b.seed, d)
	}
}

// some are the first n faults, or all with MILLRACE_TEST_FAULTS=all.
func some(all []Fault, n int) []Fault {
	if os.Getenv("MILLRACE_TEST_FAULTS") == "all" {
		return all
	}
	return all[:n]
}

// TestFaultsWhileFollowing lets faults drawn from the seed strike either side while a job
// follows; it goes on by itself each time.
func TestFaultsWhileFollowing(t *testing.T) {
	b := newBench(t)
	r := rand.New(rand.NewPCG(b.seed, 1))
	p := b.start("--until", "never")
	p.AwaitPhase(b.tc, "faults", "following")
	b.mark(p, "start")
	all := b.faults()
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, f := range some(all, 6) {
		b.suffer(f, r)
		b.mark(p, f.Name)
	}
	b.finish(p)
}

// TestFaultsWhileCopying does the same during a copy that is held back.
func TestFaultsWhileCopying(t *testing.T) {
	b := newBench(t)
	r := rand.New(rand.NewPCG(b.seed, 2))
	p := b.start("--until", "never", "--max-rate-bytes", "2MB")
	all := b.faults()
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, f := range some(all, 3) {
		p.AwaitPhase(b.tc, "faults", "copying")
		t.Log(f.Name)
		b.suffer(f, r)
	}
	p.AwaitPhase(b.tc, "faults", "following")
	b.mark(p, "the copy")
	b.finish(p)
}
