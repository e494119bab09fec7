package origin

import (
	"context"
	"slices"

	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/stream"
)

// Look calls fn for the events of collections within a span and for all schema changes
// in the order of cluster time, as oplog.Look does. Those of which the documents were
// only moved are left out; a schema change may come once a shard.
func (c *Sharded) Look(ctx context.Context, collections []string, span oplog.Span, fn func(*stream.Event) error) error {
	all, err := c.Cluster().Look(ctx, collections, span)
	if err != nil {
		return err
	}
	for i := range all {
		if err := fn(&all[i]); err != nil {
			return err
		}
	}
	return nil
}

// Full reports that a shard's oplog is full.
func (c *Sharded) Full(ctx context.Context) bool {
	return slices.ContainsFunc(c.Cluster().Shards, func(s shards.Shard) bool { return oplog.Full(ctx, s.Cluster) })
}
