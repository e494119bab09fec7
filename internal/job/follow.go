package job

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/copy"
	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// follower is one run of continuous replication, from a durable checkpoint
// until something ends it. Its methods run on the tail's emitting goroutine,
// except checkpoints.
type follower struct {
	j   *Job
	job state.Job // as loaded; phase and positions of this run below
	eng *mongosink.Engine
	src stream.Source
	// rules stands between src and eng.
	rules *transform.Stage

	phase     Phase
	windowEnd mongo.OpTime
	intent    mongo.OpTime // a schema change that may have been applied before the restart
	finalAt   mongo.OpTime // where finalize drains to; zero: not asked

	mu      sync.Mutex      // orders saves of positions
	saved   stream.Position // last position saved
	skipped int             // version of the list of skipped documents that was saved
	refused bool            // the checkpoint names documents that a conflict stopped the job at

	reach reach
}

func (j *Job) follow(ctx context.Context, job state.Job) error {
	f := &follower{j: j, job: job, phase: Phase(job.Phase), intent: job.Intent, rules: transform.NewStage(j.rules)}
	if f.phase == PhaseFinalizing { // the wish survives a restart
		j.control.finalize.Store(true)
	}
	if err := j.loadNames(ctx); err != nil {
		return err
	}
	if err := j.holdTTL(ctx); err != nil {
		return err
	}
	fresh, err := f.openWindow(ctx)
	if err != nil {
		return err
	}
	capped, err := f.cappedStarts(ctx, fresh)
	if err != nil {
		return err
	}
	skipped, err := j.store.LoadSkipped(ctx)
	if err != nil {
		return err
	}
	pos := positionOf(job)
	f.saved, f.refused = pos, len(job.Refused) > 0
	failpoint.Hit("window.after")
	f.eng = j.newApply(pos, mongosink.Options{Schema: f.schema, Overlap: mongosink.Overlap{End: f.windowEnd, RereadUntil: job.Consistent,
		Capped: capped, Refused: places(job.Refused), Skipped: places(skipped)}})
	f.src = oplog.New(j.src, oplog.Options{Keep: j.keep, Log: j.log, Spool: j.spooler})
	j.progress.setFollow(f.eng, f.src)
	return f.run(ctx, pos)
}

// openWindow sets until where the target may be ahead: to the end of the copy,
// and to the last position whose events an earlier attempt may have sent. fresh
// says that nothing was sent yet.
func (f *follower) openWindow(ctx context.Context) (fresh bool, err error) {
	f.windowEnd = f.job.Consistent
	f.reach.init(f.job.Reach)
	if f.job.Reach.IsZero() {
		return f.job.Intent.IsZero() && f.job.Applied == f.job.Start, nil
	}
	// The reach is noted ahead. What was sent was on a majority of the source.
	newest, err := f.j.newest(ctx)
	if err != nil {
		return false, err
	}
	f.windowEnd = mongo.MaxOpTime(f.windowEnd, mongo.MinOpTime(f.job.Reach, newest))
	return false, nil
}

// cappedStarts are where the events of capped collections begin: after a copy
// that was just made it is known.
func (f *follower) cappedStarts(ctx context.Context, fresh bool) (map[string]mongosink.CappedStart, error) {
	if fresh && f.job.Mode != string(ModeIncremental) {
		return f.j.copiedStarts(ctx)
	}
	return f.j.cappedStarts(ctx, f.job, f.windowEnd)
}

func (f *follower) run(ctx context.Context, pos stream.Position) error {
	g, gctx := errgroup.WithContext(ctx)
	// The engine and the saver end when reading ends.
	ectx, stop := context.WithCancelCause(gctx)
	defer stop(nil)
	g.Go(func() error { return ignore(f.eng.Run(ectx), errReadingEnded) })
	g.Go(func() error { return ignore(f.saveRegularly(ectx), errReadingEnded) })
	g.Go(func() error {
		defer stop(errReadingEnded)
		return f.src.Run(gctx, pos, f.emit)
	})
	return g.Wait()
}

