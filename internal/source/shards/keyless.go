package shards

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/shardkey"
	"github.com/millrace/millrace/internal/stream"
)

// mostAsked is how many documents are asked for at once.
const mostAsked = 1000

// keyless reports a delete that does not say which shard key its document had: 5.0
// tells the _id alone of what a TTL index deletes, and of other deletes that no router
// sent. A shard without migrations has no documents but its own.
func (j *judge) keyless(c *collection, ev *stream.Event) bool {
	if ev.Kind != stream.Delete || !j.record.touched[c.ns+" "+j.shard] {
		return false
	}
	return bare(c.key, ev.Key.Shard)
}

// bare reports a document key that lacks the shard key, and is not the shard key.
func bare(p shardkey.Pattern, key bson.Raw) bool {
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

// ask finds out who has the documents of a batch's deletes that tell no shard key. One
// that its owner still has was an orphan to another shard.
func (j *judge) ask(ctx context.Context, b *stream.Batch) error {
	clear(j.found)
	asked := map[*collection]bson.A{}
	j.record.mu.RLock()
	for i := range b.Events {
		ev := &b.Events[i]
		if ev.Kind != stream.Delete || ev.UUID == nil || !j.done.Before(ev.At.TS) {
			continue
		}
		if c := j.record.byUUID[*ev.UUID]; c != nil && j.keyless(c, ev) {
			asked[c] = append(asked[c], bsonraw.RawValue(ev.Key.ID))
		}
	}
	j.record.mu.RUnlock()
	for c, ids := range asked {
		for part := range slices.Chunk(ids, mostAsked) {
			if err := j.lookup(ctx, c, part); err != nil {
				return fmt.Errorf("ask who has documents of %s that shard %s deleted: %w", c.ns, j.shard, err)
			}
		}
	}
	return nil
}

func (j *judge) lookup(ctx context.Context, c *collection, ids bson.A) error {
	fields := bson.D{{Key: "_id", Value: 1}}
	for _, f := range c.key {
		if f.Path != "_id" {
			fields = append(fields, bson.E{Key: f.Path, Value: 1})
		}
	}
	db, name := mongo.SplitNS(c.ns)
	cur, err := j.router.Client.Database(db).Collection(name).Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}, options.Find().SetProjection(fields))
	if err != nil {
		return err
	}
	defer func() { _ = cur.Close(context.WithoutCancel(ctx)) }()
	for cur.Next(ctx) {
		id := string(bsonraw.AppendID(nil, bsonraw.IDOf(cur.Current)))
		j.found[id] = append(j.found[id], slices.Clone(cur.Current))
	}
	return cur.Err()
}

// orphaned reports a delete without shard key of a document that another shard owned
// then, and has still. One that nobody has is gone in the end, whoever deleted it last.
func (j *judge) orphaned(c *collection, ev *stream.Event) bool {
	for _, doc := range j.found[string(bsonraw.AppendID(nil, ev.Key.ID))] {
		if !c.key.Of(&j.key, doc) {
			continue
		}
		if owner := c.held.owner(j.key.Values, ev.At.TS); owner != j.shard && owner != ownerAny && owner != ownerUnknown {
			return true
		}
	}
	return false
}
