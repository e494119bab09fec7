package shards

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/shardkey"
	"github.com/millrace/millrace/internal/stream"
)

// filteredSource is the source of a shard without the events of documents that it did not own. A user's
// write may go to all shards. Then servers before 6.0 also write to documents of a chunk that was on the
// shard, or is about to be, without a mark.
type filteredSource struct {
	stream.Source
	shard   Shard
	history *ownership.History
	router  *mongo.Cluster
	shards  map[string]*mongo.Cluster
}

// Run implements stream.Source.
func (s *filteredSource) Run(ctx context.Context, pos stream.Position, emit emitFunc) error {
	if err := s.history.Load(ctx, pos.At.TS); err != nil {
		return err
	}
	f := &ownerFilter{filteredSource: s, resumedAt: pos.At.TS, orphans: map[string]*orphanWrite{},
		lookedUp: map[string][]bson.Raw{}, settled: map[*ownership.Migration]bool{}}
	if err := f.restore(ctx); err != nil {
		return err
	}
	return s.Source.Run(ctx, pos, func(ctx context.Context, b *stream.Batch) error {
		if err := f.batch(ctx, b); err != nil {
			return err
		}
		return emit(ctx, b)
	})
}

// ownerFilter leaves out the events of documents that a shard did not own.
type ownerFilter struct {
	*filteredSource
	resumedAt  bson.Timestamp // events up to here are read again, and skipped elsewhere
	key        shardkey.Key
	orphans    map[string]*orphanWrite       // by migration and _id
	lookedUp   map[string][]bson.Raw         // documents, by _id
	settled    map[*ownership.Migration]bool // their orphan writes were emitted
	reportedAt uint32                        // second of the last report to the history
}

func (f *ownerFilter) batch(ctx context.Context, b *stream.Batch) error {
	if b.Start.TS.T >= f.reportedAt+60 {
		f.reportedAt = b.Start.TS.T
		f.history.Passed(f.shard.Name, b.Start.TS)
	}
	newest := b.End.TS
	for i := range b.Events {
		if at := b.Events[i].At.TS; newest.Before(at) {
			newest = at
		}
	}
	if err := f.history.ReadUntil(ctx, newest); err != nil {
		return err
	}
	if err := f.lookUpKeys(ctx, b); err != nil {
		return err
	}
	err := f.history.Read(func(v ownership.View) error { return f.keepOwned(v, b) })
	if err != nil {
		return err
	}
	return f.settle(ctx, b, newest)
}

// keepOwned keeps what the shard owned.
func (f *ownerFilter) keepOwned(v ownership.View, b *stream.Batch) error {
	kept := b.Events[:0]
	for i := range b.Events {
		owned, err := f.isOwned(v, &b.Events[i])
		if err != nil {
			return err
		}
		if owned {
			kept = append(kept, b.Events[i])
		}
	}
	clear(b.Events[len(kept):])
	b.Events = kept
	return nil
}

// isOwned reports whether the shard owned the document of an event.
func (f *ownerFilter) isOwned(v ownership.View, ev *stream.Event) (bool, error) {
	if ev.Kind == stream.SchemaChange || ev.UUID == nil || !f.resumedAt.Before(ev.At.TS) {
		return true, nil
	}
	c := v.Collection(*ev.UUID, ev.At.TS)
	if c == nil {
		return true, nil // not sharded
	}
	if f.lacksKey(v, c, ev) {
		return !f.isOrphan(c, ev), nil
	}
	var ok bool
	if ev.Key.Shard != nil {
		ok = c.Key.OfDocumentKey(&f.key, ev.Key.Shard)
	} else {
		ok = c.Key.Of(&f.key, ev.Doc)
	}
	if !ok {
		return false, fmt.Errorf("%s: %s of %s on shard %s has no shard key", ev.At, ev.Kind, bsonraw.IDText(ev.Key.ID),
			f.shard.Name)
	}
	switch owner := c.Owners.At(f.key.Values, ev.At.TS); owner {
	case f.shard.Name, ownership.Any:
		return true, nil
	case ownership.Unknown:
		return false, mongo.WithHint(fmt.Errorf("%s: unknown owner of %s of %s: neither the config servers' oplog nor "+
			"config.changelog names the donor of its chunk",
			ev.At, bsonraw.IDText(ev.Key.ID), ev.NS), "copy the collection again")
	}
	return false, f.remember(v, c, ev)
}
