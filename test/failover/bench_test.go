package failover

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/history"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// bench is a source and a target of three members each, with writers on the
// source and a job between them.
type bench struct {
	t              *testing.T
	source, target *lab.Cluster
	sc, tc         *mongo.Client
	bin            string
	seed           uint64
	churn          *test.Churn
	unhurried      bool // the writers wait until the job has caught up with a fault
	marks          int
}

const database = "churned"

// oplogMB is the size of the source's oplog, which is flooded at times.
const oplogMB = 600

// unhurried is the pause of writers in tests: a fault lasts seconds, in which they
// still write hundreds of times, and six servers and as many proxies have to
// carry each write.
const unhurried = 40 * time.Millisecond

// newBench starts all but the job. Every so often a schema change is made, which
// takes a target of three members up to half a second.
func newBench(t *testing.T, schemaEvery, pause time.Duration) *bench {
	t.Helper()
	lab.NeedServers(t)
	b := &bench{t: t, seed: testseed.Of(t), bin: test.BuildMillrace(t), unhurried: pause > 0}
	b.startClusters()
	// Writers see a failure soon; reads at the end wait for a primary.
	b.sc, b.tc = kit.Client(t, uri(b.source)), kit.Client(t, uri(b.target))
	test.LoadChurn(t, b.sc.Database(database))
	// The log is a plain collection here: after a kill a server's counts and
	// sizes are off (server manual, collStats), and a capped collection rolls
	// off by them, on the target at another document than on the source.
	if err := b.sc.Database(database).Collection("log").Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.churn = test.StartChurn(t, b.sc.Database(database), test.ChurnOptions{
		Seed: b.seed, SchemaEvery: schemaEvery, Pause: pause, Expected: func(error) bool { return true },
	})
	return b
}

// loadBulk makes a held copy take longer than the faults.
func (b *bench) loadBulk() {
	b.t.Helper()
	pad := make([]byte, 2000)
	thousands := 40
	if os.Getenv("MILLRACE_TEST_FAULTS") == "all" {
		thousands = 200
	}
	for n := range thousands {
		docs := make([]any, 1000)
		for i := range docs {
			docs[i] = bson.D{{Key: "_id", Value: n*len(docs) + i}, {Key: "pad", Value: pad}}
		}
		if _, err := b.sc.Database(database).Collection("bulk").InsertMany(b.t.Context(), docs); err != nil {
			b.t.Fatal(err)
		}
	}
}

// startClusters starts source and target, on small disks where there can be any.
func (b *bench) startClusters() {
	b.t.Helper()
	o := lab.Options{Topology: "rs:3", Proxy: true, DiskMB: 4096}
	if _, end, err := lab.NewDisk(b.t.TempDir(), 1); err != nil {
		b.t.Logf("no full disks among the faults: %v", err)
		o.DiskMB = 0
	} else if err := end(); err != nil {
		b.t.Fatal(err)
	}
	source := o
	source.Version, o.Version = os.Getenv("MILLRACE_TEST_SOURCE"), os.Getenv("MILLRACE_TEST_TARGET")
	// The servers never cut off what came after the last checkpoint.
	source.OplogMB, source.Args = oplogMB, []string{"--syncdelay", "5"}
	for _, o := range []*lab.Options{&source, &o} {
		if strings.HasPrefix(o.Version, "7.") { // by wine, which does not see such disks
			o.DiskMB = 0
		}
	}
	var g errgroup.Group
	g.Go(func() error { b.source = lab.ForTest(b.t, source); return nil })
	g.Go(func() error { b.target = lab.ForTest(b.t, o); return nil })
	_ = g.Wait()
	if b.t.Failed() {
		b.t.FailNow()
	}
}

// uri lets a client notice a silent network within seconds.
func uri(c *lab.Cluster) string {
	return c.URI() + "&connectTimeoutMS=2000&heartbeatFrequencyMS=1000"
}

func (b *bench) start(more ...string) *test.Process {
	b.t.Helper()
	args := []string{"sync", "--source", uri(b.source), "--target", uri(b.target), "--include", database + ".*",
		"--include", database + "-x.*", "--allow-missing"}
	return test.Start(b.t, b.bin, append(append(args, b.rules()...), more...)...)
}

// rules are the filters and mappings of the job, as flags.
func (b *bench) rules() (flags []string) {
	for _, rule := range history.FiltersOf(b.seed, database) {
		flags = append(flags, "--filter", rule)
	}
	for _, rule := range history.FieldsOf(b.seed, database) {
		flags = append(flags, "--fields", rule)
	}
	return flags
}

