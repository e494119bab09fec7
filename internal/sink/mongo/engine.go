// Package mongosink writes a stream of events to a MongoDB target, in parallel and folded.
//
// It routes events by namespace and _id to partitions, which keep the order of each document. A
// partition folds events (package fold) into batches without order and sends them (package write).
// Operations that the target does not take at once wait for a barrier (package resolve). Schema changes
// are barriers.
//
// The stream is cut into segments, one per batch of package stream. A position is applied when its
// segment and all before it are acknowledged.
//
// No command is built here, no update parsed, and no conflict decided.
package mongosink

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/sink/mongo/resolve"
	"github.com/millrace/millrace/internal/sink/mongo/write"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
)

// Options configure an Engine.
type Options struct {
	Sizes     Sizes
	Targets   Targets
	LeavesOut bool // documents which rules cannot map are left out
	Overlap   Overlap
	// Schema applies a schema change. Everything before it is acknowledged, nothing after it sent until
	// Schema returns. before is the last completely applied position. last reports that no event of the
	// change's position follows, so that the position is applied when Schema returns.
	Schema func(ctx context.Context, ev *stream.Event, before mongo.OpTime, last bool) error
	// Policy decides about documents that the target refuses. Source answers questions about them.
	Policy resolve.Policy
	Source resolve.Source
	// Write configures the writers. New sets its Target.
	Write write.Options
	Limit *pace.Limiter // throttles the events; nil is none
	Log   *slog.Logger
}

// DefaultPartitions is the default of Sizes.Partitions.
const DefaultPartitions = 8

// Sizes limit an Engine.
type Sizes struct {
	Partitions int   // the number of parallel writers, default DefaultPartitions
	InFlight   int64 // bounds the bytes of events in flight, default 32 MB
	BatchOps   int   // of one batch of a partition, default 4000
	BatchBytes int   // of one batch of a partition, default 4 MB
	// Coalesce bounds the bytes of updates that one partition keeps back during a backlog, default 4 MB;
	// negative keeps none back. Small inserts among them raise it, to at most fold.MostKept times.
	Coalesce int
}

// Targets describes collections. Answers are cached until the next schema change.
type Targets interface {
	// Absent reports a source namespace that the target never got.
	Absent(ns string) bool
	// Traits reads a target collection's traits.
	Traits(ctx context.Context, targetNS string) (Traits, error)
	// Expiry returns how documents that stay on the target expire on the source, and a counter of those,
	// which may be nil.
	Expiry(ctx context.Context, r *stream.Route) (expiry.Settings, func(n int64), error)
}

// Traits are properties of a target collection that restrict how events are applied.
type Traits struct {
	Capped   bool // document order is content
	Collated bool // _ids of different bytes can be equal
	Key      docwrite.Key
}

// Overlap says how far the target may be ahead of the events.
type Overlap struct {
	End mongo.OpTime // the last position at which the target may be ahead of an event
	// RereadUntil: up to this position, the source repairs updates that find no document, as an older
	// target or the copy may differ from the source. Later ones are conflicts.
	RereadUntil mongo.OpTime
	// Refused are documents at which a conflict stopped an earlier run, with the first position that the
	// target does not have.
	Refused []stream.Place
	Skipped []stream.Place // what Engine.Skipped returned in an earlier run
	// Capped says, by target namespace, which events the target has already. None may be applied twice,
	// as the order of a capped collection is content.
	Capped map[string]CappedStart
}

func (o Options) withDefaults() Options {
	s := &o.Sizes
	s.Partitions = cmp.Or(max(s.Partitions, 0), DefaultPartitions)
	s.InFlight = cmp.Or(max(s.InFlight, 0), 32<<20)
	s.BatchOps = cmp.Or(max(s.BatchOps, 0), 4000)
	s.BatchBytes = cmp.Or(max(s.BatchBytes, 0), 4<<20)
	s.Coalesce = cmp.Or(s.Coalesce, 4<<20)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return o
}

// Engine applies events to one target. Run owns the partitions and is called once. One goroutine at a
// time calls Feed and Drain, any goroutine the other methods. Renamed, StartCapped and SetOverlap are
// for Options.Schema.
type Engine struct {
	o          Options
	writers    *write.Writers
	resolver   *resolve.Resolver
	shared     *shared
	partitions []*partition

	// For the router only:
	destinations map[string]*destination // by source namespace; nil gets nothing
	last         struct {
		route       *stream.Route
		destination *destination
	}
	capped  cappedStarts
	refused map[string]mongo.OpTime // by resolve.KeyOf; fixed
	carried int                     // documents parked beyond the last barrier
	fed     mongo.OpTime            // end of the last batch that was routed whole
	sent    mongo.OpTime            // of the last event that was routed, or the state in which one was read
	until   mongo.OpTime            // until where single documents may be ahead
	parts   parts                   // of the batch that is being fed
}

type shared struct {
	sizes   Sizes
	ledger  *ledger
	backlog backlog
	wake    chan struct{}   // a partition has parked something
	stopped context.Context // done when Run ends, with its error
	stop    context.CancelCauseFunc

	operations, folded, passed, schema atomic.Int64
}

