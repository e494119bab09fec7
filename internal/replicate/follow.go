package replicate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/apply"
	"github.com/millrace/millrace/internal/catalog"
	"github.com/millrace/millrace/internal/checkpoint"
	"github.com/millrace/millrace/internal/copy"
	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/tail"
)

// follower is one run of continuous replication, from a durable checkpoint
// until something ends it. Its methods run on the tail's emitting goroutine,
// except checkpoints.
type follower struct {
	j   *Job
	job checkpoint.Job // as loaded; phase and positions of this run below
	eng *apply.Engine
	src tail.Source

	phase     Phase
	windowEnd mongo.OpTime
	intent    mongo.OpTime // a schema change that may have been applied before the restart
	finalAt   mongo.OpTime // where finalize drains to; zero: not asked

	mu    sync.Mutex    // orders saves of positions
	saved tail.Position // last position saved
}

func (j *Job) follow(ctx context.Context, job checkpoint.Job) error {
	f := &follower{j: j, job: job, phase: Phase(job.Phase), intent: job.Intent}
	if f.phase == PhaseFinalizing { // the wish survives a restart
		j.control.finalize.Store(true)
	}
	if err := f.openWindow(ctx); err != nil {
		return err
	}
	capped, err := j.cappedStarts(ctx, job.Applied, f.windowEnd)
	if err != nil {
		return err
	}
	pos := tail.Position{Applied: job.Applied, ReadFrom: job.ReadFrom}
	f.saved = pos
	failpoint.Hit("window.after")
	f.eng = j.newApply(pos, apply.Options{Schema: f.schema, WindowEnd: f.windowEnd, CappedStarts: capped})
	f.src = tail.NewOplog(j.src, tail.OplogOptions{Keep: j.keep, Log: j.log, Spool: j.spooler.handOver(), Drained: j.spooler.stop})
	j.state.setFollow(f.eng, f.src)
	return f.run(ctx, pos)
}

// openWindow sets until where the target may be ahead: the end of the copy,
// and after a restart whatever the earlier process may have applied, which
// cannot lie beyond what the source has now.
func (f *follower) openWindow(ctx context.Context) error {
	fresh := f.job.Applied == f.job.Start && f.job.WindowEnd.IsZero() && f.job.Intent.IsZero()
	f.windowEnd = f.job.Consistent
	if !fresh {
		pos, err := f.j.src.Positions(ctx)
		if err != nil {
			return err
		}
		f.windowEnd = mongo.MaxOpTime(f.windowEnd, pos.Last)
	}
	return f.j.store.Save(ctx, bson.D{{Key: "windowEnd", Value: f.windowEnd}})
}

func (f *follower) run(ctx context.Context, pos tail.Position) error {
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
func (f *follower) emit(ctx context.Context, b *tail.Batch) error {
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
	if err := f.untangled(ctx, func() error { return f.j.cat.BuildHeld(ctx) }); err != nil {
		return err
	}
	f.phase = PhaseFollowing
	f.j.log.Info("target is consistent; following the source", "position", f.eng.Applied().Applied)
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
		pos, err := f.j.src.Positions(ctx)
		if err != nil {
			return err
		}
		failpoint.Hit("final.after")
		f.finalAt = pos.Last
	}
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
	if err := f.untangled(ctx, func() error { return f.j.cat.BuildHeld(ctx) }); err != nil {
		return err
	}
	if err := f.j.cat.RestoreTTL(ctx); err != nil {
		return err
	}
	if err := f.j.compareCatalogs(ctx); err != nil {
		return err
	}
	if err := f.j.savePhase(ctx, PhaseFinalized); err != nil {
		return err
	}
	f.j.log.Info("finalized", "position", f.eng.Applied().Applied)
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
	if err := f.j.store.Save(ctx, positions(pos)); err != nil {
		return err
	}
	f.saved = pos
	f.j.state.setApplied(pos.Applied, pos.ReadFrom)
	return f.j.spooler.passed(pos.ReadFrom)
}

func positions(p tail.Position) bson.D {
	return bson.D{{Key: "applied", Value: p.Applied}, {Key: "readFrom", Value: p.ReadFrom}}
}

// existing is what becomes of collections of the target that the source is about
// to make. A target that was filled by other means may be ahead, and have them.
func (f *follower) existing(at mongo.OpTime) catalog.Existing {
	ahead := f.job.Mode == string(ModeIncremental) && !f.job.Consistent.Before(at)
	switch {
	case ahead || f.j.spec.OnExisting == ExistingMerge:
		return catalog.KeepExisting
	case f.j.spec.OnExisting == ExistingDrop:
		return catalog.DropExisting
	}
	return catalog.RefuseExisting
}

