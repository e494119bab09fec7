package verify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/transform"
)

// Pair names two collections that should hold the same documents, and how those of the source
// become those of the target. Of a time-series collection the names are those of its system.buckets
// collections. Everything else about them (capped, clustered, collation) is read from the servers.
type Pair struct {
	*transform.Route
	// UUID is that of the source's collection when the pairs were listed; empty where the
	// source has none.
	UUID bson.Binary
	// Expired recognizes documents of the target that the source may have deleted because
	// they had expired, where those deletions were left out; nil is none.
	Expired func(doc []byte) bool
}

// Options shape a run. The zero value compares offline with sensible limits.
type Options struct {
	// StructureOnly compares collections, options, indexes and views, and reads no
	// document.
	StructureOnly bool
	// Users compares the users and roles of the chosen databases, too.
	Users bool
	// Method is how documents are compared; default Auto.
	Method Method
	// Workers is how many ranges are compared at a time, each with one
	// connection a side; default one a core, 4 to 6.
	Workers int
	// RangeBytes is the size of a range as the source estimates it; default 32 MiB.
	RangeBytes int64
	// MaxBufferedBytes bounds the document bytes held in memory by all workers;
	// default 128 MiB. A reply's size is governed by the collection's average
	// document size, so a collection of very uneven documents may exceed it by
	// one reply (16 MB at most) a connection.
	MaxBufferedBytes int64
	// Share is how much of each collection is compared, between 0 and 1: ranges of _id
	// that are drawn anew each time, at least one of each; 0 is all of it.
	Share float64
	// Only, by its includes, chooses collections among those that the rules keep, by their
	// names on the source; nil is all. One that chooses nothing is an error.
	Only *transform.Set
	// Documents, where not nil, are all that is compared, by the names of their collections
	// on the source. Writes have to go on (Online).
	Documents map[string]Documents
	// BytesPerSecond holds the scans of both sides together to a rate; 0 does not.
	BytesPerSecond int64
	// Offer, where not nil, has other processes read slices of large collections (Assist).
	Offer *assign.Offer
	// Found, when set, is called with each document that differs and with the documents of both
	// sides. Of a sharded cluster a side may have several. Calls do not overlap, and must not
	// keep the documents.
	Found func(d Difference, source, target [][]byte)
	// IgnoreFieldOrder lets documents differ in the order of their fields, at
	// any depth. The order of array elements always counts.
	IgnoreFieldOrder bool
	// MaxDifferences is how many differences the report describes; default
	// 1000. The rest is counted.
	MaxDifferences int
	// Online says that writes go on: mismatches are rechecked as Recheck says.
	Online  bool
	Recheck RecheckOptions
	// Log receives what happens to whole collections; nil discards it.
	Log *slog.Logger
}

// RecheckOptions say how long a mismatch may stay undecided while writes go on.
type RecheckOptions struct {
	// For is how long a mismatch may stay unsettled before it counts as a
	// difference although one side still changes; default 1 minute.
	For time.Duration
	// Every is the pause between two looks; default 500 ms.
	Every time.Duration
	// Quiet is how long both sides have to stand still, byte for byte, to be
	// called different; it has to exceed the replication's lag. Default 10 s.
	Quiet time.Duration
	// Hold, when set, reports that the target may be further behind the source than
	// Quiet, because replication stands still or lags. As long as it does nothing is
	// called a difference, and the time that counts for it begins when it ends.
	Hold func() bool
}

