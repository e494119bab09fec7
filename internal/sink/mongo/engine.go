package mongosink

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
)

// Traits are the properties of a target collection that restrict how its
// events may be applied.
type Traits struct {
	Capped   bool // document order is content
	Collated bool // _ids of different bytes can be equal
}

// CappedStart is where the events of a capped collection go on: after those up
// to Past and a number of further ones.
type CappedStart struct {
	Past mongo.OpTime
	Then int
}

// passes takes an event and reports that the target has it.
func (s *CappedStart) passes(at mongo.OpTime) bool {
	if !s.Past.Before(at) {
		return true
	}
	s.Then--
	return s.Then >= 0
}

// Options shape an Engine.
type Options struct {
	// Partitions is the number of parallel writers, default 8.
	Partitions int
	// MaxBytes bounds the events in flight, default 32 MB.
	MaxBytes int64
	// BatchOps and BatchBytes bound one partition's batch, default 4000 and 4 MB.
	BatchOps   int
	BatchBytes int
	// HoldBytes bounds the updates that one partition holds back over batches
	// while a backlog lasts, default 4 MB; negative holds none back. With small
	// inserts among them it is four times as much.
	HoldBytes int
	// TogetherOps is from how many updates of a batch on they are sent in
	// transactions, which cost some exchanges more; default 64.
	TogetherOps int
	// Absent tells of a source namespace that nothing is applied to yet, for the
	// target never got what has the name. Asked once per namespace and again after
	// each schema change; nil is none.
	Absent func(ns string) bool
	// Traits reads a target collection's traits; asked once per namespace and
	// again after each schema change.
	Traits func(ctx context.Context, targetNS string) (Traits, error)
	// Schema applies a schema change. Everything before it is acknowledged, and
	// nothing after it is sent before it returns. before is the last position
	// that is applied whole; last says that no event of the same position
	// follows, so that the change's own position is applied when it returns.
	Schema func(ctx context.Context, ev *stream.Event, before mongo.OpTime, last bool) error
	// WindowEnd is until where the target may be ahead of an event.
	WindowEnd mongo.OpTime
	// Overlap is until where updates that find no document are made good from the
	// source: what the target had before the job, or what the copy read, need not
	// be what the source had. Later ones are conflicts.
	Overlap mongo.OpTime
	// Refused are documents that a conflict stopped an earlier run at: the target
	// is not ahead of their events from those positions on.
	Refused []Place
	// Skipped are what Engine.Skipped told of an earlier run.
	Skipped []Place
	// OnSource tells which documents of a collection, by their _ids, the source
	// has at a position or later. Nil: what was skipped stays so.
	OnSource func(ctx context.Context, from Origin, ids []bson.RawValue, at mongo.OpTime) ([]bool, error)
	// CappedStarts tell, by target namespace, what of the events of capped
	// collections the target has already: order is content, so that none of them
	// may be applied twice. The engine takes the map over.
	CappedStarts map[string]*CappedStart
	// Overwrite takes over documents that somebody else wrote on the target
	// (merge mode) instead of failing.
	Overwrite bool
	// Limit holds the events back; nil is none.
	Limit *pace.Limiter
	// Gate bounds the exchanges with the target under way; nil is none.
	Gate *pace.Gate
	// OnConflict says what becomes of documents that the target refuses, which
	// Letters keep. Without Letters each refusal is an error.
	OnConflict deadletter.Policy
	Letters    *deadletter.Store
	// Reread reads a document from the source, in a state at or after a position.
	Reread func(ctx context.Context, from Origin, id bsoncore.Value, at mongo.OpTime) (Reread, error)
	// Transactions of the target; nil starts a session for each, and sends
	// no batches in transactions.
	Transactions *mongo.Transactions
	// SameTerm is told the election term of each answer to a write, and fails
	// when it is not that of the attempt.
	SameTerm func(term int64) error
	// WriteConcern of data writes; nil is {w:1}.
	WriteConcern bson.D
	Log          *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Partitions <= 0 {
		o.Partitions = 8
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = 32 << 20
	}
	if o.BatchOps <= 0 {
		o.BatchOps = 4000
	}
	if o.BatchBytes <= 0 {
		o.BatchBytes = 4 << 20
	}
	if o.HoldBytes == 0 {
		o.HoldBytes = 4 << 20
	}
	if o.TogetherOps <= 0 {
		o.TogetherOps = 64
	}
	if o.WriteConcern == nil {
		o.WriteConcern = bson.D{{Key: "w", Value: 1}}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Stats counts what an engine did since it started.
type Stats struct {
	Operations    int64 // events on the target, or folded into an update that is held back
	Bytes         int64 // of the batches read
	Folded        int64 // events merged into another of the same batch
	Statements    int64 // operations sent
	Together      int64 // of those, updates sent in transactions
	Rewritten     int64 // documents updated by read-modify-write
	Parked        int64 // operations retried in order after a duplicate key
	SkippedWindow int64 // updates of documents that are gone later, paths that no longer fit
	Missing       int64 // deletes of documents that were not there
	Overwritten   int64 // documents of somebody else on the target that were replaced
	Schema        int64
	BacklogBytes  int64
}

type counters struct {
	operations, bytes, folded, statements, together, rewritten, parked, skipped, missing, overwritten, schema atomic.Int64
}

// Engine applies events to one target. Feed, Drain and Run follow one rule:
// Run owns the workers and is called once; Feed and Drain are called by one
// goroutine at a time; the other methods by any.
type Engine struct {
	dst    *mongo.Cluster
	o      Options
	ledger *ledger
	n      counters

	workers []*worker
	targets map[string]*target // by source namespace; router only
	window  atomic.Pointer[mongo.OpTime]
	behind  atomic.Int64 // until when a backlog is assumed, as nanoseconds since began
	began   time.Time

	skipped *skipped
	refused map[string]mongo.OpTime // by placeKey; fixed

	parkCh  chan struct{} // a worker has parked something
	carried int           // documents parked beyond the last barrier; router only
	fed     mongo.OpTime  // end of the last batch that was routed whole; router only

	stopped chan struct{} // closed when Run ends
	mu      sync.Mutex
	cause   error
}

// target is a namespace events go to. A nil *target in the cache means that
// nothing is applied to the namespace.
type target struct {
	ns, db, coll string
	capped       bool
	collated     bool
	source       string       // namespace on the source; empty where no event told
	uuid         *[16]byte    // of the source's collection; nil where no event told
	seed         uint64       // hash of the name
	start        *CappedStart // of a capped collection, nil when all its events count
	// contested: documents of it were parked, so that order matters and
	// nothing is held back.
	contested atomic.Bool
}

func (t *target) serial() bool { return t.capped || t.collated }

// hash chooses the partition of a document's events.
func (t *target) hash(id bsoncore.Value) uint64 {
	if t.serial() {
		return t.seed
	}
	return t.seed ^ delta.Hash(delta.AppendKey(nil, id))
}

// New prepares an engine that starts at pos.
func New(dst *mongo.Cluster, pos stream.Position, o Options) *Engine {
	o = o.withDefaults()
	e := &Engine{
		dst: dst, o: o, ledger: newLedger(o.MaxBytes, pos), targets: map[string]*target{},
		parkCh: make(chan struct{}, 1), stopped: make(chan struct{}), fed: pos.At, began: time.Now(),
		skipped: newSkipped(o.Skipped), refused: map[string]mongo.OpTime{},
	}
	for _, p := range o.Refused {
		e.refused[placeKey(p.NS, p.value())] = p.At
	}
	e.SetWindow(o.WindowEnd)
	for i := range o.Partitions {
		e.workers = append(e.workers, newWorker(e, i))
	}
	return e
}

// Run keeps the workers running until ctx ends or one of them fails, and
// waits for them.
func (e *Engine) Run(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	e.openSessions()
	for _, w := range e.workers {
		g.Go(func() error { return w.run(gctx) })
	}
	err := g.Wait()
	e.mu.Lock()
	e.cause = err
	e.mu.Unlock()
	close(e.stopped)
	return err
}

// SetWindow moves the end of the window in which the target may be ahead.
func (e *Engine) SetWindow(end mongo.OpTime) { e.window.Store(&end) }

// SetOverlap moves the end of Options.Overlap. Called from Options.Schema.
func (e *Engine) SetOverlap(end mongo.OpTime) { e.o.Overlap = end }

// Renamed tells that at a position a target collection got another name, or
// went. Called from Options.Schema.
func (e *Engine) Renamed(from, to string, at mongo.OpTime) {
	e.skipped.renamed(from, to)
	start := e.o.CappedStarts[from]
	delete(e.o.CappedStarts, from)
	if to == "" {
		return
	}
	if start == nil {
		// A restart may repeat a rename; what is known already of the collection
		// as it is since then stays.
		if there := e.o.CappedStarts[to]; there != nil && there.Past.Before(at) {
			delete(e.o.CappedStarts, to)
		}
		return
	}
	e.o.CappedStarts[to] = start
}

// StartCapped tells from where the events of a capped collection count. Called
// from Options.Schema.
func (e *Engine) StartCapped(ns string, start CappedStart) {
	if e.o.CappedStarts == nil {
		e.o.CappedStarts = map[string]*CappedStart{}
	}
	e.o.CappedStarts[ns] = &start
}

// Applied is the position up to which everything is acknowledged, and from
// where reading would start again.
func (e *Engine) Applied() stream.Position { return e.ledger.current() }

// Stats is a snapshot.
func (e *Engine) Stats() Stats {
	return Stats{
		Operations: e.n.operations.Load(), Bytes: e.n.bytes.Load(), Folded: e.n.folded.Load(),
		Statements: e.n.statements.Load(), Together: e.n.together.Load(), Rewritten: e.n.rewritten.Load(), Parked: e.n.parked.Load(),
		SkippedWindow: e.n.skipped.Load(), Missing: e.n.missing.Load(), Overwritten: e.n.overwritten.Load(),
		Schema: e.n.schema.Load(), BacklogBytes: e.ledger.backlog(),
	}
}

// Feed routes one batch. It blocks while too many bytes are in flight and
// while a schema change is applied.
func (e *Engine) Feed(ctx context.Context, b *stream.Batch) error {
	select {
	case <-e.parkCh:
		if err := e.drain(ctx, false); err != nil {
			return err
		}
	default:
	}
	if err := e.decide(ctx); err != nil {
		return err
	}
	if err := e.makeRoom(ctx); err != nil {
		return err
	}
	if e.carried > 0 && e.ledger.full(b) {
		if err := e.relieve(ctx); err != nil {
			return err
		}
	}
	backlog := b.More && !e.o.Limit.Limited() // a limit is for the target, too
	if backlog {
		e.behind.Store(math.MaxInt64) // while this waits for room
	}
	seg, err := e.ledger.admit(ctx, b, e.relieve, e.parkCh)
	if err != nil {
		return e.failure(err)
	}
	e.n.bytes.Add(int64(b.Bytes))
	routed, err := e.route(ctx, seg, b)
	if err != nil {
		return e.failure(err)
	}
	if backlog {
		e.behind.Store(int64(time.Since(e.began) + backlogLasts))
	}
	rest := 1 + int64(len(b.Events)-routed)
	e.ledger.release(seg, rest)
	e.ledger.done(seg, rest)
	e.fed = b.End
	return nil
}

// failure prefers the workers' error over the cancellation it caused.
func (e *Engine) failure(err error) error {
	select {
	case <-e.stopped:
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.cause != nil {
			return e.cause
		}
	default:
	}
	return err
}

// route hands the events of a batch to the workers; routed is how many.
func (e *Engine) route(ctx context.Context, seg *segment, b *stream.Batch) (routed int, err error) {
	var key [64]byte
	window := e.window.Load()
	for i := range b.Events {
		if i%paced == 0 && e.o.Limit.Limited() {
			if err := e.hold(ctx, b, min(paced, len(b.Events)-i)); err != nil {
				return routed, err
			}
		}
		ev := &b.Events[i]
		if ev.Kind == stream.SchemaChange {
			if err := e.schema(ctx, b, i); err != nil {
				return routed, err
			}
			window = e.window.Load()
			continue
		}
		t, err := e.resolve(ctx, ev)
		if err != nil {
			return routed, err
		}
		if t == nil {
			continue
		}
		// What concerns a document in dispute goes to its letter.
		if t.start != nil && t.start.passes(ev.At) && !e.o.Letters.Disputed(t.ns, ev.Key.ID) {
			e.n.skipped.Add(1)
			continue
		}
		h := t.seed
		if !t.serial() {
			h ^= delta.Hash(delta.AppendKey(key[:0], ev.Key.ID))
		}
		it := item{ev: ev, seg: seg, t: t, hash: h, window: !window.Before(ev.At) && !e.wasRefused(t, ev)}
		if err := e.workers[h%uint64(len(e.workers))].push(ctx, it); err != nil {
			return routed, err
		}
		routed++
	}
	return routed, e.flushChunks(ctx)
}

// wasRefused reports an event of a document that stopped an earlier run.
func (e *Engine) wasRefused(t *target, ev *stream.Event) bool {
	if len(e.refused) == 0 {
		return false
	}
	at, ok := e.refused[placeKey(t.ns, ev.Key.ID)]
	return ok && !ev.At.Before(at)
}

// paced is how many events pass at once under a limit.
const paced = 100

// hold waits for the turn of n events. What was routed before them is not held
// back with them.
func (e *Engine) hold(ctx context.Context, b *stream.Batch, n int) error {
	if err := e.flushChunks(ctx); err != nil {
		return err
	}
	return e.o.Limit.Wait(ctx, int64(n), int64(b.Bytes)*int64(n)/int64(len(b.Events)))
}

func (e *Engine) flushChunks(ctx context.Context) error {
	for _, w := range e.workers {
		if err := w.sendChunk(ctx); err != nil {
			return err
		}
	}
	return nil
}

// schema makes everything before the event durable, hands it on and forgets
// what was known of namespaces.
func (e *Engine) schema(ctx context.Context, b *stream.Batch, i int) error {
	failpoint.Hit("barrier.before")
	if err := e.Drain(ctx); err != nil {
		return err
	}
	ev := &b.Events[i]
	before := b.Start
	for j := i - 1; j >= 0; j-- {
		if b.Events[j].At.Before(ev.At) {
			before = b.Events[j].At
			break
		}
	}
	last := !b.End.Before(ev.At) && (i+1 == len(b.Events) || ev.At.Before(b.Events[i+1].At))
	e.ledger.advance(before)
	if err := e.o.Schema(ctx, ev, before, last); err != nil {
		return err
	}
	if last {
		e.ledger.advance(ev.At)
	}
	e.n.schema.Add(1)
	clear(e.targets)
	return nil
}

// resolve finds an event's target, nil when nothing is applied to it.
func (e *Engine) resolve(ctx context.Context, ev *stream.Event) (*target, error) {
	ns := ev.NS
	if t, ok := e.targets[ns]; ok {
		return t, nil
	}
	if ev.Target == "" || e.o.Absent != nil && e.o.Absent(ns) {
		e.targets[ns] = nil
		return nil, nil
	}
	t, err := e.newTarget(ctx, ev.Target)
	if err != nil {
		return nil, err
	}
	t.source = ns
	if ev.UUID != nil {
		t.uuid = new([16]byte) // the event's keeps a whole reply in memory
		*t.uuid = *ev.UUID
	}
	e.targets[ns] = t
	return t, nil
}

func (e *Engine) newTarget(ctx context.Context, ns string) (*target, error) {
	traits, err := e.o.Traits(ctx, ns)
	if err != nil {
		return nil, fmt.Errorf("read options of %s: %w", ns, err)
	}
	db, coll := mongo.SplitNS(ns)
	return &target{ns: ns, db: db, coll: coll, capped: traits.Capped, collated: traits.Collated, seed: delta.Hash([]byte(ns)),
		start: e.o.CappedStarts[ns]}, nil
}
