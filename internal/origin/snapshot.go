package origin

import (
	"context"
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/stream"
)

// Snapshot lists the catalog in scope exactly as of a position from which a Stream may begin,
// perhaps in the middle of a movePrimary.
func (c *Sharded) Snapshot(ctx context.Context, scope schema.Scope) (snap schema.Snapshot, from stream.Position,
	err error) {
	of := c.Cluster()
	servers := []*mongo.Cluster{of.Router}
	for _, s := range of.Shards {
		servers = append(servers, s.Cluster)
	}
	terms := make([]int64, len(of.Shards))
	ends := make([]mongo.OpTime, len(of.Shards))
	snap, err = schema.TakeSnapshotOf(ctx, servers, scope, schema.History{
		Before: func(ctx context.Context) (mongo.OpTime, error) {
			err := of.Each(ctx, func(ctx context.Context, i int) error {
				if terms[i] != 0 {
					return nil
				}
				p, err := of.Shards[i].Positions(ctx)
				terms[i] = p.Last.Term
				return err
			})
			if err == nil {
				from, err = of.Start(ctx)
			}
			if err == nil {
				err = of.CheckSameShards(ctx, from.At)
			}
			return from.At, err
		},
		After: func(ctx context.Context) (latest mongo.OpTime, err error) {
			err = of.Each(ctx, func(ctx context.Context, i int) (err error) {
				if ends[i], err = of.CommittedSeen(ctx, of.Shards[i]); err == nil && ends[i].Term != terms[i] {
					err = mongo.Retry(fmt.Sprintf("shard %s has elected another primary", of.Shards[i].Name), nil, "")
				}
				return err
			})
			return slices.MaxFunc(ends, mongo.OpTime.Compare), err
		},
		// Until is what After returned, or the position, which all shards have passed.
		Changes: func(ctx context.Context, after, until mongo.OpTime, fn func(*stream.Change, mongo.OpTime) error) error {
			for i, s := range of.Shards {
				end := until
				if until != from.At {
					end = ends[i]
				}
				if !after.Before(end) {
					continue
				}
				if err := oplog.Changes(s.Cluster)(ctx, after, end, fn); err != nil {
					return fmt.Errorf("shard %s: %w", s.Name, err)
				}
			}
			return nil
		},
	})
	if err == nil {
		from = of.WithCopies(from, copiesOf(snap.Collections, snap.Others))
	}
	return snap, from, err
}

// copiesOf returns additional collections of the same names on shards: copies that movePrimary
// makes, or their originals, which are about to be dropped.
func copiesOf(there []schema.Collection, held [][]schema.Collection) (copies []shards.Copy) {
	names := map[string][16]byte{}
	for _, c := range there {
		if id, ok := ownership.ParseUUID(c.UUID); ok {
			names[c.NS] = id
		}
	}
	for _, all := range held {
		for _, c := range all {
			id, ok := ownership.ParseUUID(c.UUID)
			if of, known := names[c.NS]; ok && known && of != id {
				copies = append(copies, shards.Copy{NS: c.NS, ID: id, Of: of})
			}
		}
	}
	return copies
}
