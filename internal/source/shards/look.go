package shards

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
)

const (
	maxLookBytes = 256 << 20 // of the events that a Look sorts
	changeSize   = 512       // approximate size of a schema change in memory, in bytes
)

// Look returns the events of collections within a span, and all schema changes, in the order of the
// stream, as oplog.Look does. It omits chunk moves; a schema change may appear once per shard, with
// the shard's name.
func (c *Cluster) Look(ctx context.Context, collections []string, span oplog.Span) (all []stream.Event, err error) {
	left := maxLookBytes
	for _, s := range c.Shards {
		ctx, end, err := c.withClusterTime(ctx, s.Cluster, span.Until) // it may not know that time
		if err != nil {
			return nil, err
		}
		look := oplog.Look{Cluster: s.Cluster, SkipMigrated: true, Collections: collections}
		err = look.Each(ctx, span, func(ev *stream.Event) error {
			left -= len(ev.Doc) + len(ev.Key.ID.Data)
			one := *ev
			one.Doc = slices.Clone(ev.Doc)
			one.Key.ID.Data = slices.Clone(ev.Key.ID.Data)
			if ch := one.Change; ch != nil {
				left -= changeSize + len(ch.Options)
				ch.Shard, ch.UUID.Data = s.Name, slices.Clone(ch.UUID.Data)
			}
			if left < 0 {
				return mongo.WithHint(errors.New(
					"too many writes to capped collections, or schema changes, since the last checkpoint"),
					"exclude them, or start again with --restart")
			}
			all = append(all, one)
			return nil
		})
		end()
		if err != nil {
			return nil, fmt.Errorf("shard %s: %w", s.Name, err)
		}
	}
	slices.SortStableFunc(all, func(a, b stream.Event) int { return a.At.Compare(b.At) })
	return all, nil
}
