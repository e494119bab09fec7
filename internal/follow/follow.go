package follow

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/schema"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// follower is one run of continuous replication, from a durable checkpoint
// until something ends it. Its methods run on the source's emitting goroutine,
// except saveRegularly.
type follower struct {
	Options
	job   state.Job // as loaded; phase and positions of this run below
	sink  Sink
	stage *transform.Stage // between the source and the sink

	phase      state.Phase
	overlapEnd mongo.OpTime // until where the target may be ahead
	newest     mongo.OpTime // the newest state in which a document was read for a filter
	intent     mongo.OpTime // a schema change that may have been applied before the restart
	finalAt    mongo.OpTime // where finalize drains to; zero: not asked
	proven     mongo.OpTime // of the target, by the last proof of settle
	mark       string       // of the last batch that was passed on to its end
	builds     sourceBuilds

	mu      sync.Mutex      // orders saves of positions
	saved   stream.Position // last position saved
	skipped int             // version of the list of skipped documents that was saved
	refused mongo.OpTime    // up to where the checkpoint names documents that a conflict stopped the job at; zero for none

	reach reach
}

// ErrFinished ends a run whose job is finalized.
var ErrFinished = errors.New("finalized")

// Run follows the source from a stored job's position until something ends it.
func Run(ctx context.Context, job state.Job, pos stream.Position, o Options) error {
	f := &follower{Options: o, job: job, stage: transform.NewStage(o.Rules, pos, o.Tally, o.Leaves),
		phase: job.Phase, intent: job.Intent, saved: pos, mark: pos.Mark}
	for _, p := range job.Refused {
		f.refused = mongo.MaxOpTime(f.refused, p.At)
	}
	if job.Expiring {
		return f.goOnExpiring(ctx)
	}
	fresh, err := f.openOverlap(ctx)
	if err != nil {
		return err
	}
	// Where the events of capped collections begin is known after a copy that was
	// just made.
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
	f.sink = o.Job.OpenSink(pos, mongosink.Options{Schema: f.schemaChange, Overlap: mongosink.Overlap{
		End: f.overlapEnd, RereadUntil: job.Consistent, Capped: capped, Refused: job.Refused, Skipped: skipped}})
	f.stage.Record(transform.Histories{Start: job.Start, Copied: job.Copied, Versions: targetVersions{o.Target, f.sink}})
	f.Progress.Following(f.sink, o.Changes)
	f.Repairs.again()
	return f.standing(f.run(ctx, pos))
}

// standing has a conflict tell how far the target had come.
func (f *follower) standing(err error) error {
	var c *mongosink.ConflictError
	if errors.As(err, &c) {
		c.Applied, c.Sent = f.sink.Applied().At, mongo.MaxOpTime(f.overlapEnd, f.sink.Sent())
	}
	return err
}

// openOverlap sets until where the target may be ahead: to the end of the copy,
// and to the last position whose events an earlier attempt may have sent. fresh
// says that nothing was sent yet.
func (f *follower) openOverlap(ctx context.Context) (fresh bool, err error) {
	f.overlapEnd = f.job.Consistent
	f.reach.noted.Store(&f.job.Reach)
	if f.job.Reach.IsZero() {
		return f.job.Intent.IsZero() && f.job.Applied == f.job.Start, nil
	}
	// The reach is noted ahead. What was sent was on a majority of the source.
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
	return during(ctx, read, f.sink.Run, f.saveRegularly)
}

var errReadingEnded = errors.New("reading ended")

// during runs others while read runs, and ends them with it. How they end then says
// nothing: a write that is broken off is no failure of a run that is finished.
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

// saveRegularly records the applied position about every second.
func (f *follower) saveRegularly(ctx context.Context) error {
	return retry.Every(ctx, time.Second, func() error { return f.saveAhead(ctx) })
}