var errReadingEnded = errors.New("reading ended")

func ignore(err, what error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}

// emit takes a batch from the source. Between batches the job may change its
// phase.
func (f *follower) emit(ctx context.Context, b *stream.Batch) error {
	f.rules.Batch(b)
	if err := f.allow(ctx, b); err != nil {
		return err
	}
	if err := f.eng.Feed(ctx, b); err != nil || b.Partial { // what is half there is no position
		return err
	}
	if f.phase == PhaseOverlap && !b.End.Before(mongo.MaxOpTime(f.job.Consistent, f.windowEnd)) {
		if err := f.becomeConsistent(ctx); err != nil {
			return err
		}
	}
	if f.phase == PhaseOverlap {
		return nil
	}
	if err := f.wantFinal(ctx); err != nil {
		return err
	}
	// What conflicts made millrace read from the source may be newer.
	if !f.finalAt.IsZero() && !b.End.Before(mongo.MaxOpTime(f.finalAt, f.j.letters.Until())) {
		return f.finalize(ctx)
	}
	return nil
}

// becomeConsistent ends the overlap: the target is at one position of the
// source, so unique indexes can be built.
func (f *follower) becomeConsistent(ctx context.Context) error {
	if err := f.eng.Drain(ctx); err != nil {
		return err
	}
	if err := f.save(ctx); err != nil {
		return err
	}
	if err := f.untangled(ctx, func() error { return f.j.cat.BuildDeferred(ctx) }); err != nil {
		return err
	}
	f.phase = PhaseFollowing
	f.j.log.Info("target is consistent; following the source", "position", f.eng.Applied().At)
	return f.j.savePhase(ctx, PhaseFollowing)
}

// wantFinal sets the position to finalize at, once that is asked for.
func (f *follower) wantFinal(ctx context.Context) error {
	if !f.finalAt.IsZero() {
		return nil
	}
	if at := f.j.until.at; !at.IsZero() && !time.Now().Before(at) {
		f.j.control.finalize.Store(true)
	}
	if !f.j.control.finalize.Load() {
		return nil
	}
	if f.j.spec.Mode == ModeFull {
		f.finalAt = f.job.Consistent
	} else {
		failpoint.Hit("final.before")
		newest, err := f.j.newest(ctx)
		if err != nil {
			return err
		}
		failpoint.Hit("final.after")
		f.finalAt = newest
	}
	f.finalAt = mongo.MaxOpTime(f.finalAt, f.windowEnd)
	f.phase = PhaseFinalizing
	f.j.log.Info("finalizing", "drainTo", f.finalAt)
	return f.j.savePhase(ctx, PhaseFinalizing)
}

// finalize drains, restores what was held back and says what differs.
func (f *follower) finalize(ctx context.Context) error {
	failpoint.Hit("finalize.before")
	defer failpoint.Hit("finalize.after")
	f.j.letters.RetryAll()
	if err := f.eng.Drain(ctx); err != nil {
		return err
	}
	if err := f.save(ctx); err != nil {
		return err
	}
	if err := f.untangled(ctx, func() error { return f.j.cat.BuildDeferred(ctx) }); err != nil {
		return err
	}
	if err := f.j.cat.RestoreExpiries(ctx); err != nil {
		return err
	}
	if err := f.j.compareCatalogs(ctx); err != nil {
		return err
	}
	if err := f.j.savePhase(ctx, PhaseFinalized); err != nil {
		return err
	}
	f.j.log.Info("finalized", "position", f.eng.Applied().At)
	return errFinished
}

// saveRegularly records the applied position about every second.
func (f *follower) saveRegularly(ctx context.Context) error {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := f.extend(ctx, mongo.OpTime{}); err != nil {
			return err
		}
		if err := f.save(ctx); err != nil {
			return err
		}
	}
}

// save records the applied position if it moved.
func (f *follower) save(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	failpoint.Hit("position.before")
	pos := f.eng.Applied()
	if pos == f.saved {
		return nil
	}
	set, err := f.progress(ctx, pos)
	if err != nil {
		return err
	}
	if err := f.j.store.Save(ctx, set); err != nil {
		return err
	}
	f.saved = pos
	return f.j.spooler.Passed(f.j.progress.setApplied(pos))
}

