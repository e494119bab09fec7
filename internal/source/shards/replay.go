package shards

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/shardkey"
	"github.com/millrace/millrace/internal/source/lookup"
	"github.com/millrace/millrace/internal/stream"
)

// dropDonorDeletes finds documents that are gone because the donor deleted them. The stream has emitted
// that delete, and maybe later events of another document with that _id.
func (f *ownerFilter) dropDonorDeletes(ctx context.Context, all []*orphanWrite, r *replay, at bson.Timestamp) error {
	onDonor := &replay{docs: map[string]*docState{}, key: r.key, migration: r.migration}
	var gone []*orphanWrite
	for _, w := range all {
		if d := r.docs[w.id.String()]; d.donated != nil && d.present == nil && d.known {
			gone = append(gone, w)
			onDonor.docs[w.id.String()] = &docState{donated: d.donated, present: d.donated}
		}
	}
	donor := f.shards[r.migration.From]
	if len(gone) == 0 || donor == nil {
		return nil
	}
	exists := bson.D{{Key: "$exists", Value: true}}
	filter := bson.D{between(r.migration.Start, at), {Key: "$or", Value: bson.A{
		writesTo(gone), bson.D{{Key: "op", Value: "c"}, {Key: "o.applyOps", Value: exists}},
		bson.D{{Key: "op", Value: "c"}, {Key: "o.commitTransaction", Value: exists}},
	}}}
	err := ownership.EachEntry(ctx, donor, filter, at, func(e bson.Raw) error {
		ops, err := committedOps(ctx, donor, e)
		for _, one := range ops {
			onDonor.applyDonor(one)
		}
		return err
	})
	for id, d := range onDonor.docs {
		if d.present == nil {
			r.docs[id].donated = nil
		}
	}
	return mongo.Wrap(err, "shard %s, which had them before", r.migration.From)
}

// committedOps returns the operations that take effect with an entry: its own, or those of the
// transaction that it commits, including earlier entries.
func committedOps(ctx context.Context, c *mongo.Cluster, raw bson.Raw) (all []bson.Raw, err error) {
	for _, flag := range []string{"prepare", "partialTxn"} { // take effect with a later entry
		if set, _ := raw.Lookup("o", flag).BooleanOK(); set {
			return nil, nil
		}
	}
	for {
		e := ownership.ParseEntry(raw)
		if _, commits := bsonraw.Field(e.O, "commitTransaction"); !commits {
			ops, err := ownership.Operations(raw)
			if err != nil {
				return nil, err
			}
			all = slices.Concat(ops, all)
			if e.Op != "c" {
				return all, nil // retryable writes also have a prevOpTime
			}
		}
		t, i, ok := raw.Lookup("prevOpTime", "ts").TimestampOK()
		if !ok || t == 0 {
			return all, nil
		}
		raw, err = c.Oplog().FindOne(ctx, bson.D{{Key: "ts", Value: bson.Timestamp{T: t, I: i}}}).Raw()
		if err != nil {
			return nil, fmt.Errorf("read the entry %d.%d of a transaction: %w", t, i, err)
		}
	}
}

// applyDonor applies an operation of the donor. Only whether the donor still has the document of the
// chunk counts; it may have another one with the same _id.
func (r *replay) applyDonor(op bson.Raw) {
	e := ownership.ParseEntry(op)
	d := r.docs[e.Key().Lookup("_id").String()]
	if d == nil {
		return
	}
	here := e.Op == "i" && r.contains(e.O)
	if e.Op == "u" {
		now := e.O
		if !e.Replaces() {
			var err error
			if now, err = applyUpdate(r.keyOnly(e.O2), e.O); err != nil {
				now = nil
			}
		}
		here = now == nil && !r.isElsewhere(e.O2) || now != nil && r.contains(now)
	}
	if d.present = nil; here {
		d.present = d.donated
	}
}

func (r *replay) keyOnly(key bson.Raw) bson.Raw {
	doc := bson.D{}
	for i := range r.key {
		if e, ok := bsonraw.Field(key, r.key[i].Path); ok {
			doc = setPath(doc, strings.Split(r.key[i].Path, "."), bson.RawValue{Type: e.Type, Value: e.Value})
		}
	}
	raw, err := bson.Marshal(doc)
	if err != nil {
		panic(err) // values that were read can be marshaled
	}
	return raw
}

func setPath(doc bson.D, path []string, v bson.RawValue) bson.D {
	i := slices.IndexFunc(doc, func(e bson.E) bool { return e.Key == path[0] })
	if i < 0 {
		i, doc = len(doc), append(doc, bson.E{Key: path[0]})
	}
	if len(path) == 1 {
		doc[i].Value = v
		return doc
	}
	in, _ := doc[i].Value.(bson.D)
	doc[i].Value = setPath(in, path[1:], v)
	return doc
}

