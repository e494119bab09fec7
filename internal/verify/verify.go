// Package verify proves that two clusters hold the same documents, byte for byte, also while writes
// go on.
//
// By ranges, each pair of collections is cut into ranges of _id with raw index bounds, so that _ids
// of every BSON type are in exactly one range. Both sides of a range stream in _id order. The join
// does not know BSON's order: a document without a partner waits, by the bytes of its _id. A
// difference is reported only after a lookup by _id on the other side, so the order of documents
// costs time, never exactness.
//
// By digests, as all but small collections, both sides are read in storage order, and sums of
// hashes are compared. Only documents of groups that differ are compared byte for byte. Where too
// much differs, ranges are used.
//
// Shards are read directly where they can be reached and permit it, with one ownership (owned), else
// through routers (routed). Single documents are read through routers.
//
// While writes go on, a mismatch is looked at again until the sides agree, or stand still without
// agreeing, or a time limit passes.
package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
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
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/users"
)

// Method is how documents are compared.
type Method string

const (
	// Auto is Digest, but Ranges for small collections.
	Auto Method = "auto"
	// Ranges streams both sides in _id order and compares the bytes. For random _ids servers fetch
	// documents at random.
	Ranges Method = "ranges"
	// Digest reads both sides in storage order, several times as fast in memory and many times on
	// disk. It compares sums of 128-bit hashes (random seeds, drawn per collection and run) of
	// groups of documents, then the documents of groups that differ, byte for byte. It misses two
	// differing documents with a probability of about 2^-100. Collections that do not suit it
	// (field order ignored, no _id index, very much differs) are compared by Ranges.
	Digest Method = "digest"
	// Single looks at single documents (Options.Documents).
	Single Method = "single"
)

// Pair names two collections that should hold the same documents, and how the source's become the
// target's. For time series the names are those of the system.buckets collections. Everything else
// about them (capped, clustered, collation) is read from the servers.
type Pair struct {
	*transform.Route
	// UUID is that of the source's collection at the time of listing; empty if there is none.
	UUID bson.Binary
	// Expired recognizes documents of the target that had expired on the source, if such deletions
	// are left out; nil is none.
	Expired func(doc []byte) bool
}

// name is that of the collection on a side.
func (p *Pair) name(i int) string { return [...]string{p.Source, p.Target}[i] }

// Options configure a run. The zero value compares offline with sensible limits.
type Options struct {
	// StructureOnly compares collections, options, indexes and views, and no documents.
	StructureOnly bool
	// Users compares the users and roles of the chosen databases, too.
	Users bool
	// Method is how documents are compared; default Auto.
	Method Method
	// Workers is how many ranges are compared at a time, each with one connection a side; default
	// one a core, 4 to 6.
	Workers int
	// RangeBytes is the size of a range as the source estimates it; default 32 MiB.
	RangeBytes int64
	// MaxBufferedBytes bounds the document bytes in memory of all workers; default 128 MiB. Replies
	// are sized by the collection's average document, so very uneven documents may exceed it by one
	// reply (16 MB at most) a connection.
	MaxBufferedBytes int64
	// Share is how much of each collection is compared, from 0 to 1: ranges of _id, drawn anew each
	// time, at least one; 0 is all.
	Share float64
	// Only chooses collections by its includes, by names of the source; nil is all. Choosing
	// nothing is an error.
	Only *transform.Set
	// Documents, if not nil, are all that is compared, by the source's collections. Writes have to
	// go on (Online).
	Documents map[string]Documents
	// BytesPerSecond limits the scans of both sides together; 0 does not.
	BytesPerSecond int64
	// Offer, if not nil, lets other processes read slices of large collections (Assist).
	Offer *assign.Offer
	// Found, if not nil, gets each document that differs, with the documents of both sides. A
	// sharded cluster may have several. Calls do not overlap, and must not keep the documents.
	Found func(d Difference, source, target [][]byte)
	// IgnoreFieldOrder ignores the order of fields at any depth. The order of array elements always
	// counts.
	IgnoreFieldOrder bool
	// MaxDifferences is how many differences the report describes; default 1000.
	MaxDifferences int
	// Online says that writes go on: mismatches are rechecked.
	Online  bool
	Recheck RecheckOptions
	// Log receives events of collections; nil discards it.
	Log *slog.Logger
}

