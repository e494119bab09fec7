package follow

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/schema"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
)

func (f *follower) schemaChange(ctx context.Context, ev *stream.Event, _ mongo.OpTime, last bool) error {
	return f.step(progress.StepSchema, ev.Change.NS, string(ev.Change.Kind), func() error {
		return f.schema(ctx, ev, last)
	})
}

func (f *follower) step(kind progress.Step, name, what string, do func() error) error {
	end := f.Progress.Begin(kind, name, what)
	err := do()
	end(err)
	return err
}

// schema applies a schema change after it has stored the intent durably. After a restart the change is
// applied again as one that may have happened.
func (f *follower) schema(ctx context.Context, ev *stream.Event, last bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	failpoint.Hit("schema.before")
	if !f.Parts { // from shards, a collection moves with its database under another UUID
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
	// Stored last: shards no longer report a change that the names contain.
	names := f.Source.Names.After(*ev.Change, f.Rules)
	names.Retain(ev.At, f.CopyEnd(ev.Change.NS))
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
	if !ev.At.Before(f.intent) { // else an earlier change than the intended one, done again
		f.intent = mongo.OpTime{}
	}
	if effect.Resync == nil {
		return nil
	}
	// Past the change, so that the copy is not made again.
	return f.store(ctx, pos.Past(ev), func(set bson.D) error {
		return f.Store.Save(ctx, append(set, bson.E{Key: "intent", Value: mongo.OpTime{}}))
	})
}

func (f *follower) applyOptions(ev *stream.Event) schema.ApplyOptions {
	// After a restart the target is not ahead of a schema change, since each is passed with a
	// checkpoint. Exceptions are documents that were read for rules (putIndexesOff) and targets that
	// others filled.
	return schema.ApplyOptions{Overlap: !f.job.Consistent.Before(ev.At), Cut: f.mayBeCut(ev), Ahead: f.filledAhead(ev.At),
		Recorded: f.job.Copied.Before(ev.At),
		Maybe:    f.intent == ev.At, Before: f.job.Before, Rules: f.Rules, Existing: f.existing(ev.At), Names: f.Source.Names,
		MixedSchema: f.MixedSchema}
}

// existing decides about target collections that the source creates. A target that others filled may
// contain them.
func (f *follower) existing(at mongo.OpTime) schema.Existing {
	switch {
	case f.filledAhead(at) || f.OnExisting == state.ExistingMerge:
		return schema.KeepExisting
	case f.OnExisting == state.ExistingDrop:
		return schema.DropExisting
	}
	return schema.RefuseExisting
}

// filledAhead reports whether others filled the target, which may be ahead of a position.
func (f *follower) filledAhead(at mongo.OpTime) bool {
	return f.job.Mode == state.ModeIncremental && !f.job.Copied.Before(at)
}

// mayBeCut reports whether the target may lack documents of the collection that a change drops or
// renames: the change interrupted its copy.
func (f *follower) mayBeCut(ev *stream.Event) bool {
	return slices.ContainsFunc([]string{ev.Change.NS, ev.Change.From, ev.Change.To},
		func(ns string) bool { return !f.CopyEnd(ns).Before(ev.At) })
}

// CopyEnd is the end of the last copy of a source namespace.
func (f *follower) CopyEnd(ns string) mongo.OpTime {
	one, _ := f.Source.Names.Source(ns)
	end := mongo.MaxOpTime(f.job.Copied, one.Copied)
	for _, other := range f.Source.Names.Retentions(ns) {
		end = mongo.MaxOpTime(end, other.Until)
	}
	return end
}

func (f *follower) moveNames(ctx context.Context, ev *stream.Event, effect schema.Effect) error {
	ch := ev.Change
	renamed := ch.Kind == stream.ChangeRename && effect.Applied && effect.Resync == nil
	if renamed {
		from, to := f.Rules.Target(ch.NS), ""
		stays := f.Rules.Match(ch.To)
		if stays {
			to = f.Rules.Target(ch.To)
		}
		f.sink.Renamed(from, to, ev.At)
		if stays && f.Rules.Match(ch.NS) {
			return f.Letters.Moved(ctx, from, to, ev.At)
		}
	}
	for _, ns := range effect.Dropped {
		if !renamed {
			f.sink.Renamed(ns, "", ev.At)
		}
		db, coll := mongo.SplitNS(ns)
		if err := errors.Join(f.Letters.Dropped(ctx, ns),
			f.Letters.Dropped(ctx, db+"."+mongo.BucketsPrefix+coll)); err != nil {
			return err
		}
	}
	return nil
}

func (f *follower) endRetained(ctx context.Context) error {
	f.stage.ForgetRetained()
	names := f.Source.Names.EndRetained()
	f.Source.Names.Change(names)
	return f.noteNames(ctx, names)
}

func (f *follower) noteNames(ctx context.Context, change schema.NameChange) error {
	if change.IsZero() {
		return nil
	}
	now := schema.NameChange{Removed: change.Removed}
	for _, one := range change.Put {
		if there, ok := f.Source.Names.Source(one.NS); ok {
			one = there
		}
		now.Put = append(now.Put, one)
	}
	return f.Store.NoteNames(ctx, now)
}

// resync copies the present state of a collection that a rename brought inside the filter. The target
// is ahead until the stream has passed the copy.
func (f *follower) resync(ctx context.Context, ev *stream.Event, effect schema.Effect) error {
	coll, found, err := f.Source.FindRenamed(ctx, ev.Change, ev.At)
	if err != nil {
		return err
	}
	if !found {
		return f.neverCame(ctx, ev, effect)
	}
	if ev.Change.Kind == stream.ChangeRename {
		coll.NS = ev.Change.To // the name that filters apply to; it may have changed again
	}
	if f.Rules.Route(coll.NS).History {
		return mongo.WithHint(fmt.Errorf("cannot copy %s again: it was renamed to %s, which keeps history, during the copy, "+
			"and its documents would begin twice", ev.Change.NS, coll.NS),
			"start the job again with --restart")
	}
	if err := schema.CheckCollection(coll, f.Rules); err != nil {
		return err
	}
	if coll, _, err = schema.Mapped(coll, f.Rules); err != nil {
		return err
	}
	// The copy must not be older than the rename.
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

// startCopied skips the events of a capped collection that its copy contains.
func (f *follower) startCopied(ctx context.Context, effect schema.Effect) error {
	at, _, err := f.copiedAt(ctx)
	if past, ok := at[hex.EncodeToString(effect.Resync.Data)]; ok {
		f.sink.StartCapped(effect.ResyncNS, mongosink.CappedStart{Past: past})
	}
	return err
}

// neverCame marks a collection that a rename brought inside the filter as gone from the source already:
// nothing is applied to it up to its drop.
func (f *follower) neverCame(ctx context.Context, ev *stream.Event, effect schema.Effect) error {
	there, err := f.Schema.Catalog.Has(ctx, effect.ResyncNS)
	if err != nil {
		return err
	}
	if there && f.mayBeCut(ev) {
		return nil // the target keeps what was copied or filled
	}
	f.Log.Info("the source has dropped the renamed collection; skipping its changes until the drop",
		"ns", ev.Change.To, "position", ev.At)
	one, _ := f.Source.Names.Source(ev.Change.To)
	one.Gone = true
	if one.Copied, err = f.Source.Newest(ctx); err != nil {
		return err
	}
	f.Source.Names.Change(schema.NameChange{Put: []schema.Name{one}})
	return nil
}

// join moves the documents of a target collection into the one that remained under its new name.
// It copies within the target: the source may have changed or dropped them since.
func (f *follower) join(ctx context.Context, ev *stream.Event, effect schema.Effect, overlap bool) error {
	phase := schema.Consistent
	if overlap {
		phase = schema.BeforeConsistent
	}
	f.Log.Info("documents come into a collection that was left", "from", effect.Join.NS, "to", effect.JoinNS,
		"position", ev.At)
	err := f.Job.CopyWithin(ctx, *effect.Join, effect.JoinNS)
	if err == nil {
		failpoint.Hit("join.copied")
		err = f.untangled(ctx, func() error { return f.Schema.Changes.TakeOver(ctx, effect.Join.NS, effect.JoinNS, phase) })
	}
	if err != nil {
		return fmt.Errorf("%s of %s at %s: documents come into %s, which was left on the target: %w", ev.Change.Kind,
			ev.Change.NS, ev.At, effect.JoinNS, err)
	}
	return nil
}

// putIndexesOff defers an index build until the target is consistent if documents were read for
// rules after the index was created. They may have keys that other documents have not released yet.
// After a restart the overlap tells how far documents may have been read.
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
