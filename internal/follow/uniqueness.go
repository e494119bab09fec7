package follow

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/sink/mongo/resolve"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// LeftOut keeps documents that the rules cannot map as dead letters. It implements
// transform.LeftOut.
type LeftOut struct {
	*deadletter.Store
	Stop bool // a document that is not left out already ends the job
	Log  *slog.Logger
}

// LeaveOut implements transform.LeftOut.
func (l LeftOut) LeaveOut(ctx context.Context, u transform.Unmapped) error {
	if l.Stop && !l.IsUnmapped(u.NS, u.ID) {
		return u.Err
	}
	isNew, err := l.Store.LeaveOut(ctx, deadletter.Letter{Origin: u.Origin, DocID: u.ID, Doc: u.Doc, At: u.At,
		Until: u.Until, Reason: u.Reason})
	if isNew && err == nil {
		l.Log.Warn("document left out: the rules cannot map it", "ns", u.Source,
			"documentId", bsonraw.IDText(u.ID), "position", u.At, "reason", u.Reason,
			"in", mongo.StateDB+"."+deadletter.Collection)
	}
	return err
}

// Leaves returns the keeper of documents that the rules cannot map, nil if they end the job. Documents
// that an earlier run left out are always kept.
func Leaves(letters *deadletter.Store, policy deadletter.Policy, log *slog.Logger) transform.LeftOut {
	stop := policy != deadletter.Skip && policy != deadletter.Overwrite
	if stop && !letters.AnyUnmapped() {
		return nil
	}
	return LeftOut{letters, stop, log}
}

// mostDuplicates bounds the duplicate keys of one index build, each of which costs a scan.
const mostDuplicates = 1000

// mostUnclear bounds how often the job returns to its checkpoint because it cannot determine which of
// two documents is wrong.
const mostUnclear = 5

// partialError reports documents that violate an index which the source may have on some shards only.
type partialError struct {
	index schema.IndexName
	error
}

// Unwrap gives what the target, or the policy on conflicts, has said.
func (p *partialError) Unwrap() error { return p.error }

// buildDeferred builds the deferred indexes. Shards of a source build indexes one by one, and some may
// fail where others succeed. An index that fails stays deferred until a shard reports it again or
// until finalize, which gives it up.
func (f *follower) buildDeferred(ctx context.Context) error {
	var held []schema.IndexName
	for {
		err := f.untangled(ctx, func() error { return f.Schema.Indexes.BuildDeferred(ctx, held...) })
		var partial *partialError
		if err == nil || !errors.As(err, &partial) || slices.Contains(held, partial.index) {
			return err
		}
		held = append(held, partial.index)
		log := f.Log.With("ns", partial.index.NS, "index", partial.index.Name, "reason", partial.error)
		if f.finalAt.IsZero() {
			log.Warn("index not built: documents of a source shard without the index violate it")
			continue
		}
		log.Warn("index given up: documents of a source shard without the index violate it")
		if err := f.Schema.Deferred.GiveUp(ctx, partial.index); err != nil {
			return err
		}
	}
}

// applyChange applies a schema change. An index that documents of the target violate is deferred if
// shards of the source may still be building it.
func (f *follower) applyChange(ctx context.Context, ch stream.Change, o schema.ApplyOptions) (effect schema.Effect,
	err error) {
	if !f.Parts {
		err = f.untangled(ctx, func() (err error) {
			effect, err = f.Schema.Changes.Apply(ctx, ch, o)
			return err
		})
		return effect, err
	}
	effect, err = f.Schema.Changes.Apply(ctx, ch, o)
	if !schema.IsRefused(err) || o.Overlap {
		return effect, err
	}
	newest, qerr := f.Source.Newest(ctx)
	if qerr == nil {
		qerr = f.overlapUntil(ctx, newest)
	}
	if qerr != nil {
		return effect, qerr
	}
	f.Log.Info("index deferred: documents of the target still violate it, and shards build it one by one",
		"ns", ch.NS, "until", newest, "reason", err)
	o.Overlap = true
	return f.Schema.Changes.Apply(ctx, ch, o)
}

// untangled runs build, which builds unique indexes on the drained target, again after each
// duplicate key that the policy on conflicts resolves.
func (f *follower) untangled(ctx context.Context, build func() error) error {
	for n := 0; ; n++ {
		err := build()
		var ic *schema.IndexConflict
		if err == nil || !errors.As(err, &ic) || n == mostDuplicates {
			return err
		}
		if err := f.untangle(ctx, ic, err); err != nil {
			return err
		}
	}
}

// untangle resolves a duplicate key of an index build, or returns why it cannot. failure is the
// conflict with its hint.
func (f *follower) untangle(ctx context.Context, ic *schema.IndexConflict, failure error) error {
	var dup docwrite.Duplicate
	if ce, ok := errors.AsType[driver.CommandError](ic.Err); ok && mongo.Classify(ic.Err) == mongo.ClassDuplicate {
		dup = docwrite.ParseDuplicate(ce.Raw)
	}
	spec := refusing(ic, dup)
	if spec == nil || dup.Index() == "" && !f.Parts {
		return failure
	}
	name, _ := spec.Lookup("name").StringValueOK()
	partial := &partialError{schema.IndexName{NS: mongo.SeriesNS(ic.NS), Name: name}, failure}
	if dup.Index() == "" {
		return partial
	}
	const some = 100
	docs, err := dup.Holders(ctx, f.Target, docwrite.Holding{NS: ic.NS, Spec: spec, Most: some})
	if err == nil && len(docs) < 2 {
		docs, err = f.Schema.Indexes.Duplicates(ctx, ic.NS, spec)
	}
	if err != nil {
		return err
	}
	err = f.sink.Untangle(ctx, resolve.Clash{NS: ic.NS, Index: name, Docs: docs, Reason: ic.Error(), Partial: f.Parts})
	var conflict *resolve.ConflictError
	switch {
	case !errors.As(err, &conflict):
	case conflict.Sourced:
		partial.error = err
		return partial
	case conflict.Undecided && f.Source.unclear < mostUnclear:
		// Restarted from the checkpoint, the job first catches up with the source.
		f.Source.unclear++
		return mongo.Retry("decide the conflict after a restart from the checkpoint", err, "")
	}
	return err
}

// refusing returns the specification of the violated index; nil if the server does not say which of
// several it is.
func refusing(ic *schema.IndexConflict, dup docwrite.Duplicate) bson.Raw {
	for _, s := range ic.Specs {
		if name, _ := s.Lookup("name").StringValueOK(); name == dup.Index() || dup.Index() == "" && len(ic.Specs) == 1 {
			return s
		}
	}
	return nil
}