// positionOf is where the job stands.
func positionOf(job state.Job) stream.Position {
	if job.Mark == "" {
		return oplog.Position(job.Applied, job.ReadFrom)
	}
	return stream.Position{At: job.Applied, Mark: job.Mark}
}

// positionFields are those of the job's document that positionOf reads.
func positionFields(p stream.Position) bson.D {
	return bson.D{{Key: "applied", Value: p.At}, {Key: "mark", Value: p.Mark}}
}

// progress is what is saved with a position. Updates that were skipped at or
// before it are stored first: a restart does not meet them again.
func (f *follower) progress(ctx context.Context, p stream.Position) (bson.D, error) {
	set := positionFields(p)
	if list, version := f.eng.Skipped(); version != f.skipped {
		if err := f.j.store.SaveSkipped(ctx, documents(list)); err != nil {
			return nil, err
		}
		f.skipped = version
	}
	if f.refused && !p.At.Before(f.windowEnd) {
		set = append(set, bson.E{Key: "refused", Value: bson.A{}})
		f.refused = false
	}
	return set, nil
}

// existing is what becomes of collections of the target that the source is about
// to make. A target that was filled by other means may be ahead, and have them.
func (f *follower) existing(at mongo.OpTime) schema.Existing {
	ahead := f.job.Mode == string(ModeIncremental) && !f.job.Consistent.Before(at)
	switch {
	case ahead || f.j.spec.OnExisting == ExistingMerge:
		return schema.KeepExisting
	case f.j.spec.OnExisting == ExistingDrop:
		return schema.DropExisting
	}
	return schema.RefuseExisting
}

