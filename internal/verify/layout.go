package verify

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/source/shards"
)

// layout is how a side is read in the order of its storage. Each scan gives every
// document that is there all the time.
type layout interface {
	scan(ctx context.Context, readers int, begin func() reading) error
}

// layout finds out where a side's documents are, and parts them for so many readers.
func (s *side) layout(ctx context.Context, readers int) (layout, error) {
	if of := s.e.shards[s.i].Load(); of != nil && s.exists {
		l, err := s.onShards(ctx, of, readers)
		return l, s.e.unread(s.i, err)
	}
	parts, err := s.slices(ctx, min(readers, s.readers()))
	return &slicing{side: s, parts: parts}, err
}

// slicing is slices that are read one by one.
type slicing struct {
	*side
	parts []scan.Slice
}

func (l *slicing) scan(ctx context.Context, readers int, begin func() reading) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for _, sl := range l.parts {
		g.Go(func() error { return l.scanSlice(ctx, sl, begin()) })
	}
	return g.Wait()
}

// onShards is the layout of a collection whose shards are read directly.
func (s *side) onShards(ctx context.Context, of *origin.Sharded, readers int) (layout, error) {
	now, err := s.e.describe(ctx, s.i, s.NS)
	now.chosen, now.mapped = s.chosen, s.mapped
	if err != nil || !now.exists {
		return &slicing{side: &now, parts: []scan.Slice{{Strategy: scan.Serial}}}, err
	}
	table, err := of.Table(ctx, now.uuid)
	switch {
	case mongo.IsCode(err, mongo.CodeNamespaceNotFound):
		return now.onOneShard(ctx, of, readers)
	case err != nil:
		return nil, err
	}
	l := &owned{side: now, of: of, readers: readers, cuts: map[string][]scan.Slice{}}
	return l, l.cut(ctx, table)
}

// shard is what one shard has of the side, or owns of it; its estimates are those of an
// even share. The shard is asked by UUID: what movePrimary has dropped is not taken for
// an empty collection.
func (s *side) shard(on *shards.Shard, owned *ownership.Filter, of int) *side {
	one := *s
	one.on, one.owned, one.UUID = on, owned, s.uuid
	one.Bytes, one.Count = s.Bytes/int64(of), s.Count/int64(of)
	return &one
}

// onOneShard is the layout of a collection that is not sharded: its database's own
// shard has all of it.
func (s *side) onOneShard(ctx context.Context, of *origin.Sharded, readers int) (layout, error) {
	db, _ := mongo.SplitNS(s.NS)
	primary, err := ownership.Primary(ctx, s.e.clusters[s.i], db, ownership.Majority())
	if err != nil {
		return nil, fmt.Errorf("find the shard of database %s: %w", db, err)
	}
	if primary == "" {
		return nil, mongo.Retry("database "+db+" has been dropped", nil, "")
	}
	on, err := shardNamed(of, primary)
	if err != nil {
		return nil, err
	}
	l := &unsharded{slicing{side: s.shard(on, nil, 1)}, of}
	l.parts, err = l.slices(ctx, min(readers, l.readers()))
	return l, l.gone(err)
}

func shardNamed(of *origin.Sharded, name string) (*shards.Shard, error) {
	i := slices.IndexFunc(of.Cluster().Shards, func(s shards.Shard) bool { return s.Name == name })
	if i < 0 {
		return nil, errUnread{fmt.Errorf("shard %s has joined meanwhile", name)}
	}
	return &of.Cluster().Shards[i], nil
}

// unsharded is a collection that is not sharded, on its database's own shard.
type unsharded struct {
	slicing
	of *origin.Sharded
}

// scan reads the collection and then makes sure that it is not sharded. If it has been
// sharded meanwhile, chunks may have left the shard before they were read. If its
// database moves, the copy that is read here is complete until it is dropped, which is
// an error.
func (l *unsharded) scan(ctx context.Context, readers int, begin func() reading) error {
	if err := l.slicing.scan(ctx, readers, begin); err != nil {
		return l.e.unread(l.i, l.gone(err))
	}
	now, err := l.e.describe(ctx, l.i, l.NS)
	if err != nil {
		return err
	}
	_, err = l.of.Table(ctx, l.uuid)
	if mongo.IsCode(err, mongo.CodeNamespaceNotFound) && now.exists {
		return nil
	}
	if err == nil || mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
		err = mongo.Retry(l.NS+" was sharded or dropped while it was read", nil, "")
	}
	return err
}

// gone has a collection that is not on its shard any more looked for again.
func (l *unsharded) gone(err error) error {
	if mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
		return mongo.Retry(l.NS+" is not on shard "+l.on.Name+" any more", err, "")
	}
	return err
}
