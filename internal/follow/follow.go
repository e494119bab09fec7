// Package follow runs continuous replication. It passes batches of a source to a sink, from a
// stored position until the job is finalized or something ends the run. It decides when the overlap
// ends, makes schema changes safe against a crash, saves positions, and finds out what the target
// already has. Operators request through Finalize and Repairs.
package follow

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/schema"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/resolve"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// Options configure a run.
type Options struct {
	Mode       state.Mode
	OnExisting state.OnExisting
	Rules      *transform.Set
	Counters   *transform.Counters // of Rules
	Store      state.Store
	Target     *mongo.Cluster
	Schema     Schema            // of Target
	Letters    *deadletter.Store // of Target
	Progress   *progress.Progress
	Log        *slog.Logger

	Fresh  bool // this attempt made the copy: nothing was skipped before
	Capped bool // some collections of the copy are capped

	Changes stream.Source // from the position on
	Source  *Source       // with the job's names at the position; the run updates them
	Parts   bool          // the source has several shards, each of which builds indexes by itself
	// MixedSchema is the option of the time-series collections that the source creates.
	MixedSchema bool

	Job       Job
	Passed    func(readFrom mongo.OpTime) // gets the position from which reading would start after a crash
	Finalize  *Finalize
	Repairs   *Repairs
	IndexWait time.Duration // how long finalize waits for index builds of the source; 0: no limit
}

// Job does what a run needs of its job.
type Job interface {
	// OpenSink begins to write at a position.
	OpenSink(stream.Position, mongosink.Options) Sink
	// CopyAnew copies a collection of the source as of a position or later.
	CopyAnew(ctx context.Context, c schema.Collection, target string, after mongo.OpTime) error
	// CopyWithin copies a collection of the target into another one there, and replaces documents
	// with the same _ids.
	CopyWithin(ctx context.Context, c schema.Collection, target string) error
	// SavePhase saves a phase and more fields.
	SavePhase(context.Context, state.Phase, ...bson.E) error
	// Compare compares the target's catalog with the source's.
	Compare(context.Context) ([]schema.Difference, error)
	// Finish ends the job when the target is at its last position.
	Finish(context.Context, Final) error
}

// Sink is a sink whose target has a schema and refuses documents, such as mongosink.Engine.
type Sink interface {
	stream.Sink
	Sent() mongo.OpTime
	SetOverlap(end mongo.OpTime)
	Renamed(from, to string, at mongo.OpTime)
	StartCapped(ns string, start mongosink.CappedStart)
	Skipped() (list []stream.Place, version int)
	Untangle(context.Context, resolve.Clash) error
	Hold(context.Context, deadletter.Letter) (why string, err error)
	Repaired(ns string, id bsonraw.ID) resolve.Repaired
}

// Schema is the part of schema.Target that a run uses.
type Schema struct {
	Catalog interface {
		Has(ctx context.Context, ns string) (bool, error)
		HasCapped(ctx context.Context, ns string) (bool, error)
	}
	Changes interface {
		Prepare(context.Context, stream.Change, schema.ApplyOptions) (schema.Before, error)
		Apply(context.Context, stream.Change, schema.ApplyOptions) (schema.Effect, error)
		TakeOver(ctx context.Context, from, to string, p schema.Phase) error
	}
	Collections interface {
		Create(ctx context.Context, c schema.Collection, ns string, rules *transform.Set) error
		CreateOurs(ctx context.Context, c schema.Collection, ns string, rules *transform.Set) error
	}
	Indexes interface {
		BuildDeferred(ctx context.Context, but ...schema.IndexName) error
		BuildSkipping(
			ctx context.Context, ns string, list []stream.Index, p schema.Phase, skips stream.Ops,
		) (left []string, err error)
		Duplicates(ctx context.Context, ns string, index bson.Raw) ([]bson.Raw, error)
	}
	Deferred interface {
		Waits(context.Context) (schema.Waiting, error)
		GiveUp(context.Context, schema.IndexName) error
	}
	Expiries interface{ Restore(context.Context) error }
}

func SchemaOf(t *schema.Target) Schema {
	return Schema{t, t.Changes, t.Collections, t.Indexes, t.Deferred, t.Expiries}
}