// schema applies one schema change after a durable note that it is about to
// happen: a restart finds the note and applies the change once more as one that
// may have happened. What comes after needs no note.
func (f *follower) schema(ctx context.Context, ev *stream.Event, before mongo.OpTime, last bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	failpoint.Hit("schema.before")
	pos := f.eng.Applied()
	o := schema.ApplyOptions{
		// After a restart the target is not ahead of a schema change: none is
		// passed without a checkpoint.
		Overlap: !f.job.Consistent.Before(ev.At), Maybe: f.intent == ev.At, Rules: f.j.rules, Existing: f.existing(ev.At), Names: f.j.names}
	if err := f.j.cat.MakeWay(ctx, *ev.Change, o); err != nil {
		return fmt.Errorf("%s of %s at %s: %w", ev.Change.Kind, ev.Change.NS, ev.At, err)
	}
	set, err := f.progress(ctx, pos)
	if err != nil {
		return err
	}
	if err := f.j.store.SaveDurably(ctx, append(set, bson.E{Key: "intent", Value: ev.At})); err != nil {
		return err
	}
	failpoint.Hit("schema.noted")
	var effect schema.Effect
	err = f.untangled(ctx, func() (err error) {
		effect, err = f.j.cat.Apply(ctx, *ev.Change, o)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s of %s at %s: %w", ev.Change.Kind, ev.Change.NS, ev.At, err)
	}
	failpoint.Hit("schema.after")
	f.moveNames(ev, effect)
	if err := f.j.keepNames(ctx, *ev.Change); err != nil {
		return err
	}
	if err := f.j.moveLetters(ctx, ev, effect); err != nil {
		return err
	}
	if effect.Resync != nil {
		if err := f.resync(ctx, ev, effect); err != nil {
			return err
		}
	}
	if !last {
		return nil
	}
	f.intent = mongo.OpTime{}
	if effect.Resync == nil {
		return nil
	}
	pos.At = ev.At // so that the copy is not made again
	if set, err = f.progress(ctx, pos); err != nil {
		return err
	}
	if err := f.j.store.Save(ctx, append(set, bson.E{Key: "intent", Value: mongo.OpTime{}})); err != nil {
		return err
	}
	f.saved = pos
	f.j.progress.setApplied(pos)
	return nil
}

// moveNames keeps what the engine knows by name true after a change.
func (f *follower) moveNames(ev *stream.Event, effect schema.Effect) {
	if ch := ev.Change; ch.Kind == stream.ChangeRename && effect.Applied && effect.Resync == nil {
		f.eng.Renamed(f.j.rules.Target(ch.NS), f.j.rules.Target(ch.To), ev.At)
		return
	}
	for _, ns := range effect.Dropped {
		f.eng.Renamed(ns, "", ev.At)
	}
}

// resync copies a collection that a rename brought inside the filter, as it is
// on the source now; until the tail has passed that moment the target is ahead.
func (f *follower) resync(ctx context.Context, ev *stream.Event, effect schema.Effect) error {
	j := f.j
	coll, found, err := j.findRenamed(ctx, ev.Change, ev.At)
	if err != nil {
		return err
	}
	if !found {
		return f.neverCame(ctx, ev, effect)
	}
	// Progress of an earlier copy of the same collection does not count: what
	// the target had of it is gone.
	if err := j.store.DropSlices(ctx, slicePrefix(uuidHex(*effect.Resync))); err != nil {
		return err
	}
	// What the copy reads must not be older than the rename.
	pos, err := j.committed(ctx, ev.At)
	if err != nil {
		return err
	}
	create := j.cat.CreateOurs
	if f.existing(ev.At) == schema.KeepExisting {
		create = j.cat.Create
	}
	if err := create(ctx, coll, effect.ResyncNS, j.rules); err != nil {
		return err
	}
	if err := j.runCopy(ctx, []copy.Task{j.task(coll, effect.ResyncNS)}, pos.Majority); err != nil {
		return err
	}
	if err := f.startCopied(ctx, effect); err != nil {
		return err
	}
	if err := j.cat.BuildIndexes(ctx, effect.ResyncNS, coll.Indexes, schema.BeforeConsistent); err != nil {
		return err
	}
	newest, err := j.newest(ctx)
	if err != nil {
		return err
	}
	f.windowEnd = mongo.MaxOpTime(f.windowEnd, newest)
	f.eng.SetOverlap(f.windowEnd)
	if f.phase == PhaseFollowing {
		f.phase = PhaseOverlap
	}
	if !f.finalAt.IsZero() {
		f.finalAt = mongo.MaxOpTime(f.finalAt, f.windowEnd)
	}
	f.job.Consistent = f.windowEnd
	return j.store.SaveDurably(ctx, bson.D{{Key: "consistent", Value: f.windowEnd}, {Key: "phase", Value: string(f.phase)}})
}

// startCopied has the events of a capped collection begin where its copy ends.
func (f *follower) startCopied(ctx context.Context, effect schema.Effect) error {
	at, err := f.j.copiedAt(ctx)
	if past, ok := at[uuidHex(*effect.Resync)]; ok {
		f.eng.StartCapped(effect.ResyncNS, mongosink.CappedStart{Past: past})
	}
	return err
}

// compareCatalogs notes how the target's collections, options and indexes
// differ from the source's.
func (j *Job) compareCatalogs(ctx context.Context) error {
	diffs, err := schema.Diff(ctx, j.src, j.dst, j.rules, schema.DiffOptions{Keep: j.keep})
	if err != nil {
		return err
	}
	var lines []string
	for _, d := range diffs {
		lines = append(lines, strings.TrimSpace(d.String()))
		j.log.Warn("target differs from the source", "difference", d.String())
	}
	j.progress.setDifferences(lines)
	return nil
}

// traits reads what restricts the applying of events to a target collection.
func (j *Job) traits(ctx context.Context, ns string) (mongosink.Traits, error) {
	db, coll := mongo.SplitNS(ns)
	specs, err := j.dst.Client.Database(db).ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: coll}})
	if err != nil || len(specs) == 0 {
		return mongosink.Traits{}, err
	}
	c := schema.Collection{NS: ns, Options: specs[0].Options}
	return mongosink.Traits{Capped: c.Capped(), Collated: c.Collated()}, nil
}