func New(dst *mongo.Cluster, pos stream.Position, o Options) *Engine {
	o = o.withDefaults()
	o.Write.Target = dst
	e := &Engine{
		o: o, writers: write.NewWriters(o.Write), destinations: map[string]*destination{},
		capped: newCappedStarts(o.Overlap.Capped), refused: map[string]mongo.OpTime{}, fed: pos.At,
		shared: &shared{sizes: o.Sizes, ledger: newLedger(o.Sizes.InFlight, pos), wake: make(chan struct{}, 1),
			backlog: backlog{began: time.Now()}},
	}
	e.shared.stopped, e.shared.stop = context.WithCancelCause(context.Background())
	e.resolver = resolve.New(resolve.Options{Policy: o.Policy, Source: o.Source, Writers: e.writers, Cluster: dst,
		Target: e.target, Skipped: o.Overlap.Skipped, Log: o.Log})
	for _, p := range o.Overlap.Refused {
		e.refused[resolve.KeyOf(p)] = p.At
	}
	for i := range o.Sizes.Partitions {
		e.partitions = append(e.partitions, newPartition(e.shared, i, e.writers.NewBatched(i), e.resolver.NewParked()))
	}
	return e
}

// Sent returns the last position of which anything was sent, zero for none. It must not be called while
// Feed runs.
func (e *Engine) Sent() mongo.OpTime { return e.sent }

// Run runs the partitions until ctx ends or one of them fails.
func (e *Engine) Run(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, p := range e.partitions {
		g.Go(func() error { return p.run(gctx) })
	}
	err := g.Wait()
	e.shared.stop(err)
	return err
}

// Feed routes one batch. It blocks while too many bytes are in flight or a schema change is applied.
func (e *Engine) Feed(ctx context.Context, b *stream.Batch) error {
	if err := e.beforeBatch(ctx, b); err != nil {
		return err
	}
	s := e.shared
	backlog := b.More && !e.o.Limit.Limited() // a limit is for the target, too
	if backlog {
		s.backlog.until(math.MaxInt64) // while this waits for room
	}
	seg, err := s.ledger.admit(ctx, b, e.relieve, s.wake)
	if err != nil {
		return e.failure(err)
	}
	routed, err := e.route(ctx, seg, b)
	if err != nil {
		return e.failure(err)
	}
	if backlog {
		s.backlog.until(backlogLasts)
	}
	rest := 1 + int64(len(b.Events)-routed)
	s.ledger.release(seg, rest)
	s.ledger.done(seg, rest)
	e.fed = b.End
	e.parts.add(b)
	return nil
}

// failure prefers the partitions' error over the cancellation that it caused.
func (e *Engine) failure(err error) error {
	if err == nil {
		return nil
	}
	return cmp.Or(context.Cause(e.shared.stopped), err)
}

// Applied returns the position up to which everything is acknowledged.
func (e *Engine) Applied() stream.Position { return e.shared.ledger.current() }

func (e *Engine) Stats() stream.SinkStats {
	s := e.shared
	return stream.SinkStats{Operations: s.operations.Load(), Folded: s.folded.Load(), Parked: e.resolver.Resolved(),
		Bytes: s.ledger.admitted.Load(), Schema: s.schema.Load(), Backlog: s.ledger.bytes.Load(),
		Located: e.writers.Stats.Located.Load(), Broadcast: e.writers.Stats.Broadcast.Load()}
}

// SetOverlap sets Overlap.End and Overlap.RereadUntil.
func (e *Engine) SetOverlap(end mongo.OpTime) {
	e.o.Overlap.End, e.o.Overlap.RereadUntil = end, end
}

// Renamed reports that a target collection was renamed at a position, or dropped (to is "").
func (e *Engine) Renamed(from, to string, at mongo.OpTime) {
	e.resolver.Renamed(from, to)
	e.capped.renamed(from, to, at)
}

// StartCapped sets which events of a capped collection to skip.
func (e *Engine) StartCapped(ns string, start CappedStart) { e.capped[ns] = &start }

// Skipped returns the documents that updates found missing in the overlap and that no later event
// explained, and a version of that list. A list read after Applied covers that position.
func (e *Engine) Skipped() ([]stream.Place, int) { return e.resolver.Skipped() }

// Untangle makes room for a unique index; see resolve.Resolver. Everything fed must be drained.
func (e *Engine) Untangle(ctx context.Context, c resolve.Clash) error {
	return e.resolver.Untangle(ctx, e.barrier(true), c)
}

// Conclude retries all disputed documents and decides about those that the target still refuses. It
// needs no Run, and must not be called while Feed runs.
func (e *Engine) Conclude(ctx context.Context) error {
	return e.resolver.ResolveDue(ctx, e.barrier(true))
}

// Hold keeps a document of the source to repair the target's; see resolve.Resolver. Only the goroutine
// that feeds may call it.
func (e *Engine) Hold(ctx context.Context, l deadletter.Letter) (why string, err error) {
	t, err := e.target(ctx, l.NS)
	if err != nil {
		return "", err
	}
	return e.resolver.Hold(ctx, t, l)
}

// Repaired returns, once, the result of a Hold. Only the goroutine that feeds may call it.
func (e *Engine) Repaired(ns string, id bsonraw.ID) resolve.Repaired {
	return e.resolver.Repaired(ns, id)
}

func (e *Engine) target(ctx context.Context, ns string) (*fold.Target, error) {
	traits, err := e.o.Targets.Traits(ctx, ns)
	if err != nil {
		return nil, fmt.Errorf("read options of %s: %w", ns, err)
	}
	t := fold.NewTarget(ns)
	t.Capped, t.Collated, t.Key = traits.Capped, traits.Collated, traits.Key
	return t, nil
}