// Spec says which clusters are compared, and how. Source and Target hold secrets and are never
// logged.
type Spec struct {
	Source, Target string
	// SourceShards and TargetShards override the addresses of shards, by name.
	SourceShards, TargetShards map[string]string
	// SourceVia and TargetVia say how the documents of a sharded cluster are read.
	SourceVia, TargetVia origin.Via
	// AllowShard permits a side that is one shard of a sharded cluster.
	AllowShard bool
	// ShardsLeft allows names in SourceShards of shards that have left, as a job does.
	ShardsLeft bool
	Rules      transform.Config
	Options
	// Observe gets the function that returns the progress when the comparison begins. That is safe
	// for concurrent use at any later time. Nil is allowed.
	Observe func(stats func() Stats)
}

const appName = "millrace-verify"

// RecheckOptions say how long a mismatch may stay undecided while writes go on.
type RecheckOptions struct {
	// For bounds how long a mismatch may stay undecided because a side still changes; default 1
	// minute.
	For time.Duration
	// Every is the pause between two looks; default 500 ms.
	Every time.Duration
	// Quiet is how long both sides have to stand still, byte for byte, to count as different. It
	// has to exceed the replication's lag. Default 10 s.
	Quiet time.Duration
	// Hold, if not nil, reports that the target may lag further behind than Quiet. While it does,
	// nothing counts as a difference; the time that counts begins after it.
	Hold func() bool
}

