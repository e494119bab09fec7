package origin

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/stream"
)

// Places reads which collections are sharded, and where the others are.
func (c *Sharded) Places(ctx context.Context) (*ownership.Places, error) {
	return ownership.ReadPlaces(ctx, c.router())
}

// Table reads the table of the collection with a UUID. See ownership.ReadTable.
func (c *Sharded) Table(ctx context.Context, uuid bson.Binary) (*ownership.Table, error) {
	return ownership.ReadTable(ctx, c.router(), c.Cluster().Shards[0].Info.Version, uuid)
}

// Owned makes a shard return only what it owns of the collection with a UUID.
func (c *Sharded) Owned(shard string, uuid bson.Binary) *ownership.Filter {
	return ownership.NewFilter(func(ctx context.Context) (v ownership.Version, err error) {
		t, err := c.Table(ctx, uuid)
		if err == nil {
			v = t.Version(shard)
		}
		return v, err
	})
}

func (c *Sharded) primary(ctx context.Context, db string) (string, error) {
	shard, err := ownership.Primary(ctx, c.router(), db, ownership.Majority())
	return shard, mongo.Wrap(err, "find the shard of database %s", db)
}

// Missing returns the indexes of collections that are not where they belong under their UUIDs:
// sharded ones on any shard, others on their database's. The shard from which movePrimary has moved
// one keeps it until it drops it, perhaps never, and it gets no changes there.
func (c *Sharded) Missing(ctx context.Context, of []schema.Collection) (missing []int, err error) {
	places, err := c.Places(ctx)
	if err != nil {
		return nil, err
	}
	var dbs []string
	for _, one := range of {
		db, _ := mongo.SplitNS(one.NS)
		dbs = append(dbs, db)
	}
	slices.Sort(dbs)
	dbs = slices.Compact(dbs)
	all := c.Cluster()
	held := make(map[string]map[[16]byte]bool, len(all.Shards))
	for _, s := range all.Shards {
		held[s.Name] = map[[16]byte]bool{}
	}
	err = all.Each(ctx, func(ctx context.Context, i int) error {
		uuids, err := schema.UUIDs(ctx, all.Shards[i].Cluster, dbs)
		for _, u := range uuids {
			if id, ok := ownership.ParseUUID(u); ok {
				held[all.Shards[i].Name][id] = true
			}
		}
		return err
	})
	for i, one := range of {
		db, _ := mongo.SplitNS(one.NS)
		if !places.Has(db, one.UUID, held) {
			missing = append(missing, i)
		}
	}
	return missing, err
}

// Present finds an unsharded collection: its UUID, which movePrimary changes, and its shard, "" if
// it is now sharded. False means that it was dropped, which the changes report.
func (c *Sharded) Present(ctx context.Context, was schema.Collection) (now bson.Binary, shard string, there bool,
	err error) {
	db, _ := mongo.SplitNS(was.NS)
	now = was.UUID
	there, err = c.seek(ctx, db, was.UUID, func(one bson.Binary) (found bool, err error) {
		if shard, found, err = c.at(ctx, db, one); found {
			now = one
		}
		return found, err
	})
	return now, shard, there, err
}

func (c *Sharded) at(ctx context.Context, db string, uuid bson.Binary) (shard string, there bool, err error) {
	if ns, err := ownership.Name(ctx, c.router(), uuid); ns != "" || err != nil {
		return "", ns != "", err
	}
	home, err := c.primary(ctx, db)
	if err != nil {
		return "", false, err
	}
	for _, s := range c.Cluster().Shards {
		if home != "" && s.Name != home {
			continue
		}
		if _, found, err := schema.ListOne(ctx, s.Cluster, db, uuid); found || err != nil {
			return s.Name, found, mongo.Wrap(err, "shard %s", s.Name)
		}
	}
	return "", false, nil
}

// Stands returns those of the sharded collections, by UUID in hex. at is a position before now.
func (c *Sharded) Stands(ctx context.Context, at mongo.OpTime, of []bson.Binary) (map[string]ownership.Stand, error) {
	places, err := c.Places(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]ownership.Stand{}
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for _, uuid := range of {
		if !places.Sharded(uuid) {
			continue
		}
		g.Go(func() error {
			t, err := c.Table(ctx, uuid)
			if mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
				return nil
			}
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			all[hex.EncodeToString(uuid.Data)] = t.Stand(at)
			return nil
		})
	}
	return all, g.Wait()
}

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

// copiesOf finds copies that movePrimary makes, or their originals, about to be dropped.
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
