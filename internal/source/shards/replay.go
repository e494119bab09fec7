package shards

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/shardkey"
	"github.com/millrace/millrace/internal/source/lookup"
	"github.com/millrace/millrace/internal/stream"
)

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

// contains reports a document of the chunk.
func (r *replay) contains(doc bson.Raw) bool {
	return r.key.Of(&r.scratch, doc) && r.migration.Contains(r.scratch.Values)
}

// applyUpdate is a document after an update.
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
