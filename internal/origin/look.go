package origin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/stream"
)

// mostLooked bounds the events that a Look puts in order.
const mostLooked = 256 << 20

// Look calls fn for the events of collections within a span and for all schema changes
// in the order of cluster time, as oplog.Look does. Those of which the documents were
// only moved are left out; a schema change may come once a shard.
func (c *Sharded) Look(ctx context.Context, collections []string, span oplog.Span, fn func(*stream.Event) error) error {
	var all []stream.Event
	left := mostLooked
	for _, s := range c.Cluster().Shards {
		look := oplog.Look{Cluster: s.Cluster, SkipMigrated: true, Collections: collections}
		err := look.Each(ctx, span, func(ev *stream.Event) error {
			if left -= len(ev.Doc) + len(ev.Key.ID.Data); left < 0 {
				return mongo.WithHint(errors.New("too much was written to capped collections since the last checkpoint"),
					"exclude them, or begin anew with --restart")
			}
			one := *ev
			one.Doc = slices.Clone(ev.Doc)
			one.Key.ID.Data = slices.Clone(ev.Key.ID.Data)
			all = append(all, one)
			return nil
		})
		if err != nil {
			return fmt.Errorf("shard %s: %w", s.Name, err)
		}
	}
	slices.SortStableFunc(all, func(a, b stream.Event) int { return a.At.Compare(b.At) })
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
