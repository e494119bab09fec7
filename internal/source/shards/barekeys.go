package shards

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/shardkey"
	"github.com/millrace/millrace/internal/stream"
)

// maxLookup is the number of documents per find.
const maxLookup = 1000

// lacksKey reports a delete without the shard key of its document. Servers of 5.0 log only the _id for
// deletes of TTL indexes and others that no router sent. A shard without migrations has only its own
// documents.
func (f *ownerFilter) lacksKey(v ownership.View, c *ownership.Collection, ev *stream.Event) bool {
	return ev.Kind == stream.Delete && v.Migrated(c.NS, f.shard.Name) && lacksShardKey(c.Key, ev.Key.Shard)
}

// lacksShardKey reports a document key without shard key fields other than the _id.
func lacksShardKey(p shardkey.Pattern, key bson.Raw) bool {
	more := false
	for i := range p {
		if p[i].Path == "_id" {
			continue
		}
		if _, ok := bsonraw.Field(key, p[i].Path); ok {
			return false
		}
		more = true
	}
	return more
}

// lookUpKeys looks up the documents of a batch's deletes without shard key. One that its owner still
// has was an orphan on this shard.
func (f *ownerFilter) lookUpKeys(ctx context.Context, b *stream.Batch) error {
	clear(f.lookedUp)
	ids := map[*ownership.Collection]bson.A{}
	_ = f.history.Read(func(v ownership.View) error {
		for i := range b.Events {
			ev := &b.Events[i]
			if ev.Kind != stream.Delete || ev.UUID == nil || !f.resumedAt.Before(ev.At.TS) {
				continue
			}
			if c := v.Collection(*ev.UUID, ev.At.TS); c != nil && f.lacksKey(v, c, ev) {
				ids[c] = append(ids[c], bsonraw.RawValue(ev.Key.ID))
			}
		}
		return nil
	})
	for c, all := range ids {
		for part := range slices.Chunk(all, maxLookup) {
			if err := f.findKeys(ctx, c, part); err != nil {
				return fmt.Errorf("look up documents of %s that shard %s deleted: %w", c.NS, f.shard.Name, err)
			}
		}
	}
	return nil
}

func (f *ownerFilter) findKeys(ctx context.Context, c *ownership.Collection, ids bson.A) error {
	fields := bson.D{{Key: "_id", Value: 1}}
	for _, field := range c.Key {
		if field.Path != "_id" {
			fields = append(fields, bson.E{Key: field.Path, Value: 1})
		}
	}
	db, name := mongo.SplitNS(c.NS)
	cur, err := f.router.Client.Database(db).Collection(name).Find(ctx,
		bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}, options.Find().SetProjection(fields))
	var docs []bson.Raw
	if err == nil {
		err = cur.All(ctx, &docs)
	}
	for _, doc := range docs {
		id := string(bsonraw.AppendID(nil, bsonraw.IDOf(doc)))
		f.lookedUp[id] = append(f.lookedUp[id], doc)
	}
	return err
}

// isOrphan reports a delete without shard key of a document that another shard owned and still has. A
// document that no shard has is gone, whichever deleted it.
func (f *ownerFilter) isOrphan(c *ownership.Collection, ev *stream.Event) bool {
	for _, doc := range f.lookedUp[string(bsonraw.AppendID(nil, ev.Key.ID))] {
		if !c.Key.Of(&f.key, doc) {
			continue
		}
		switch c.Owners.At(f.key.Values, ev.At.TS) {
		case f.shard.Name, ownership.Any, ownership.Unknown:
		default:
			return true
		}
	}
	return false
}