// Final is saved with the end of a job.
type Final struct {
	Differences []schema.Difference
	At          mongo.OpTime // of the target, after everything that the job wrote
	Set         bson.D       // the source's position, if it moved
}

// follower is one run of continuous replication, from a durable checkpoint to its end. Its
// methods run on the source's emitting goroutine, except saveAhead.
type follower struct {
	Options
	job   state.Job // as loaded; phase and positions of this run below
	sink  Sink
	stage *transform.Stage // between the source and the sink

	phase      state.Phase
	overlapEnd mongo.OpTime // the target may be ahead up to here
	newest     mongo.OpTime // of the documents read for rules
	intent     mongo.OpTime // a schema change that may have been applied before the restart
	finalAt    mongo.OpTime // where finalize drains to; zero: not requested
	proven     mongo.OpTime // of the target, by settle
	mark       string       // of the last complete batch
	builds     sourceBuilds
	differ     []schema.Difference // between the catalogs

	mu      sync.Mutex // orders saves of positions
	saved   stream.Position
	skipped int          // version of Sink.Skipped that was saved
	taken   int          // version of transform.Taken that was saved
	refused mongo.OpTime // newest of the refused documents in the checkpoint; zero: none

	reach reach
}

// ErrFinished ends the run of a finalized job.
var ErrFinished = errors.New("finalized")