// awaitPhase waits until the job is in a phase or past it. Its name is derived
// from the replica sets' ids, whatever their addresses.
func (b *bench) awaitPhase(p *test.Process, phase job.Phase) {
	b.t.Helper()
	order := []job.Phase{job.PhaseCopying, job.PhaseIndexing, job.PhaseOverlap, job.PhaseFollowing}
	reached := order[slices.Index(order, phase):]
	// A copy that was held for long has much to catch up with.
	ctx, cancel := context.WithTimeout(b.t.Context(), 10*time.Minute)
	defer cancel()
	b.await(ctx, p, "wait for phase "+string(phase), func() error {
		var doc struct{ Phase job.Phase }
		err := b.tc.Database("millrace").Collection("jobs").FindOne(ctx, bson.D{}).Decode(&doc)
		if err == nil && !slices.Contains(reached, doc.Phase) {
			err = fmt.Errorf("the job is in phase %q", doc.Phase)
		}
		return err
	})
}

// mark waits until a write to the source has arrived on the target.
func (b *bench) mark(p *test.Process, after string) {
	b.t.Helper()
	b.marks++
	began := time.Now()
	ctx, cancel := context.WithTimeout(b.t.Context(), 8*time.Minute)
	defer cancel()
	id := bson.D{{Key: "_id", Value: fmt.Sprint("mark", b.marks)}}
	source := b.sc.Database(database).Collection("marks", options.Collection().SetWriteConcern(writeconcern.Majority()))
	b.await(ctx, p, after, func() error {
		_, err := source.UpdateOne(ctx, id, bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: b.marks}}}},
			options.UpdateOne().SetUpsert(true))
		return err
	})
	written := time.Since(began)
	if b.unhurried {
		// What was written during the fault is enough to catch up with: where the
		// machine is busy, the writers would run away from the job.
		defer b.churn.Hold()()
	}
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

// unleash ends all limits of a job.
func (b *bench) unleash(p *test.Process, after string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 4*time.Minute)
	defer cancel()
	b.await(ctx, p, after, func() error { // it may be starting
		_, err := p.Command(ctx, "throttle", "--max-rate-bytes", "0")
		return err
	})
}

// copies waits until the copy goes on.
func (b *bench) copies(p *test.Process, after string) {
	b.t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(b.t.Context(), 6*time.Minute)
	defer cancel()
	docs := int64(-1)
	b.await(ctx, p, after, func() error {
		st := p.Status(ctx)
		if st.Waiting != "" || st.Phase != job.PhaseCopying {
			return fmt.Errorf("in phase %q, waiting for %q", st.Phase, st.Waiting)
		}
		was := docs
		docs = st.Copy.Docs
		if was < 0 || docs <= was {
			return fmt.Errorf("%d documents copied", docs)
		}
		return nil
	})
	b.t.Logf("%-40s copying again after %5.1f s, %d documents", after, time.Since(began).Seconds(), docs)
}

// faults are those of both sides.
func (b *bench) faults() []Fault {
	return append(Of("source", b.source, database), Of("target", b.target, "")...)
}

// suffer lets a fault strike for a while.
func (b *bench) suffer(f Fault, r *rand.Rand) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 6*time.Minute)
	defer cancel()
	if err := f.Strike(ctx); err != nil {
		b.t.Fatalf("%s: %v", f.Name, err)
	}
	time.Sleep(time.Duration(500+r.IntN(2500)) * time.Millisecond)
	b.heal(ctx, f)
}

func (b *bench) heal(ctx context.Context, f Fault) {
	b.t.Helper()
	if err := f.Heal(ctx); err != nil {
		b.t.Fatalf("%s, healing: %v", f.Name, err)
	}
}

// sufferWaiting does the same to a job that runs, and wants it to say what it
// waits for where nothing can be done.
func (b *bench) sufferWaiting(p *test.Process, f Fault, r *rand.Rand) {
	b.t.Helper()
	if !f.Stops {
		b.suffer(f, r)
		return
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), 6*time.Minute)
	defer cancel()
	if err := f.Strike(ctx); err != nil {
		b.t.Fatalf("%s: %v", f.Name, err)
	}
	b.await(ctx, p, f.Name, func() error {
		if st := p.Status(ctx); st.Waiting == "" || st.WaitingSince == nil {
			return fmt.Errorf("the status names nothing that is waited for in phase %s", st.Phase)
		}
		return nil
	})
	b.heal(ctx, f)
}

// sufferKilled lets a fault strike and kills millrace at the same time; another
// process may have to start while the fault lasts.
func (b *bench) sufferKilled(p *test.Process, f Fault, r *rand.Rand, args ...string) *test.Process {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 6*time.Minute)
	defer cancel()
	moves := strings.Contains(f.Name, "moved") // then the old addresses do not lead there
	before, early := time.Duration(r.IntN(1500))*time.Millisecond, r.IntN(2) == 0 && !moves
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		time.Sleep(before)
		p.Kill()
	}()
	err := f.Strike(ctx)
	<-killed
	if b.t.Failed() {
		b.t.FailNow()
	}
	if err != nil {
		b.t.Fatalf("%s: %v", f.Name, err)
	}
	if early {
		p = b.start(args...)
	}
	time.Sleep(time.Duration(500+r.IntN(2500)) * time.Millisecond)
	b.heal(ctx, f)
	if !early {
		p = b.start(args...)
	}
	return p
}