// schema applies one schema change after a note that it is about to happen.
// The note precedes it in the target's history, so no failover loses the one
// without the other, and needs no majority. Nor does what follows: a restart
// finds the note and applies the change once more as one that may have
// happened.
func (f *follower) schema(ctx context.Context, ev *tail.Event, before mongo.OpTime, last bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.j.concerns(ev.Change) {
		return nil
	}
	failpoint.Hit("schema.before")
	pos := f.eng.Applied()
	if err := f.j.store.Note(ctx, append(positions(pos), bson.E{Key: "intent", Value: ev.At})); err != nil {
		return err
	}
	failpoint.Hit("schema.noted")
	maybe := f.intent == ev.At
	var effect catalog.Effect
	err := f.untangled(ctx, func() (err error) {
		effect, err = f.j.cat.Apply(ctx, *ev.Change, catalog.ApplyOptions{
			// After a restart the target is not ahead of a schema change: none is
			// passed without a checkpoint.
			Window: !f.job.Consistent.Before(ev.At), Maybe: maybe, Rules: f.j.rules, Existing: f.existing(ev.At)})
		return err
	})
	if err != nil {
		return fmt.Errorf("%s of %s at %s: %w", ev.Change.Kind, ev.Change.NS, ev.At, err)
	}
	failpoint.Hit("schema.after")
	f.moveNames(ev.Change, effect)
	if err := f.j.moveLetters(ctx, ev, effect); err != nil {
		return err
	}
	if effect.Resync != nil {
		if err := f.resync(ctx, effect); err != nil {
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
	pos.Applied = ev.At // so that the copy is not made again
	if err := f.j.store.Save(ctx, append(positions(pos), bson.E{Key: "intent", Value: mongo.OpTime{}})); err != nil {
		return err
	}
	f.saved = pos
	f.j.state.setApplied(pos.Applied, pos.ReadFrom)
	return nil
}

// moveNames keeps what the engine knows by name true after a change.
func (f *follower) moveNames(ch *catalog.Change, effect catalog.Effect) {
	if ch.Kind == catalog.ChangeRename && effect.Applied && effect.Resync == nil {
		f.eng.Renamed(f.j.rules.Target(ch.NS), f.j.rules.Target(ch.To))
		return
	}
	for _, ns := range effect.Dropped {
		f.eng.Renamed(ns, "")
	}
}

// concerns reports whether a schema change can touch anything that is kept.
func (j *Job) concerns(ch *catalog.Change) bool {
	db, _ := mongo.SplitNS(ch.NS)
	to, _ := mongo.SplitNS(ch.To)
	return j.rules.MatchDB(db) || to != "" && j.rules.MatchDB(to)
}

// resync copies a collection that a rename brought inside the filter, as it is
// on the source now; until the tail has passed that moment the target is ahead.
func (f *follower) resync(ctx context.Context, effect catalog.Effect) error {
	j := f.j
	coll, found, err := catalog.ListOne(ctx, j.src, *effect.Resync)
	if err != nil {
		return err
	}
	if !found {
		j.log.Info("the renamed collection is gone from the source; its drop follows", "target", effect.ResyncNS)
		return nil
	}
	// Progress of an earlier copy of the same collection does not count: what
	// the target had of it is gone.
	if err := j.store.DropSlices(ctx, slicePrefix(uuidHex(*effect.Resync))); err != nil {
		return err
	}
	pos, err := j.src.Positions(ctx)
	if err != nil {
		return err
	}
	if err := j.cat.Create(ctx, coll, effect.ResyncNS, j.rules); err != nil {
		return err
	}
	if err := j.runCopy(ctx, []copy.Task{j.task(coll, effect.ResyncNS)}, pos.Majority); err != nil {
		return err
	}
	if err := j.cat.BuildIndexes(ctx, effect.ResyncNS, coll.Indexes, catalog.BeforeConsistent); err != nil {
		return err
	}
	if pos, err = j.src.Positions(ctx); err != nil {
		return err
	}
	f.windowEnd = mongo.MaxOpTime(f.windowEnd, pos.Last)
	f.eng.SetWindow(f.windowEnd)
	if f.phase == PhaseFollowing {
		f.phase = PhaseOverlap
	}
	if !f.finalAt.IsZero() {
		f.finalAt = mongo.MaxOpTime(f.finalAt, f.windowEnd)
	}
	f.job.Consistent = f.windowEnd
	return j.store.Save(ctx, bson.D{{Key: "windowEnd", Value: f.windowEnd}, {Key: "consistent", Value: f.windowEnd},
		{Key: "phase", Value: string(f.phase)}})
}

// compareCatalogs notes how the target's collections, options and indexes
// differ from the source's.
func (j *Job) compareCatalogs(ctx context.Context) error {
	diffs, err := catalog.Diff(ctx, j.src, j.dst, j.keep, j.rules, catalog.DiffOptions{})
	if err != nil {
		return err
	}
	var lines []string
	for _, d := range diffs {
		lines = append(lines, strings.TrimSpace(d.String()))
		j.log.Warn("target differs from the source", "difference", d.String())
	}
	j.state.setDifferences(lines)
	return nil
}

// traits reads what restricts the applying of events to a target collection.
func (j *Job) traits(ctx context.Context, ns string) (apply.Traits, error) {
	db, coll := mongo.SplitNS(ns)
	specs, err := j.dst.Client.Database(db).ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: coll}})
	if err != nil || len(specs) == 0 {
		return apply.Traits{}, err
	}
	c := catalog.Collection{NS: ns, Options: specs[0].Options}
	return apply.Traits{Capped: c.Capped(), Collated: c.Collated()}, nil
}
