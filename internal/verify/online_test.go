package verify

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/test/kit"
)

// replica writes to a source collection and repeats each write on the target
// after a delay, in order: a replication that lags.
type replica struct {
	src, dst *driver.Collection
	delay    time.Duration
	queue    chan op
	written  atomic.Int64 // on the source
	lag      atomic.Int64 // the longest so far, a time.Duration
	stop     context.CancelFunc
	wg       sync.WaitGroup
	err      error
}

type op struct {
	at  time.Time
	run func(context.Context, *driver.Collection) error
}

func majorityCollection(c *mongo.Cluster, ns string) *driver.Collection {
	db, coll := mongo.SplitNS(ns)
	return c.Client.Database(db).Collection(coll, options.Collection().SetWriteConcern(writeconcern.Majority()))
}

// startReplica writes what next gives until stopped.
func startReplica(b *bed, delay time.Duration, next func() func(context.Context, *driver.Collection) error) *replica {
	ctx, cancel := context.WithCancel(b.t.Context())
	r := &replica{src: majorityCollection(b.src, b.pair.Source), dst: majorityCollection(b.dst, b.pair.Target),
		delay: delay, queue: make(chan op, 50), stop: cancel}
	r.wg.Go(func() {
		defer close(r.queue)
		for ctx.Err() == nil {
			o := op{run: next(), at: time.Now()}
			if err := o.run(context.WithoutCancel(ctx), r.src); err != nil {
				r.err = err
				return
			}
			r.written.Add(1)
			select { // a slow target slows the source down, which bounds the lag
			case r.queue <- o:
			case <-ctx.Done():
				r.written.Add(-1)
				return
			}
		}
	})
	r.wg.Go(func() {
		for o := range r.queue {
			select {
			case <-time.After(time.Until(o.at.Add(delay))):
			case <-ctx.Done(): // drain without the delay
			}
			if err := o.run(context.WithoutCancel(ctx), r.dst); err != nil && r.err == nil {
				r.err = err
			}
			r.lag.Store(max(r.lag.Load(), int64(time.Since(o.at))))
		}
	})
	return r
}

func (r *replica) end(t *testing.T) {
	t.Helper()
	r.stop()
	r.wg.Wait()
	if r.err != nil {
		t.Fatal(r.err)
	}
}

// churn inserts, replaces, updates and deletes among n ids.
func churn(r *rand.Rand, n int) func() func(context.Context, *driver.Collection) error {
	return func() func(context.Context, *driver.Collection) error {
		id := bson.D{{Key: "_id", Value: fmt.Sprintf("hot%03d", r.IntN(n))}}
		v := r.Int64()
		switch r.IntN(4) {
		case 0:
			return func(ctx context.Context, c *driver.Collection) error {
				_, err := c.DeleteOne(ctx, id)
				return err
			}
		case 1:
			return func(ctx context.Context, c *driver.Collection) error {
				_, err := c.ReplaceOne(ctx, id, bson.D{{Key: "v", Value: v}}, options.Replace().SetUpsert(true))
				return err
			}
		}
		return func(ctx context.Context, c *driver.Collection) error {
			_, err := c.UpdateOne(ctx, id, bson.D{{Key: "$set", Value: bson.D{{Key: "w", Value: v % 2}}}},
				options.UpdateOne().SetUpsert(true))
			return err
		}
	}
}

func TestOnline(t *testing.T) {
	c := cluster(t, "6.0", "rs:1")
	for _, method := range []Method{Ranges, Digest} {
		for _, differs := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, differs %v", method, differs), func(t *testing.T) {
				t.Parallel()
				testOnline(t, newBed(t, c, c), method, differs)
			})
		}
	}
}