func (o Options) withDefaults() Options {
	if o.Method == "" {
		o.Method = Auto
	}
	o.Workers = cmp.Or(max(o.Workers, 0), min(max(runtime.GOMAXPROCS(0), 4), 6))
	o.RangeBytes = cmp.Or(max(o.RangeBytes, 0), 32<<20)
	o.MaxBufferedBytes = cmp.Or(max(o.MaxBufferedBytes, 0), 128<<20)
	o.MaxDifferences = cmp.Or(max(o.MaxDifferences, 0), 1000)
	o.Recheck.For = cmp.Or(max(o.Recheck.For, 0), time.Minute)
	o.Recheck.Every = cmp.Or(max(o.Recheck.Every, 0), 500*time.Millisecond)
	o.Recheck.Quiet = cmp.Or(max(o.Recheck.Quiet, 0), 10*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Engine compares two clusters. Run is called once, Stats at any time by any goroutine. What it
// keeps of both sides is in pairs: source, target.
type Engine struct {
	clusters [2]*mongo.Cluster
	at       [2]atomic.Pointer[bson.Timestamp] // what reads have to see at least
	// Of a sharded cluster whose shards are read directly: those, and at by shard.
	shards   [2]atomic.Pointer[origin.Sharded]
	shardsAt [2]atomic.Pointer[map[string]bson.Timestamp]
	live     [2]atomic.Bool // they are not read as of one time
	routers  [2]*scan.Routers
	via      [2]origin.Via
	o        Options
	c        counters
	limits   limits
	slots    *semaphore.Weighted // comparisons at a time
	rate     *pace.Limiter       // of scans
	findings findings
	recheck  *rechecker
	assigner *assigner // nil where all is read here
	// homes opens what has the users and roles of both sides.
	homes func(context.Context) (from, to *mongo.Cluster, done func(), err error)
}

const (
	source = iota
	target
)

func both(ctx context.Context, do func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for i := range 2 {
		g.Go(func() error { return do(ctx, i) })
	}
	return g.Wait()
}

// limits divide MaxBufferedBytes: per worker two batches a side (one walked, one read ahead),
// documents without a partner, and those fetched by _id.
type limits struct {
	batch   int // bytes asked for in one reply, or by _id at a time
	scan    int // the same where nothing is read ahead
	pending int // documents of a worker that wait for a partner
	queue   int // the recheck queue
}

// New prepares a comparison of src and dst, which the caller closes.
func New(src, dst *mongo.Cluster, o Options) *Engine {
	o = o.withDefaults()
	share := int(o.MaxBufferedBytes) / (o.Workers + 1)
	e := &Engine{clusters: [2]*mongo.Cluster{src, dst}, o: o, slots: semaphore.NewWeighted(int64(o.Workers)),
		rate:  pace.New(pace.Rates{Bytes: o.BytesPerSecond}),
		homes: users.Sides{Source: users.Side{Cluster: src}, Target: users.Side{Cluster: dst}}.Homes}
	e.limits = limits{
		batch:   max(min(share/8, 4<<20), 16<<10),
		scan:    max(min(share/4, 8<<20), 16<<10),
		pending: max(share/4, 16<<10),
		queue:   max(share/2, 64<<10),
	}
	for i, c := range e.clusters {
		if c != nil && c.Info.Kind == mongo.KindSharded {
			e.routers[i] = scan.NewRouters(c)
		}
	}
	e.recheck = &rechecker{e: e, seed: rand.Uint64(), space: semaphore.NewWeighted(int64(e.limits.queue)),
		ended: make(chan struct{}), queued: map[suspect]*candidate{}}
	return e
}

// Run compares the pairs and returns what differs. A difference is no error. It retries after
// temporary failures (an election, a killed cursor) range by range for a while.
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

// compare plans as many collections at a time as it compares ranges.
func (e *Engine) compare(ctx context.Context, cols []*collection) error {
	defer close(e.recheck.ended)
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	chunks := slices.Collect(slices.Chunk(cols, e.together(len(cols))))
	for range min(e.o.Workers, len(chunks)) {
		g.Go(func() error {
			for i := next.Add(1); int(i) <= len(chunks); i = next.Add(1) {
				if err := e.describeAll(ctx, chunks[i-1]); err != nil {
					return fmt.Errorf("describe collections: %w", err)
				}
				for _, c := range chunks[i-1] {
					tasks, err := c.tasks(ctx)
					if err == nil {
						err = c.start(ctx, g, tasks)
					}
					if err != nil {
						return fmt.Errorf("plan %s: %w", c.pair.Source, err)
					}
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// retries bounds the retries of a range. With doubling pauses from 100 ms they span about 50 s,
// several elections.
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

// Stats is a snapshot of a run.
type Stats struct {
	Collections, CollectionsDone int64
	Ranges                       int64 // grows while collections are planned
	// Docs were read by scans of both sides (again for repeated ranges). EstimatedDocs is the
	// servers' estimate; both grow while collections are planned.
	Docs, Bytes, EstimatedDocs int64
	// Mismatches were queued for recheck: Settled turned out equal, Waiting are undecided.
	// Differences are final.
	Mismatches, Settled, Waiting int64
	Differences                  int64
	// BufferedBytes are document bytes in memory, PeakBytes the most so far.
	BufferedBytes, PeakBytes int64
	// Assignable are slices that other workers may read now. Assistants have read some, or could
	// not.
	Assignable int
	Assistants []assign.Figures
}

type counters struct {
	collections, collectionsDone, ranges atomic.Int64
	docs, bytes, estDocs                 atomic.Int64
	mismatches, settled, waiting         atomic.Int64
	differences, buffered, peakSeen      atomic.Int64
}

func (c *counters) read(docs int, bytes int64) {
	c.docs.Add(int64(docs))
	c.bytes.Add(bytes)
}

// account counts n document bytes in memory, negative when released.
func (c *counters) account(n int) {
	now := c.buffered.Add(int64(n))
	for {
		peak := c.peakSeen.Load()
		if now <= peak || c.peakSeen.CompareAndSwap(peak, now) {
			return
		}
	}
}

// Stats reports the progress of the run. It is safe for concurrent use.
func (e *Engine) Stats() Stats {
	c := &e.c
	st := Stats{
		Collections: c.collections.Load(), CollectionsDone: c.collectionsDone.Load(), Ranges: c.ranges.Load(),
		Docs: c.docs.Load(), Bytes: c.bytes.Load(), EstimatedDocs: c.estDocs.Load(),
		Mismatches: c.mismatches.Load(), Settled: c.settled.Load(), Waiting: c.waiting.Load(),
		Differences: c.differences.Load(), BufferedBytes: c.buffered.Load(), PeakBytes: c.peakSeen.Load(),
	}
	if e.assigner != nil {
		st.Assignable, st.Assistants = e.assigner.Status()
	}
	return st
}
