package follow

import (
	"context"
	"errors"
	"slices"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
)

// neverCame notes that a collection which a rename brought inside the filter is
// gone from the source already: until its drop comes, nothing is applied to it.
func (f *follower) neverCame(ctx context.Context, ev *stream.Event, effect schema.Effect) error {
	there, err := f.Schema.Catalog.Has(ctx, effect.ResyncNS)
	if err != nil {
		return err
	}
	if there && f.mayBeCut(ev) {
		return nil // the target has what was copied of it, or what others have filled
	}
	f.Log.Info("the renamed collection is gone from the source; what is left until its drop is skipped",
		"ns", ev.Change.To, "position", ev.At)
	one, _ := f.Source.Names.Source(ev.Change.To)
	one.Gone = true
	if one.Copied, err = f.Source.Newest(ctx); err != nil {
		return err
	}
	f.Source.Names.Change(schema.NameChange{Put: []schema.Name{one}})
	return nil
}

// noteNames stores what a schema change has done to the names, as they are now.
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

// moveNames keeps true after a schema change what the engine and the dead letters
// know by name.
func (f *follower) moveNames(ctx context.Context, ev *stream.Event, effect schema.Effect) error {
	ch := ev.Change
	renamed := ch.Kind == stream.ChangeRename && effect.Applied && effect.Resync == nil
	if renamed {
		from, to := f.Rules.Target(ch.NS), ""
		if f.Rules.Match(ch.To) {
			to = f.Rules.Target(ch.To)
		}
		f.sink.Renamed(from, to, ev.At)
		if f.Rules.Match(ch.NS) && f.Rules.Match(ch.To) {
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

// applyOptions are the conditions under which a schema change is applied.
func (f *follower) applyOptions(ev *stream.Event) schema.ApplyOptions {
	// After a restart the target is not ahead of a schema change, for none is passed
	// without a checkpoint; but for what was read for rules (putIndexesOff), and where
	// others filled it.
	return schema.ApplyOptions{Overlap: !f.job.Consistent.Before(ev.At), Cut: f.mayBeCut(ev), Ahead: f.filledAhead(ev.At),
		Recorded: f.job.Copied.Before(ev.At),
		Maybe:    f.intent == ev.At, Before: f.job.Before, Rules: f.Rules, Existing: f.existing(ev.At), Names: f.Source.Names,
		MixedSchema: f.MixedSchema}
}

// filledAhead reports that others filled the target, which may be ahead of a position.
func (f *follower) filledAhead(at mongo.OpTime) bool {
	return f.job.Mode == state.ModeIncremental && !f.copied().Before(at)
}

// mayBeCut reports that the target may lack documents of the collection that a change
// ends or renames: its copy ended with what the source gave up.
func (f *follower) mayBeCut(ev *stream.Event) bool {
	return slices.ContainsFunc([]string{ev.Change.NS, ev.Change.From, ev.Change.To},
		func(ns string) bool { return !f.CopyEnd(ns).Before(ev.At) })
}

// CopyEnd is the end of the last copy of a source namespace.
func (f *follower) CopyEnd(ns string) mongo.OpTime {
	one, _ := f.Source.Names.Source(ns)
	return mongo.MaxOpTime(f.copied(), one.Copied)
}

// copied is the end of the copy that the job began with, or of what others filled the
// target with. Jobs of older versions did not note it.
func (f *follower) copied() mongo.OpTime {
	if f.job.Copied.IsZero() {
		return f.job.Consistent
	}
	return f.job.Copied
}

// existing is what becomes of collections of the target that the source is about
// to make. A target that others filled may have them.
func (f *follower) existing(at mongo.OpTime) schema.Existing {
	switch {
	case f.filledAhead(at) || f.OnExisting == state.ExistingMerge:
		return schema.KeepExisting
	case f.OnExisting == state.ExistingDrop:
		return schema.DropExisting
	}
	return schema.RefuseExisting
}