// emit takes a batch from the source. Between batches the job may change its
// phase.
func (f *follower) emit(ctx context.Context, b *stream.Batch) error {
	if err := f.pass(ctx, b); err != nil || b.Partial { // what is half there is no position
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
	// What conflicts made millrace read from the source may be newer.
	if !f.finalAt.IsZero() && !b.End.Before(mongo.MaxOpTime(f.finalAt, f.Letters.Until())) {
		return f.finalize(ctx)
	}
	if b.End.Before(f.overlapEnd) {
		return nil
	}
	return f.repair(ctx, b.End)
}

// feed hands a batch to the sink once its events may be sent.
func (f *follower) feed(ctx context.Context, b *stream.Batch) error {
	if err := f.allow(ctx, b); err != nil {
		return err
	}
	return f.sink.Feed(ctx, b)
}

// settle applies all that was fed, proves it, and builds the indexes that waited
// for that: where there are some, the position is noted first. Else it is left to
// the caller, who notes a phase. beside, if any, is done meanwhile; it must change
// nothing.
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

// applied is the position up to which all is on the target.
func (f *follower) applied() stream.Position {
	if f.sink == nil { // of a run that follows nothing
		return f.saved
	}
	return f.sink.Applied()
}

// enter notes a phase, with the position that is applied.
func (f *follower) enter(ctx context.Context, p state.Phase) error {
	return f.noteWith(ctx, func(set bson.D) error { return f.Job.SavePhase(ctx, p, set...) })
}

// noteWith has the position that is applied stored with something else.
func (f *follower) noteWith(ctx context.Context, store func(set bson.D) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	pos := f.applied()
	if pos == f.saved {
		return store(nil)
	}
	set, err := f.progress(ctx, pos)
	if err != nil {
		return err
	}
	if err := store(set); err != nil {
		return err
	}
	f.saved = pos
	f.Spool.Passed(f.Progress.SetApplied(pos))
	return nil
}

// becomeConsistent ends the overlap: the target is at one position of the
// source, so unique indexes can be built.
func (f *follower) becomeConsistent(ctx context.Context) error {
	if _, err := f.settle(ctx, nil); err != nil {
		return err
	}
	f.phase = state.PhaseFollowing
	f.Log.Info("target is consistent; following the source", "position", f.sink.Applied().At)
	if f.Finalize.due(false) {
		return nil // the phase after this one is noted at once, or awaitBuilds notes this one
	}
	return f.enter(ctx, state.PhaseFollowing)
}

// saveAhead is save, and moves the reach on. One write both notes the reach and
// proves the position: each that waits for the target's disk holds the others up.
func (f *follower) saveAhead(ctx context.Context) error {
	f.reach.noting.Lock()
	defer f.reach.noting.Unlock()
	next := f.ahead(mongo.OpTime{})
	if f.reach.holds(next) {
		return f.save(ctx)
	}
	saved, err := f.saveNoting(ctx, bson.E{Key: "reach", Value: next})
	if err == nil && !saved {
		err = f.Store.Note(ctx, bson.D{{Key: "reach", Value: next}})
	}
	if err == nil {
		f.reach.noted.Store(&next)
	}
	return err
}

// save records the applied position if it moved.
func (f *follower) save(ctx context.Context) error {
	_, err := f.saveNoting(ctx)
	return err
}

// saveNoting is save, which notes something else with it. saved is false where
// the position did not move: then nothing is stored.
func (f *follower) saveNoting(ctx context.Context, noted ...bson.E) (saved bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	failpoint.Hit("position.before")
	pos := f.sink.Applied()
	if pos == f.saved {
		return false, nil
	}
	set, err := f.progress(ctx, pos)
	if err != nil {
		return false, err
	}
	if err := f.Store.Save(ctx, set, noted...); err != nil {
		return false, err
	}
	// This position may be lost with the target's primary; the one before it cannot be.
	f.Spool.Passed(f.Progress.ReadFrom())
	f.saved = pos
	f.Progress.SetApplied(pos)
	return true, nil
}

// progress is what is saved with a position. Updates that were skipped at or
// before it are stored first: a restart does not meet them again.
func (f *follower) progress(ctx context.Context, p stream.Position) (bson.D, error) {
	if err := f.Source.Holds(ctx, p.At); err != nil {
		return nil, err
	}
	set := state.PositionFields(p)
	if list, version := f.sink.Skipped(); version != f.skipped {
		if err := f.Store.SaveSkipped(ctx, list); err != nil {
			return nil, err
		}
		f.skipped = version
	}
	if !f.refused.IsZero() && !p.At.Before(f.refused) {
		set = append(set, bson.E{Key: "refused", Value: bson.A{}})
		f.refused = mongo.OpTime{}
	}
	return set, nil
}

// schemaChange is schema, which it tells of.
func (f *follower) schemaChange(ctx context.Context, ev *stream.Event, _ mongo.OpTime, last bool) error {
	end := f.Progress.Begin(progress.StepSchema, ev.Change.NS, string(ev.Change.Kind))
	err := f.schema(ctx, ev, last)
	end(err)
	return err
}

// schema applies one schema change after a durable note that it is about to
// happen: a restart finds the note and applies the change once more as one that
// may have happened. What comes after needs no note.
func (f *follower) schema(ctx context.Context, ev *stream.Event, last bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	failpoint.Hit("schema.before")
	if !f.Parts { // shards tell of what moves with its database under another UUID
		meant := f.Source.Names.Meant(*ev.Change)
		ev.Change, ev.NS = &meant, meant.NS
	}
	if err := f.putIndexesOff(ctx, ev); err != nil {
		return err
	}
	pos := f.sink.Applied()
	o := f.applyOptions(ev)
	before, err := f.Schema.Changes.Prepare(ctx, *ev.Change, o)
	if err != nil {
		return fmt.Errorf("%s of %s at %s: %w", ev.Change.Kind, ev.Change.NS, ev.At, err)
	}
	o.Before = before
	set, err := f.progress(ctx, pos)
	if err != nil {
		return err
	}
	if err := f.Store.SaveDurably(ctx, append(set, bson.E{Key: "intent", Value: ev.At},
		bson.E{Key: "before", Value: before})); err != nil {
		return err
	}
	failpoint.Hit("schema.noted")
	effect, err := f.applyChange(ctx, *ev.Change, o)
	if err != nil {
		return fmt.Errorf("%s of %s at %s: %w", ev.Change.Kind, ev.Change.NS, ev.At, err)
	}
	f.Log.Info("schema change", "kind", ev.Change.Kind, "ns", ev.Change.NS, "to", ev.Change.To, "at", ev.At,
		"applied", effect.Applied, "skipped", effect.Skipped)
	failpoint.Hit("schema.after")
	// Stored when all else is done: shards tell of a change no more that the names have.
	names := f.Source.Names.After(*ev.Change, f.Rules)
	f.Source.Names.Change(names)
	if err := f.moveNames(ctx, ev, effect); err != nil {
		return err
	}
	if effect.Resync != nil {
		if err := f.resync(ctx, ev, effect); err != nil {
			return err
		}
	}
	if effect.Join != nil {
		if err := f.join(ctx, ev, effect, o.Overlap); err != nil {
			return err
		}
	}
	if err := f.noteNames(ctx, names); err != nil {
		return err
	}
	if !last {
		return nil
	}
	if !ev.At.Before(f.intent) { // else one that came before the noted one, done again
		f.intent = mongo.OpTime{}
	}
	if effect.Resync == nil {
		return nil
	}
	pos = pos.Past(ev) // so that the copy is not made again
	if set, err = f.progress(ctx, pos); err != nil {
		return err
	}
	if err := f.Store.Save(ctx, append(set, bson.E{Key: "intent", Value: mongo.OpTime{}})); err != nil {
		return err
	}
	f.saved = pos
	f.Progress.SetApplied(pos)
	return nil
}

// resync copies a collection that a rename brought inside the filter, as it is
// on the source now; until the stream has passed that moment the target is ahead.
func (f *follower) resync(ctx context.Context, ev *stream.Event, effect schema.Effect) error {
	coll, found, err := f.Source.FindRenamed(ctx, ev.Change, ev.At)
	if err != nil {
		return err
	}
	if !found {
		return f.neverCame(ctx, ev, effect)
	}
	if ev.Change.Kind == stream.ChangeRename {
		coll.NS = ev.Change.To // by which it is filtered; it may have yet another name by now
	}
	if f.Rules.Route(coll.NS).History {
		return mongo.WithHint(fmt.Errorf("%s becomes %s, whose history is kept, amid the copy, and is to be copied anew: "+
			"its documents would have two beginnings", ev.Change.NS, coll.NS),
			"start the job again with --restart")
	}
	if err := schema.CheckCollection(coll, f.Rules); err != nil {
		return err
	}
	if coll, _, err = schema.Mapped(coll, f.Rules); err != nil {
		return err
	}
	// What the copy reads must not be older than the rename.
	pos, err := f.Source.Committed(ctx, ev.At)
	if err != nil {
		return err
	}
	create := f.Schema.Collections.CreateOurs
	if effect.Keep || f.existing(ev.At) == schema.KeepExisting {
		create = f.Schema.Collections.Create
	}
	if err := create(ctx, coll, effect.ResyncNS, f.Rules); err != nil {
		return err
	}
	if err := f.Job.CopyAnew(ctx, coll, effect.ResyncNS, pos.Majority); err != nil {
		return err
	}
	if err := f.startCopied(ctx, effect); err != nil {
		return err
	}
	if _, err := f.Schema.Indexes.BuildSkipping(ctx, effect.ResyncNS, coll.Indexes, schema.BeforeConsistent,
		f.Rules.Route(ev.Change.To).Skips); err != nil {
		return err
	}
	newest, err := f.Source.Newest(ctx)
	if err != nil {
		return err
	}
	if one, ok := f.Source.Names.Target(effect.ResyncNS); ok {
		one.Copied = newest
		f.Source.Names.Change(schema.NameChange{Put: []schema.Name{one}})
	}
	return f.overlapUntil(ctx, newest)
}

// putIndexesOff has indexes built when the target is consistent again, where documents were
// read for a rule as they are after the index is made: they may hold keys that others have
// not given up yet. After a restart the reach says how far they may have been read.
func (f *follower) putIndexesOff(ctx context.Context, ev *stream.Event) error {
	ch, read := ev.Change, f.newest
	if ch.Kind != stream.ChangeCreateIndexes && ch.Kind != stream.ChangeCollMod || !f.job.Consistent.Before(ev.At) {
		return nil
	}
	if f.Rules.Route(ch.NS).Reads() {
		read = mongo.MaxOpTime(read, f.overlapEnd)
	}
	if read.Before(ev.At) {
		return nil
	}
	return f.overlapUntil(ctx, read)
}

// overlapUntil notes that the target may be ahead of the stream up to a position.
func (f *follower) overlapUntil(ctx context.Context, at mongo.OpTime) error {
	f.overlapEnd = mongo.MaxOpTime(f.overlapEnd, at)
	f.sink.SetOverlap(f.overlapEnd)
	if f.phase == state.PhaseFollowing {
		f.phase = state.PhaseOverlap
	}
	if !f.finalAt.IsZero() {
		f.finalAt = mongo.MaxOpTime(f.finalAt, f.overlapEnd)
	}
	f.job.Consistent = f.overlapEnd
	return f.Store.SaveDurably(ctx, bson.D{{Key: "consistent", Value: f.overlapEnd}, {Key: "phase", Value: f.phase}})
}

// startCopied has the events of a capped collection begin where its copy ends.
func (f *follower) startCopied(ctx context.Context, effect schema.Effect) error {
	at, err := f.copiedAt(ctx)
	if past, ok := at[hex.EncodeToString(effect.Resync.Data)]; ok {
		f.sink.StartCapped(effect.ResyncNS, mongosink.CappedStart{Past: past})
	}
	return err
}
