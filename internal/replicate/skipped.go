package replicate

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/apply"
	"github.com/millrace/millrace/internal/catalog"
	"github.com/millrace/millrace/internal/checkpoint"
	"github.com/millrace/millrace/internal/deadletter"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
)

// skips are documents that updates inside the window did not find on the
// target. Mostly a later change deletes them. What no change has explained when the
// window ends was taken away by something else, as a TTL index does, and is read
// again from the source.
type skips struct {
	store *checkpoint.Store
	any   atomic.Bool
}

// note remembers documents; called by the engine's partitions.
func (s *skips) note(ctx context.Context, from apply.Origin, ids []bsoncore.Value) error {
	if from.UUID == nil {
		return nil // a user's applyOps: which collection it was cannot be told
	}
	list := make([]checkpoint.Skipped, len(ids))
	for i, id := range ids {
		list[i] = checkpoint.Skipped{Source: from.Source, UUID: *from.UUID, ID: id}
	}
	if err := s.store.NoteSkipped(ctx, list); err != nil {
		return err
	}
	s.any.Store(true)
	return nil
}

// openSkips finds out whether an earlier run remembered any.
func (f *follower) openSkips(ctx context.Context) error {
	f.skips = &skips{store: f.j.store}
	list, err := f.j.store.LoadSkipped(ctx, 1)
	f.skips.any.Store(len(list) > 0)
	return err
}

// explainSkips looks at the documents remembered, once the window has ended.
func (f *follower) explainSkips(ctx context.Context, end mongo.OpTime) error {
	if !f.skips.any.Load() || end.Before(mongo.MaxOpTime(f.job.Consistent, f.windowEnd)) {
		return nil
	}
	if err := f.eng.Drain(ctx); err != nil {
		return err
	}
	f.skips.any.Store(false) // nothing of the window is under way any more
	const some = 200
	for {
		list, err := f.j.store.LoadSkipped(ctx, some)
		if err != nil || len(list) == 0 {
			return err
		}
		byUUID := map[[16]byte][]checkpoint.Skipped{}
		for _, k := range list {
			byUUID[k.UUID] = append(byUUID[k.UUID], k)
		}
		for _, of := range byUUID {
			if err := f.explain(ctx, of); err != nil {
				return err
			}
		}
		if err := f.j.store.ForgetSkipped(ctx, list); err != nil {
			return err
		}
	}
}

// explain looks at documents of one collection.
func (f *follower) explain(ctx context.Context, list []checkpoint.Skipped) error {
	j := f.j
	name, ok := j.names.ByUUID(list[0].UUID[:])
	if !ok {
		// Of a target that was filled by other means the UUIDs may not be known.
		db, coll := mongo.SplitNS(list[0].Source)
		name, ok = j.names.Source(db + "." + strings.TrimPrefix(coll, mongo.BucketsPrefix))
		ok = ok && len(name.UUID.Data) == 0
	}
	if !ok || name.Gone {
		return nil // the collection is gone, or left the filter
	}
	target := catalog.Collection{NS: name.Target, Type: name.Type}.DataNS()
	absent, err := j.notOn(ctx, target, list)
	if err != nil || len(absent) == 0 {
		return err
	}
	return j.readAgain(ctx, target, absent, f.eng.Applied().Applied)
}

func idsOf(list []checkpoint.Skipped) bson.A {
	ids := make(bson.A, len(list))
	for i, k := range list {
		ids[i] = bson.RawValue{Type: bson.Type(k.ID.Type), Value: k.ID.Data}
	}
	return ids
}

func keyOf(id bsoncore.Value) string { return string(delta.AppendKey(nil, id)) }

// notOn returns the documents that are not on the target.
func (j *Job) notOn(ctx context.Context, ns string, list []checkpoint.Skipped) (out []checkpoint.Skipped, err error) {
	db, coll := mongo.SplitNS(ns)
	there := map[string]bool{}
	cur, err := j.dst.Client.Database(db).RunCommandCursor(ctx, bson.D{{Key: "find", Value: coll},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: idsOf(list)}}}}}, {Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}}})
	if err == nil {
		defer cur.Close(ctx)
		for cur.Next(ctx) {
			v := cur.Current.Lookup("_id")
			there[keyOf(bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value})] = true
		}
		err = cur.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("look for documents of %s on the target: %w", ns, err)
	}
	for _, k := range list {
		if !there[keyOf(k.ID)] {
			out = append(out, k)
		}
	}
	return out, nil
}

// readAgain reads documents of one collection from the source. Those that it has
// are written when the target has caught up with what was read; what deletes
// them, or inserts them again, meets them there.
func (j *Job) readAgain(ctx context.Context, target string, list []checkpoint.Skipped, at mongo.OpTime) error {
	before, err := j.committed(ctx, at)
	if err != nil {
		return err
	}
	from := mongo.MaxOpTime(before.Majority, at)
	n := 0
	_, err = j.certain(ctx, at, func(ctx context.Context) (bool, error) {
		err := j.eachByUUID(ctx, list, from, func(doc bson.Raw) error {
			n++
			return j.writeAgain(ctx, target, list[0], doc, from)
		})
		if mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
			return false, nil // its drop follows
		}
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("read documents of %s from the source: %w", target, err)
	}
	if n > 0 {
		j.log.Warn("documents are not on the target though the source has them; they are read from there again", "ns", target, "documents", n,
			"position", from, "in", mongo.StateDB+"."+deadletter.Collection)
	}
	return nil
}

// writeAgain has a document of the source written once the target has caught up.
func (j *Job) writeAgain(ctx context.Context, target string, of checkpoint.Skipped, doc bson.Raw, from mongo.OpTime) error {
	after, err := j.src.Positions(ctx)
	if err != nil {
		return err
	}
	v := doc.Lookup("_id")
	l := deadletter.Letter{NS: target, State: deadletter.Undecided, Cause: deadletter.CauseMissing,
		DocID: bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value}, Doc: doc, At: from, Until: after.Last, Source: of.Source, UUID: &of.UUID,
		Reason: "an update did not find it on the target, and no later change explains that: something else removed it, a TTL index perhaps; it was read from the source again"}
	if j.letters.Disputed(l.NS, l.DocID) {
		return nil // its letter knows the source's state
	}
	return j.letters.Write(ctx, l)
}

// eachByUUID reads documents in a committed state at or after a position.
func (j *Job) eachByUUID(ctx context.Context, list []checkpoint.Skipped, at mongo.OpTime, f func(bson.Raw) error) error {
	db, _ := mongo.SplitNS(list[0].Source)
	cur, err := j.src.Client.Database(db).RunCommandCursor(ctx, bson.D{
		{Key: "find", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: list[0].UUID[:]}},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: idsOf(list)}}}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}, {Key: "afterClusterTime", Value: at.TS}}},
	})
	if err != nil {
		return err
	}
	defer cur.Close(ctx)
	for cur.Next(ctx) {
		if err := f(cur.Current); err != nil {
			return err
		}
	}
	return cur.Err()
}
