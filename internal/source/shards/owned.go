package shards

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/shardkey"
	"github.com/millrace/millrace/internal/stream"
)

// ownedSource is the source of a shard without what it tells of documents that it did
// not own. Servers before 6.0 write to such documents, where a chunk was or is about
// to be, when a user's write goes to all shards, and do not mark that.
type ownedSource struct {
	stream.Source
	shard  Shard
	record *record
	router *mongo.Cluster
	shards map[string]*mongo.Cluster
}

// Run implements stream.Source.
func (s *ownedSource) Run(ctx context.Context, pos stream.Position, emit func(context.Context, *stream.Batch) error) error {
	if err := s.record.since(ctx, pos.At.TS); err != nil {
		return err
	}
	j := &judge{record: s.record, shard: s.shard.Name, from: s.shard.Cluster, router: s.router, shards: s.shards, done: pos.At.TS,
		strays: map[string]*stray{}, found: map[string][]bson.Raw{}, over: map[*arrival]bool{}}
	if err := j.recall(ctx); err != nil {
		return err
	}
	return s.Source.Run(ctx, pos, j.through(emit))
}

// through gives what remains of the shard's batches to emit.
func (j *judge) through(emit func(context.Context, *stream.Batch) error) func(context.Context, *stream.Batch) error {
	return func(ctx context.Context, b *stream.Batch) error {
		if err := j.batch(ctx, b); err != nil {
			return err
		}
		return emit(ctx, b)
	}
}

// judge leaves out the events of documents that a shard did not own.
type judge struct {
	record *record
	shard  string
	from   *mongo.Cluster // the shard
	done   bson.Timestamp // what is at or before it comes again, and is passed over by others
	key    shardkey.Key
	strays map[string]*stray // by arrival and _id
	router *mongo.Cluster
	shards map[string]*mongo.Cluster // all of them
	found  map[string][]bson.Raw     // documents asked for, by _id
	over   map[*arrival]bool         // chunks that have come, and what became of their documents is told
	told   uint32                    // the second of which the record was told last
}

func (j *judge) batch(ctx context.Context, b *stream.Batch) error {
	if b.Start.TS.T >= j.told+60 {
		j.told = b.Start.TS.T
		j.record.done(j.shard, b.Start.TS)
	}
	newest := b.End.TS
	for i := range b.Events {
		if at := b.Events[i].At.TS; newest.Before(at) {
			newest = at
		}
	}
	if err := j.record.reach(ctx, newest); err != nil {
		return err
	}
	if err := j.ask(ctx, b); err != nil {
		return err
	}
	if err := j.owned(b); err != nil {
		return err
	}
	return j.settle(ctx, b, newest)
}

// owned keeps what the shard owned.
func (j *judge) owned(b *stream.Batch) error {
	j.record.mu.RLock()
	defer j.record.mu.RUnlock()
	kept := b.Events[:0]
	for i := range b.Events {
		mine, err := j.mine(&b.Events[i])
		if err != nil {
			return err
		}
		if mine {
			kept = append(kept, b.Events[i])
		}
	}
	clear(b.Events[len(kept):])
	b.Events = kept
	return nil
}

// mine reports an event of a document that the shard owned then.
func (j *judge) mine(ev *stream.Event) (bool, error) {
	if ev.Kind == stream.SchemaChange || ev.UUID == nil || !j.done.Before(ev.At.TS) {
		return true, nil
	}
	c := j.record.byUUID[*ev.UUID]
	if c == nil || !c.gone.IsZero() && c.gone.Before(ev.At.TS) {
		return true, nil // it is not sharded
	}
	if j.keyless(c, ev) {
		return !j.orphaned(c, ev), nil
	}
	var ok bool
	if ev.Key.Shard != nil {
		ok = c.key.OfDocumentKey(&j.key, ev.Key.Shard)
	} else {
		ok = c.key.Of(&j.key, ev.Doc)
	}
	if !ok {
		return false, fmt.Errorf("%s: %s of %s on shard %s has no shard key", ev.At, ev.Kind, bsonraw.IDText(ev.Key.ID), j.shard)
	}
	switch owner := c.held.owner(j.key.Values, ev.At.TS); owner {
	case j.shard, ownerAny:
		return true, nil
	case ownerUnknown:
		return false, mongo.WithHint(fmt.Errorf("%s: who owned %s of %s then is not known: neither the config servers' oplog nor their log of changes tells who gave its chunk away",
			ev.At, bsonraw.IDText(ev.Key.ID), ev.NS), "the collection has to be copied again")
	}
	return false, j.stray(c, ev)
}