// finalEvents returns events with the final state of orphan writes when their chunk has arrived.
func (f *ownerFilter) finalEvents(ctx context.Context, all []*orphanWrite,
	chunk *arrivedChunk) ([]stream.Event, error) {
	at, m := chunk.at, all[0].migration
	r := &replay{docs: map[string]*docState{}, key: chunk.key, migration: m}
	for _, w := range all {
		r.docs[w.id.String()] = &docState{}
	}
	err := ownership.EachEntry(ctx, f.shard.Cluster, append(writesTo(all), between(m.Start, at)), at, r.apply)
	if err == nil {
		err = f.dropDonorDeletes(ctx, all, r, at)
	}
	if err == nil {
		err = f.readUnknown(ctx, all, r, at)
	}
	if err != nil {
		return nil, err
	}
	var events []stream.Event
	for _, w := range all {
		d := r.docs[w.id.String()]
		ev := stream.Event{Kind: stream.Replace, NS: w.ns, UUID: &w.uuid, Doc: d.present, At: mongo.OpTime{TS: at, Term: -1},
			Key: stream.Key{ID: bsonraw.FromRaw(w.id), Shard: w.key}}
		switch {
		case d.present == nil && d.donated == nil:
			continue
		case d.present == nil:
			ev.Kind = stream.Delete
		case d.donated == nil || w.lost:
			ev.Kind = stream.Put
		}
		events = append(events, ev)
	}
	return events, nil
}

// writesTo matches entries of documents outside transactions.
func writesTo(all []*orphanWrite) bson.D {
	var ids bson.A
	for _, w := range all {
		ids = append(ids, w.id)
	}
	in := bson.D{{Key: "$in", Value: ids}}
	return bson.D{
		{Key: "ui", Value: bson.Binary{Subtype: 4, Data: all[0].uuid[:]}},
		{Key: "$or", Value: bson.A{bson.D{{Key: "o._id", Value: in}}, bson.D{{Key: "o2._id", Value: in}}}},
	}
}

// docState is a document of a moving chunk, as donated and as present on the recipient.
type docState struct {
	donated, present bson.Raw
	known            bool // from the oplog; else the document may be an orphan from before the migration
}

// replay determines the documents of a moving chunk.
type replay struct {
	docs      map[string]*docState // by _id
	key       shardkey.Pattern
	migration *ownership.Migration
	scratch   shardkey.Key
}

// apply applies an entry of the recipient's oplog. The recipient has one document per _id at a time:
// that of the chunk, or one with another shard key. Orphans of an earlier stay of the chunk are deleted
// before the donor's documents arrive.
func (r *replay) apply(raw bson.Raw) error {
	e := ownership.ParseEntry(raw)
	id := e.Key().Lookup("_id")
	d := r.docs[id.String()]
	if d == nil {
		return nil
	}
	switch {
	case e.Op == "d", e.Op == "u" && r.isElsewhere(e.O2), e.Op == "i" && !r.contains(e.O):
		d.present, d.known = nil, true
	case e.Op == "i", e.Replaces():
		d.present, d.known = e.O, true
	case e.Op == "u" && d.present == nil:
		d.known = false
	case e.Op == "u":
		var err error
		if d.present, err = applyUpdate(d.present, e.O); err != nil {
			return fmt.Errorf("replay of %s: %w", id, err)
		}
	}
	if donated, _ := raw.Lookup("fromMigrate").BooleanOK(); donated {
		d.donated = d.present
	}
	return nil
}

// isElsewhere reports a document key outside the chunk. A key with only an _id may be inside.
func (r *replay) isElsewhere(key bson.Raw) bool {
	named := slices.ContainsFunc(r.key, func(f shardkey.Field) bool {
		_, ok := bsonraw.Field(key, f.Path)
		return ok
	})
	return named && r.key.OfDocumentKey(&r.scratch, key) && !r.migration.Contains(r.scratch.Values)
}

func (r *replay) contains(doc bson.Raw) bool {
	return r.key.Of(&r.scratch, doc) && r.migration.Contains(r.scratch.Values)
}

func applyUpdate(doc, o bson.Raw) (bson.Raw, error) {
	change, err := delta.ParseAs(delta.KindOf(o), o)
	if err != nil {
		return nil, err
	}
	out, _, err := delta.Apply(nil, doc, change)
	return out, err
}

// readUnknown reads documents that the oplog does not contain from the router: unknown orphans that
// became valid with the chunk. The result may be newer; later changes are applied to it.
func (f *ownerFilter) readUnknown(ctx context.Context, all []*orphanWrite, r *replay, at bson.Timestamp) error {
	var ids []bson.RawValue
	for _, w := range all {
		if !r.docs[w.id.String()].known {
			ids = append(ids, w.id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	db, name := mongo.SplitNS(r.migration.NS)
	docs, err := lookup.Find(ctx, f.router, lookup.Collection{DB: db, Name: name},
		lookup.Question{IDs: ids, At: mongo.OpTime{TS: at, Term: -1}})
	if err != nil {
		return fmt.Errorf("read documents again: %w", err)
	}
	for i, doc := range docs {
		if doc != nil && r.contains(doc) {
			d := r.docs[ids[i].String()]
			d.donated, d.present = nil, doc
		}
	}
	return nil
}
