package job

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/copy"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/wire"
)

// OnConflict says what becomes of a document that the target refuses.
type OnConflict = deadletter.Policy

// The policies for documents that the target refuses.
const (
	ConflictStop      = deadletter.Stop
	ConflictSkip      = deadletter.Skip
	ConflictOverwrite = deadletter.Overwrite
)

// mostAside bounds the documents that the copy sets aside when a conflict is to
// stop the job: some may be none, but so many are real.
const mostAside = 1000

// newApply makes the engine that applies changes, with what it needs to know
// about conflicts.
func (j *Job) newApply(pos stream.Position, o mongosink.Options) *mongosink.Engine {
	o.Sizes.Partitions, o.Names = j.spec.Partitions, mongosink.Names{Absent: j.absent, Traits: j.traits}
	o.Policy = mongosink.Policy{Overwrite: j.spec.OnExisting == ExistingMerge, OnConflict: j.spec.OnConflict, Letters: j.letters}
	o.Source = mongosink.Source{Reread: j.reread, Has: j.onSource}
	o.Write.Transactions, o.Write.SameTerm, o.Write.Gate = j.txn, j.store.SameTerm, j.dstGate
	o.Log, o.Limit = j.log, j.limit
	return mongosink.New(j.dst, pos, o)
}

// copyRefused decides about a document that the target refuses during the copy.
// A duplicate key is judged later: the document that holds the key may give it
// up when the changes made during the copy are applied.
func (j *Job) copyRefused(at mongo.OpTime) func(context.Context, copy.Refusal) (bool, error) {
	return func(ctx context.Context, r copy.Refusal) (bool, error) {
		l := deadletter.Letter{NS: r.Target, State: deadletter.Undecided, Cause: deadletter.CauseKey, DocID: r.ID, Doc: r.Doc, At: at,
			Reason: r.Message, Code: r.Code}
		stop := j.spec.OnConflict != ConflictSkip && j.spec.OnConflict != ConflictOverwrite
		if r.Code != mongo.CodeDuplicateKey {
			if stop {
				return false, nil
			}
			l.State, l.Cause = deadletter.Open, deadletter.CauseRefused
		} else {
			l.Index = docwrite.ParseDuplicate(r.Raw).Index()
			if stop && j.letters.Stats().Undecided >= mostAside {
				return false, nil
			}
		}
		isNew := !j.letters.Disputed(l.NS, l.DocID)
		if err := j.letters.Write(ctx, l); err != nil {
			return false, err
		}
		if isNew {
			j.log.Warn("the target refuses a document; it is set aside", "ns", l.NS, "_id", bsonraw.IDText(r.ID), "index", l.Index, "reason", r.Message,
				"in", mongo.StateDB+"."+deadletter.Collection)
		}
		return true, nil
	}
}

// onSource tells which documents of a collection the source has at a position
// or later.
func (j *Job) onSource(ctx context.Context, from mongosink.Origin, ids []bson.RawValue, at mongo.OpTime) ([]bool, error) {
	has := make([]bool, len(ids))
	db, uuid, err := j.identify(from)
	if err != nil {
		return nil, err
	}
	where := map[string]int{}
	for i, id := range ids {
		where[delta.KeyOf(bsonraw.FromRaw(id))] = i
	}
	conn, err := j.src.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	cur, err := conn.OpenCursor(ctx, db, bson.D{
		{Key: "find", Value: uuid}, {Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}},
		{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}, {Key: "afterClusterTime", Value: at.TS}}},
	}, wire.CursorOptions{})
	if mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
		return has, nil
	}
	if err != nil {
		return nil, err
	}
	for {
		b, err := cur.Next(ctx)
		if err != nil {
			return nil, err
		}
		err = b.Each(func(doc []byte) error {
			if i, ok := where[delta.KeyOf(bsonraw.IDOf(doc))]; ok {
				has[i] = true
			}
			return nil
		})
		if err != nil || b.Done {
			return has, err
		}
	}
}

// moveLetters has dead letters follow a schema change.
func (j *Job) moveLetters(ctx context.Context, ev *stream.Event, effect schema.Effect) error {
	ch := ev.Change
	if ch.Kind == stream.ChangeRename && effect.Applied && effect.Resync == nil && j.keep(ch.NS) && j.keep(ch.To) {
		return j.letters.Moved(ctx, j.rules.Target(ch.NS), j.rules.Target(ch.To), ev.At)
	}
	for _, ns := range effect.Dropped {
		db, coll := mongo.SplitNS(ns)
		if err := errors.Join(j.letters.Dropped(ctx, ns), j.letters.Dropped(ctx, db+"."+mongo.BucketsPrefix+coll)); err != nil {
			return err
		}
	}
	return nil
}

// decideAfterCopy judges what the copy of a standalone source has set aside:
// no changes follow that could settle it.
func (j *Job) decideAfterCopy(ctx context.Context) error {
	if err := j.loadNames(ctx); err != nil {
		return err
	}
	return j.newApply(stream.Position{}, mongosink.Options{}).Conclude(ctx)
}

func (j *Job) conflictStatus() ConflictStatus {
	s := j.letters.Stats()
	out := ConflictStatus{Policy: string(j.spec.OnConflict), Undecided: s.Undecided, Open: s.Open, Settled: s.Settled, Removed: s.Removed}
	if s != (deadletter.Stats{}) {
		out.Where = fmt.Sprintf("%s.%s on the target, job %q", mongo.StateDB, deadletter.Collection, j.id)
	}
	return out
}
