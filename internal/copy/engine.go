// Package copy is the full-copy engine: it reads collections slice by slice and inserts their
// documents, byte for byte, into existing collections.
//
// Readers turn slices into chunks (one cursor reply each), a budget bounds the bytes of all chunks
// in flight, writers insert a chunk with one message. A slice's position moves past a chunk when it
// and all before it are acknowledged, so a Store is never ahead of the target.
//
// Engine is crash-only: an error ends Run, and the next Run goes on from the Store. Its methods are
// safe for concurrent use, but only one Run may be under way.
package copy

import (
	"cmp"
	"context"
	"encoding/hex"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/wire"
)

// Refusal is a document that the target refuses.
type Refusal struct {
	Source schema.Collection
	Target string // namespace
	ID     bsoncore.Value
	Doc    []byte
	Again  bool // also after an Answer of Again
	wire.WriteError
}

// Answer is what becomes of a refused document.
type Answer int

const (
	Ends  Answer = iota // the run ends with an error
	Aside               // the copy goes on without the document
	Again               // the document is written again
)

// Task is one collection to copy.
type Task struct {
	// Source is read by its UUID in the database of its DataNS, so renames do not disturb.
	Source schema.Collection
	// Route maps the documents. Its target exists; for a time-series collection documents go to its
	// system.buckets collection.
	Route *transform.Route
	// Key is the shard key of the target, empty if it is not sharded. Run gets it from
	// Options.Keys.
	Key bson.Raw

	// Part names the shard whose part of the collection this is; empty is all.
	Part string
	// Owned makes the source return only what it owns, as a shard; nil is all.
	Owned *ownership.Filter
	// Range is what is copied; nil is all. It is left (Engine.Left) when its cursor is lost, or
	// refused for its version.
	Range *ownership.Range
	// Again says that documents may have been copied before, under another shard key. What a
	// sharded target already has, byte for byte, is not written. Run sets it if the route skips
	// updates: the event that changed a shard key may be left out.
	Again bool
}

// Options configure an Engine. Zero values choose defaults.
type Options struct {
	// Readers is the number of cursors on the source: default one per core, at least 2. Writers is
	// the number of inserting connections: default 4 to 16, by cores and distance. If they are
	// defaults, gates of load pace.Max may allow more.
	Readers, Writers int

	BatchBytes       int64 // of one cursor reply and insert, default 4 MB
	MaxBufferedBytes int64 // of all replies in flight, default 64 MB
	SliceBytes       int64 // target size of a slice, default 256 MB
	SmallBytes       int64 // collections below are one slice, default 16 MB

	// AfterClusterTime makes reads wait for this position, with majority read concern; zero, for a
	// standalone source, reads without one.
	AfterClusterTime mongo.OpTime
	WriteConcern     bson.Raw      // of inserts, default mongo.Cluster.DataConcern
	SaveEvery        time.Duration // between saves of slice states, default 1 s
	Log              *slog.Logger  // default: discards

	Counters *transform.Counters // of the rules of the routes; nil counts nothing
	// LeftOut keeps documents that the rules cannot map; nil makes them an error.
	LeftOut transform.LeftOut

	Limit *pace.Limiter // nil is none
	// SourceGate and TargetGate bound the exchanges under way; nil is none.
	SourceGate, TargetGate *pace.Gate

	// Refused is called for a document that the target refuses for good: for a unique index, or its
	// content. Several goroutines call it, and may use the document until they return. Without it, the run ends.
	Refused func(ctx context.Context, r Refusal) (Answer, error)

	// Recreate empties the target of a task whose copy has to begin anew (its order is content and
	// its position was lost). Nil makes that an error.
	Recreate func(ctx context.Context, t Task) error

	// OnCollection is called when the copy of a collection starts or ends. It must return at once
	// and not use the engine. Nil is allowed.
	OnCollection func(CollectionStats)

	// Ready creates the targets while reading begins. Before it returns nothing is sent or saved,
	// and no slices are loaded. Nil: the targets exist.
	Ready func(context.Context) error

	// Keys returns the shard keys of the targets, by namespace, once they exist. Nil: none is
	// sharded.
	Keys func(ctx context.Context) (map[string]bson.Raw, error)

	// Others says that targets may hold documents of others, to be replaced, perhaps on other
	// shards.
	Others bool

	// Inserted finds when a document of a capped collection was inserted, which helps to find where
	// the copy of a live one ends. Nil is allowed.
	Inserted stream.FindInsertion

	// Admit is asked about each connection to the target before it is written to. An error ends the
	// copy. Nil is allowed.
	Admit func(ctx context.Context, conn *wire.Conn) error
	// Grant waits until so much may be sent, beside Limit. Nil is allowed.
	Grant func(ctx context.Context, docs, bytes int64) error

	// Replacing is called with documents that are about to replace those with the same _ids. An
	// error ends the copy, but not lookup.ErrTwice for what a sharded target has already. Nil is
	// allowed.
	Replacing func(ctx context.Context, t Task, docs [][]byte) error

	edged func(context.Context) error // once it is known where the copy of a capped collection ends; for tests

	mostReaders, mostWriters int  // to which the gates may let them grow
	writersByDistance        bool // Writers is for a target that is near
}