func (o Options) withDefaults() Options {
	if o.Method == "" {
		o.Method = Auto
	}
	setDefault(&o.Workers, min(max(runtime.GOMAXPROCS(0), 4), 6))
	setDefault(&o.RangeBytes, 32<<20)
	setDefault(&o.MaxBufferedBytes, 128<<20)
	setDefault(&o.MaxDifferences, 1000)
	setDefault(&o.Recheck.For, time.Minute)
	setDefault(&o.Recheck.Every, 500*time.Millisecond)
	setDefault(&o.Recheck.Quiet, 10*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

func setDefault[T int | int64 | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}

// Engine compares two clusters. Run is called once; Stats at any time from any
// goroutine. What it keeps of both sides is in pairs: of the source, then of the
// target.
type Engine struct {
	clusters [2]*mongo.Cluster
	at       [2]atomic.Pointer[bson.Timestamp] // what reads have to see at least
	// Of a sharded cluster whose shards are read directly: those, and at by shard.
	shards   [2]atomic.Pointer[origin.Sharded]
	shardsAt [2]atomic.Pointer[map[string]bson.Timestamp]
	live     [2]atomic.Bool // they are not read as of one time
	o        Options
	c        counters
	limits   limits
	slots    *semaphore.Weighted // comparisons at a time
	rate     *pace.Limiter       // of scans
	findings findings
	notes    notes
	recheck  *rechecker
	assigner *assigner // nil where all is read here
}

// Indexes of what is kept of both sides.
const (
	source = iota
	target
)

// both does the same for source and target at once.
func both(ctx context.Context, do func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for i := range 2 {
		g.Go(func() error { return do(ctx, i) })
	}
	return g.Wait()
}

// limits share MaxBufferedBytes: per worker two batches a side (one is walked, one read ahead),
// the documents without a partner, and those that are fetched by _id.
type limits struct {
	batch   int // bytes asked for in one reply, or by _id at a time
	scan    int // the same where nothing is read ahead
	pending int // documents of a worker that wait for a partner
	queue   int // the recheck queue
}

// New prepares a comparison of src and dst; both stay the caller's to close.
func New(src, dst *mongo.Cluster, o Options) *Engine {
	o = o.withDefaults()
	share := int(o.MaxBufferedBytes) / (o.Workers + 1)
	e := &Engine{clusters: [2]*mongo.Cluster{src, dst}, o: o, slots: semaphore.NewWeighted(int64(o.Workers)),
		rate: pace.New(pace.Rates{Bytes: o.BytesPerSecond})}
	e.limits = limits{
		batch:   max(min(share/8, 4<<20), 16<<10),
		scan:    max(min(share/4, 8<<20), 16<<10),
		pending: max(share/4, 16<<10),
		queue:   max(share/2, 64<<10),
	}
	e.recheck = &rechecker{e: e, seed: rand.Uint64(), space: semaphore.NewWeighted(int64(e.limits.queue)),
		ended: make(chan struct{}), queued: map[suspect]*candidate{}}
	return e
}

// Run compares the pairs and returns what differs. A difference is no error. Run retries
// transient failures (an election, a killed cursor) range by range for a while.
func (e *Engine) Run(ctx context.Context, pairs []Pair) (*Report, error) {
	if e.o.Documents != nil && !e.o.Online {
		return nil, errors.New("verify: documents are compared one by one only while writes go on")
	}
	begin := time.Now()
	cols := make([]*collection, len(pairs))
	for i, p := range pairs {
		cols[i] = newCollection(e, p)
	}
	e.c.collections.Store(int64(len(pairs)))
	if err := e.advance(ctx); err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.compare(gctx, cols) })
	if e.o.Online {
		g.Go(func() error { return e.recheck.run(gctx) })
	}
	err := g.Wait()
	if err == nil {
		err = e.marked(ctx, cols)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("verify: %w", err)
	}
	return e.report(begin, cols), nil
}

// compare plans the collections, as many at a time as ranges are compared, compares them, and closes
// recheck.ended.
func (e *Engine) compare(ctx context.Context, cols []*collection) error {
	defer close(e.recheck.ended)
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range min(e.o.Workers, len(cols)) {
		g.Go(func() error {
			for i := next.Add(1); int(i) <= len(cols); i = next.Add(1) {
				c := cols[i-1]
				tasks, err := c.tasks(ctx)
				if err == nil {
					err = c.start(ctx, g, tasks)
				}
				if err != nil {
					return fmt.Errorf("plan %s: %w", c.pair.Source, err)
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// retries bounds the retries of one range after transient failures. With doubling pauses from
// 100 ms they span about 50 s, several elections.
const retries = 9

// again runs fn until it succeeds, fails for good, or failed too often.
func again(ctx context.Context, log *slog.Logger, what string, fn func() error) error {
	try := 0
	return retry.Again(ctx, 100*time.Millisecond, time.Minute, func(err error, pause time.Duration) bool {
		if errors.Is(err, context.Canceled) || try == retries || mongo.Classify(err) != mongo.ClassRetry {
			return false
		}
		try++
		log.Warn("try again", "what", what, "error", err, "pause", pause)
		return true
	}, fn)
}