func testOnline(t *testing.T, b *bed, method Method, differs bool) {
	r := seeded(t)
	every := math.MaxInt
	if differs {
		every = 20
	}
	want := plantAll(t, b, r, idsOf(400, makeID), every, true)
	rep := startReplica(b, 300*time.Millisecond, churn(r, 200))
	if err := rep.waitFor(t.Context(), 200); err != nil { // so that the scan meets a lag
		t.Fatal(err)
	}
	o := Options{Online: true, Method: method, RangeBytes: 5000, MaxBufferedBytes: 1 << 20,
		Recheck: RecheckOptions{Every: 30 * time.Millisecond, Quiet: 2 * time.Second, For: time.Minute}}
	report, st := b.run(o)
	rep.end(t)
	if lag := time.Duration(rep.lag.Load()); lag > o.Recheck.Quiet {
		t.Skipf("the machine is too slow: a lag of %s broke the premise of a quiet period of %s", lag, o.Recheck.Quiet)
	}
	checkFound(t, report, want)
	if st.Settled == 0 {
		t.Error("no mismatch had to be settled: the test shows nothing")
	}
	t.Logf("mismatches %d, settled %d, writes %d", st.Mismatches, st.Settled, rep.written.Load())
}

func (r *replica) waitFor(ctx context.Context, n int64) error {
	for r.written.Load() < n {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// A document that never comes to rest and never agrees counts as different
// when the limit passes.
func TestOnlineNeverQuiet(t *testing.T) {
	c := cluster(t, "6.0", "rs:1")
	b := newBed(t, c, c)
	insert(t, c, b.pair.Source, kit.Raw(bson.D{{Key: "_id", Value: 1}, {Key: "lost", Value: true}}))
	insert(t, c, b.pair.Target, kit.Raw(bson.D{{Key: "_id", Value: 1}}))
	var n int64
	rep := startReplica(b, 0, func() func(context.Context, *driver.Collection) error {
		n++
		v := n
		return func(ctx context.Context, c *driver.Collection) error {
			_, err := c.UpdateOne(ctx, bson.D{{Key: "_id", Value: 1}},
				bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: v}}}})
			return err
		}
	})
	report, _ := b.run(Options{Online: true, Recheck: RecheckOptions{Every: 10 * time.Millisecond, For: time.Second,
		Quiet: 10 * time.Second}})
	rep.end(t)
	if report.Same || len(report.Differences) != 1 || !strings.Contains(report.Differences[0].Detail, "still changing") {
		t.Errorf("report %+v", report)
	}
}

// A full recheck queue holds the scan up; nothing is left out.
func TestOnlineQueueBound(t *testing.T) {
	c := cluster(t, "6.0", "rs:1")
	b := newBed(t, c, c)
	want := map[string]expectation{}
	docs := make([]bson.Raw, 1500)
	for i := range docs {
		docs[i] = kit.Raw(bson.D{{Key: "_id", Value: i}})
		k, _ := appendID(nil, docs[i])
		want[string(k)] = expectation{Missing, "missing"}
	}
	insert(t, c, b.pair.Source, docs...)
	o := Options{Online: true, Workers: 1, MaxBufferedBytes: 1, MaxDifferences: 5000,
		Recheck: RecheckOptions{Every: 5 * time.Millisecond, Quiet: 10 * time.Millisecond}}
	e := New(c, c, o)
	if e.limits.queue/candidateCost > 1000 {
		t.Fatal("the queue holds it all")
	}
	rep, _ := b.run(o)
	checkFound(t, rep, want)
}

func TestCanceled(t *testing.T) {
	c := cluster(t, "6.0", "rs:1")
	b := newBed(t, c, c)
	insert(t, c, b.pair.Source, kit.Raw(bson.D{{Key: "_id", Value: 1}}))
	ctx, cancel := context.WithCancel(t.Context())
	e := New(c, c, Options{Online: true, Recheck: RecheckOptions{Every: time.Millisecond}})
	go func() {
		for e.Stats().Waiting == 0 { // amid the rechecks
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if _, err := e.Run(ctx, []Pair{b.pair}); err == nil || ctx.Err() == nil {
		t.Errorf("run ended with %v", err)
	}
	if s := e.Stats(); s.BufferedBytes != 0 {
		t.Errorf("%d bytes still accounted for", s.BufferedBytes)
	}
}