const atMostWriters = 16

func (o Options) withDefaults() Options {
	cores := runtime.GOMAXPROCS(0)
	workers := func(n, most *int, v int) {
		if *most = *n; *n <= 0 {
			*n, *most = v, max(v, pace.MostAtOnce)
		}
	}
	workers(&o.Readers, &o.mostReaders, min(max(cores, 2), 16))
	o.writersByDistance = o.Writers <= 0
	workers(&o.Writers, &o.mostWriters, min(max(cores, 4), atMostWriters))
	o.BatchBytes = cmp.Or(max(o.BatchBytes, 0), 4<<20)
	o.MaxBufferedBytes = cmp.Or(max(o.MaxBufferedBytes, 0), 64<<20)
	o.SliceBytes = cmp.Or(max(o.SliceBytes, 0), 256<<20)
	o.SmallBytes = cmp.Or(max(o.SmallBytes, 0), 16<<20)
	o.SaveEvery = cmp.Or(max(o.SaveEvery, 0), time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

type cluster struct {
	*mongo.Cluster
	side string // in words
}

// Engine copies collections.
type Engine struct {
	src, dst  cluster
	store     Store
	opts      Options
	count     counters
	noRecords atomic.Bool

	mu     sync.Mutex
	run    *run          // under way
	colls  []*collection // of the latest Run
	left   []Task        // likewise
	budget *budget
}

func New(src, dst *mongo.Cluster, store Store, o Options) *Engine {
	o = o.withDefaults()
	if len(o.WriteConcern) == 0 {
		o.WriteConcern = dst.DataConcernDocument()
	}
	return &Engine{src: cluster{src, "source"}, dst: cluster{dst, "target"}, store: store, opts: o}
}

// Run copies what the store does not hold as done. It returns nil when every slice is done and
// saved. The next Run goes on from what is durable; mongo.Classify reports temporary errors.
func (e *Engine) Run(ctx context.Context, tasks []Task) error {
	var states []scan.Slice
	if e.opts.Ready == nil {
		var err error
		if states, err = e.store.LoadSlices(ctx); err != nil {
			return err
		}
	}
	plans, generation := newestPlans(states)
	r := newRun(e)
	for _, t := range tasks {
		if t.Source.Type == schema.TypeView {
			continue
		}
		c := newCollection(ctx, t, e)
		c.plan, c.generation = plans[c.uuid], generation[c.uuid]
		r.colls = append(r.colls, c)
	}
	e.mu.Lock()
	e.run, e.colls, e.left, e.budget = r, r.colls, nil, r.budget
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.run = nil
	}()
	return r.run(ctx)
}

// SlicesOf returns the key of the slices of a collection, or of a part of it.
func SlicesOf(uuidHex, part string) string {
	if part == "" {
		return uuidHex
	}
	return uuidHex + "@" + part
}

// Left returns the tasks of the latest Run that were not done because of their ranges.
func (e *Engine) Left() []Task {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.left
}

type collection struct {
	Task
	Target string                // the namespace that takes the documents
	keep   func(doc []byte) bool // of the route; nil is all
	sent   *scan.Prefilter       // has the source leave out some of the others; nil is nothing
	unread func(docs int64)      // counts those, about; nil where sent is
	// mapped is nil for documents as they are. Writers call it, also after the slice is read.
	mapped     func(dst, doc []byte) ([]byte, error)
	uuid       string // hex, with the part: the key of its slices
	sourceDB   string
	targetDB   string
	key        docwrite.Key // of the target; set before anything is written
	plan       []scan.Slice // as loaded; nil when there is none to go on from
	generation int64
	measured   bool        // its size was asked for
	alone      atomic.Bool // no slice of it is assigned to others

	mu       sync.Mutex
	progress CollectionStats
}

func newCollection(ctx context.Context, t Task, e *Engine) *collection {
	c := &collection{Task: t, uuid: SlicesOf(hex.EncodeToString(t.Source.UUID.Data), t.Part), measured: t.Range != nil}
	c.Target = schema.Collection{NS: t.Route.Target, Type: t.Source.Type}.DataNS()
	c.Again = t.Again || t.Route.Skips.Has(stream.OpUpdate|stream.OpReplace)
	c.keep = t.Route.Keep(e.opts.Counters)
	if q := t.Route.Sent(); q != nil && findsAlike(e.src.Info.Version) {
		c.sent = &scan.Prefilter{Filter: q.Raw(), Match: func(doc []byte) bool { return q.Match(doc) }}
		c.unread = e.opts.Counters.Unread(t.Route)
	}
	c.mapped = c.mapping(ctx, &e.opts)
	c.progress = CollectionStats{Source: t.Source.NS, Target: c.Target, State: StateWaiting,
		TotalDocs: t.Source.Count, TotalBytes: t.Source.Bytes}
	c.sourceDB, _ = mongo.SplitNS(t.Source.DataNS())
	c.targetDB, _ = mongo.SplitNS(c.Target)
	return c
}

// findsAlike reports versions that find by query.OfAll as millrace does. 7.0 finds less by
// $bitsAnySet with binary operands.
func findsAlike(v mongo.Version) bool {
	return v.AtLeast(4, 4) && !v.AtLeast(4, 5) || v.AtLeast(5, 0) && !v.AtLeast(5, 1) || v.AtLeast(6, 0) &&
		!v.AtLeast(6, 1)
}

func (c *collection) mapping(ctx context.Context, o *Options) func(dst, doc []byte) ([]byte, error) {
	to, at := c.Route.Mapper(o.AfterClusterTime.TS, o.Counters), o.AfterClusterTime
	if to == nil || o.LeftOut == nil {
		return to
	}
	u := transform.Unmapped{Origin: stream.Origin{NS: c.Target, Source: c.Source.NS, UUID: c.Source.UUID},
		At: at, Until: at}
	return func(dst, doc []byte) ([]byte, error) {
		out, err := to(dst, doc)
		why, unmapped := transform.Unmappable(err)
		if !unmapped {
			return out, err
		}
		u := u // of several goroutines
		u.ID, u.Doc, u.Reason, u.Err = bsonraw.IDOf(doc), doc, why, err
		return dst, o.LeftOut.LeaveOut(ctx, u)
	}
}

func (c *collection) serial() bool {
	return c.Source.Capped() || !c.Source.IDIndex && !c.Source.Clustered()
}

// Store keeps slice states.
type Store interface {
	// LoadSlices returns what was saved, in any order.
	LoadSlices(ctx context.Context) ([]scan.Slice, error)
	// SaveSlices returns once changed is durable on the target (majority). An error of class retry
	// means that writes since the last call may have rolled back.
	SaveSlices(ctx context.Context, changed []scan.Slice) error
	// SameTerm gets the election term of each answer to a data write, from several goroutines. It
	// fails if that is not the attempt's.
	SameTerm(term int64) error
}