// rollPast stops millrace, lets the source's oplog forget the job's position
// and wants the job to say so and to touch nothing, until it is begun anew.
func (b *bench) rollPast(p *test.Process, args ...string) *test.Process {
	b.t.Helper()
	p.Kill()
	ctx, cancel := context.WithTimeout(b.t.Context(), 6*time.Minute)
	defer cancel()
	position := b.position(ctx)
	if position.IsZero() {
		return b.start(args...) // it has none yet
	}
	err := Flood(ctx, b.sc, func(ctx context.Context) (bool, error) {
		for i := range b.source.Members() {
			if oldest, err := OldestEntry(ctx, b.source, i); err != nil || !position.Before(oldest) {
				return false, err
			}
		}
		return true, nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	before := b.targetHash(ctx)
	p = b.start("--until", "never")
	if err := p.Wait(4 * time.Minute); err == nil || p.ExitCode() == 0 {
		b.t.Fatalf("the oplog does not hold position %v any more, but the job ended with %v\n%s", position, err, p.Output())
	}
	for _, want := range []string{"no longer holds", "--restart"} {
		if !strings.Contains(p.Output(), want) {
			b.t.Errorf("millrace does not say %q\n%s", want, p.Output())
		}
	}
	if after := b.targetHash(ctx); after != before {
		b.t.Errorf("the target was %s and is %s", before, after)
	}
	_ = b.sc.Database(ballast).Drop(ctx)
	p = b.start(append(args, "--restart", "--on-existing", "drop")...)
	// Until it copies, each start has to say so again.
	b.await(ctx, p, "the oplog rolled past the job", func() error {
		if now := b.position(ctx); now.IsZero() || now == position {
			return fmt.Errorf("the job has not begun anew from %v", position)
		}
		return nil
	})
	b.awaitPhase(p, job.PhaseCopying)
	return p
}

// position is where the job would read on, zero when that is not settled yet.
func (b *bench) position(ctx context.Context) bson.Timestamp {
	b.t.Helper()
	var doc state.Job
	err := b.tc.Database("millrace").Collection("jobs").FindOne(ctx, bson.D{}).Decode(&doc)
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		b.t.Fatal(err)
	}
	if kit.Streamed() {
		return doc.Applied.TS
	}
	at, err := oplog.ReadFrom(stream.Position{At: doc.Applied, Mark: doc.Mark})
	if err != nil {
		b.t.Fatal(err)
	}
	return at.TS
}

// targetHash is a checksum of the target's data, once nothing is written any more.
func (b *bench) targetHash(ctx context.Context) (hash string) {
	b.t.Helper()
	for {
		var reply struct {
			MD5 string `bson:"md5"`
		}
		if err := b.tc.Database(database).RunCommand(ctx, bson.D{{Key: "dbHash", Value: 1}}).Decode(&reply); err != nil {
			b.t.Fatal(err)
		}
		if hash == reply.MD5 {
			return hash
		}
		hash = reply.MD5
		time.Sleep(200 * time.Millisecond) // what a killed process sent last is still being done
	}
}

// finish ends the writers, lets the job finalize and compares.
func (b *bench) finish(p *test.Process) (differences int) {
	b.t.Helper()
	b.churn.Stop()
	p.Interrupt()
	p = b.start("--until", "caught-up")
	if err := p.Wait(8 * time.Minute); err != nil {
		b.t.Fatalf("the last run: %v\n%s", err, p.Output())
	}
	b.t.Logf("%d operations written meanwhile", b.churn.Operations())
	if n, err := b.tc.Database("millrace").Collection("jobs").CountDocuments(b.t.Context(), bson.D{}); n != 1 ||
		err != nil {
		b.t.Errorf("there are %d jobs (%v), not one", n, err)
	}
	return b.compare()
}

// compare wants no difference, and returns how many there are.
func (b *bench) compare() int {
	b.t.Helper()
	ours := func(ns string) bool {
		return strings.HasPrefix(ns, database+".") || strings.HasPrefix(ns, database+"-x.")
	}
	diffs, err := test.Compare(b.t.Context(), b.sc, b.tc,
		test.CompareOptions{Source: ours, Target: ours, Filter: test.Filters(history.FiltersOf(b.seed, database)),
			Fields: test.Mappings(history.FieldsOf(b.seed, database))})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, d := range diffs {
		b.t.Errorf("seed %d: %s", b.seed, d)
	}
	return len(diffs)
}