// Run follows the source from a stored position. It always returns an error: ErrFinished when the
// job is finalized.
func Run(ctx context.Context, job state.Job, pos stream.Position, o Options) error {
	f := &follower{Options: o, job: job, stage: transform.NewStage(o.Rules, pos, o.Counters, o.Source.Leaves),
		phase: job.Phase, intent: job.Intent, saved: pos, mark: pos.Mark}
	for _, p := range job.Refused {
		f.refused = mongo.MaxOpTime(f.refused, p.At)
	}
	if job.Expiring { // it drained before the restart
		f.Log.Info("finalize drained before the restart; later changes of the source are not applied",
			"position", f.saved.At)
		f.Progress.NeedsNothing()
		return f.expire(ctx)
	}
	fresh, err := f.openOverlap(ctx)
	if err != nil {
		return err
	}
	starts := f.cappedStarts
	if fresh && job.Mode != state.ModeIncremental {
		starts = f.copiedStarts
	}
	var capped map[string]mongosink.CappedStart
	var skipped []stream.Place
	g, gctx := errgroup.WithContext(ctx)
	if !f.Fresh || f.Capped || job.Mode == state.ModeIncremental {
		g.Go(func() (err error) {
			capped, err = starts(gctx)
			return err
		})
	}
	if !f.Fresh {
		g.Go(func() (err error) {
			skipped, err = f.Store.LoadSkipped(gctx)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	failpoint.Hit("window.after")
	f.stage.Copies(f)
	f.stage.Retain(o.Source.Names, job.Taken)
	f.sink = o.Job.OpenSink(pos, mongosink.Options{Schema: f.schemaChange, Overlap: mongosink.Overlap{
		End: f.overlapEnd, RereadUntil: job.Consistent, Capped: capped, Refused: job.Refused, Skipped: skipped}})
	f.stage.Record(transform.Histories{Start: job.Start, Copied: job.Copied, Versions: targetVersions{o.Target, f.sink}})
	f.Progress.Following(f.sink, o.Changes)
	f.Repairs.again()
	return f.standing(f.run(ctx, pos))
}

func (f *follower) standing(err error) error {
	if c, ok := errors.AsType[*resolve.ConflictError](err); ok {
		c.Applied, c.Sent = f.sink.Applied().At, mongo.MaxOpTime(f.overlapEnd, f.sink.Sent())
	}
	return err
}

// openOverlap sets overlapEnd to the end of the copy or, if later, to the last position whose
// events an earlier attempt may have sent. fresh reports that nothing was sent yet.
func (f *follower) openOverlap(ctx context.Context) (fresh bool, err error) {
	f.overlapEnd = f.job.Consistent
	f.reach.noted.Store(&f.job.Reach)
	if f.job.Reach.IsZero() {
		return f.job.Intent.IsZero() && f.job.Applied == f.job.Start, nil
	}
	// The stored reach is ahead of the clock, but only committed events were sent.
	newest, err := f.Source.Newest(ctx)
	if err != nil {
		return false, err
	}
	f.reach.known = newest
	f.overlapEnd = mongo.MaxOpTime(f.overlapEnd, mongo.MinOpTime(f.job.Reach, newest))
	return false, nil
}

func (f *follower) run(ctx context.Context, pos stream.Position) error {
	read := func(ctx context.Context) error { return f.Changes.Run(ctx, pos, f.emit) }
	save := func(ctx context.Context) error {
		return retry.Every(ctx, time.Second, func() error { return f.saveAhead(ctx) })
	}
	return during(ctx, read, f.sink.Run, save)
}

var errReadingEnded = errors.New("reading ended")

// during runs others while read runs, and ends them with it. Their errors after that are ignored:
// an interrupted write is no failure of a finished run.
func during(ctx context.Context, read func(context.Context) error, others ...func(context.Context) error) error {
	g, gctx := errgroup.WithContext(ctx)
	octx, stop := context.WithCancelCause(gctx)
	defer stop(nil)
	for _, other := range others {
		g.Go(func() error {
			if err := other(octx); !errors.Is(context.Cause(octx), errReadingEnded) {
				return err
			}
			return nil
		})
	}
	g.Go(func() error {
		defer stop(errReadingEnded)
		return read(gctx)
	})
	return g.Wait()
}

func (f *follower) emit(ctx context.Context, b *stream.Batch) error {
	if err := f.pass(ctx, b); err != nil || b.Partial {
		return err
	}
	f.catchUp(b.End)
	if f.phase == state.PhaseOverlap && !b.End.Before(mongo.MaxOpTime(f.job.Consistent, f.overlapEnd)) {
		if err := f.becomeConsistent(ctx); err != nil {
			return err
		}
	}
	if f.phase == state.PhaseOverlap {
		return nil
	}
	if err := f.wantFinal(ctx); err != nil {
		return err
	}
	// Dead letters may hold newer documents, read from the source.
	if !f.finalAt.IsZero() && !b.End.Before(mongo.MaxOpTime(f.finalAt, f.Letters.Until())) {
		return f.finalize(ctx)
	}
	if b.End.Before(f.overlapEnd) {
		return nil
	}
	return f.repair(ctx, b.End)
}

func (f *follower) feed(ctx context.Context, b *stream.Batch) error {
	if err := f.allow(ctx, b); err != nil {
		return err
	}
	return f.sink.Feed(ctx, b)
}

// settle applies and proves everything that was fed, and builds the deferred indexes, if any, after
// saving the position. beside, if any, runs meanwhile and must only read.
func (f *follower) settle(ctx context.Context, beside func(context.Context) error) (waiting schema.Waiting, err error) {
	if err := f.sink.Drain(ctx); err != nil {
		return waiting, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		f.proven, err = f.Store.Prove(gctx, beside != nil)
		return err
	})
	g.Go(func() (err error) {
		waiting, err = f.Schema.Deferred.Waits(gctx)
		return err
	})
	if beside != nil {
		g.Go(func() error { return beside(gctx) })
	}
	if err := g.Wait(); err != nil || waiting == (schema.Waiting{}) {
		return waiting, err
	}
	if err := f.save(ctx); err != nil {
		return waiting, err
	}
	return waiting, f.buildDeferred(ctx)
}

func (f *follower) applied() stream.Position {
	if f.sink == nil { // the job is expiring
		return f.saved
	}
	return f.sink.Applied()
}

// becomeConsistent ends the overlap: the target is at one position of the source, so that unique
// indexes can be built.
func (f *follower) becomeConsistent(ctx context.Context) error {
	if _, err := f.settle(ctx, nil); err != nil {
		return err
	}
	if err := f.endRetained(ctx); err != nil {
		return err
	}
	f.phase = state.PhaseFollowing
	f.Log.Info("target is consistent; following the source", "position", f.sink.Applied().At)
	if f.Finalize.due(false) {
		return nil // the next phase is saved at once, or awaitBuilds saves this one
	}
	return f.enter(ctx, state.PhaseFollowing)
}
