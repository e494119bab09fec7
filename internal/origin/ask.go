package origin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/lookup"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// Newest is a position that no write acknowledged before is behind, on any shard. ns is
// a namespace that the user may read.
func (c *Sharded) Newest(ctx context.Context, ns string) (mongo.OpTime, error) {
	of := c.Cluster()
	at, err := of.Latest(ctx, func(ctx context.Context, s shards.Shard) (mongo.OpTime, error) { return s.Newest(ctx, ns) })
	if err == nil {
		err = of.CheckShards(ctx, at)
	}
	return at, err
}

// Positions are those of the shard that is ahead of the others.
func (c *Sharded) Positions(ctx context.Context) (mongo.Positions, error) {
	of := c.Cluster()
	all := make([]mongo.Positions, len(of.Shards))
	err := of.Each(ctx, func(ctx context.Context, i int) (err error) {
		all[i], err = of.Shards[i].Positions(ctx)
		return err
	})
	p := slices.MaxFunc(all, func(a, b mongo.Positions) int { return a.Last.Compare(b.Last) })
	for _, one := range all {
		p.Majority = mongo.MaxOpTime(p.Majority, one.Majority)
	}
	p.Last.Term, p.Majority.Term = -1, -1
	return p, err
}

// Reached waits until every shard has committed all up to a position, and passed it:
// what a shard writes later has a later one.
func (c *Sharded) Reached(ctx context.Context, at mongo.OpTime) (mongo.Positions, error) {
	of := c.Cluster()
	if err := of.Each(ctx, func(ctx context.Context, i int) error { return of.Pass(ctx, of.Shards[i], at) }); err != nil {
		return mongo.Positions{}, err
	}
	p, err := c.Positions(ctx)
	p.Majority = mongo.OpTime{TS: at.TS, Term: -1}
	return p, err
}

// Window reads what the oplogs of all shards hold. One that reaches back to its set's beginning holds what came
// before, too: nothing.
func (c *Sharded) Window(ctx context.Context) (oplog.Window, error) {
	of := c.Cluster()
	var mu sync.Mutex
	var cut, complete mongo.OpTime
	all := oplog.Window{Shards: map[string]oplog.Window{}}
	err := of.Each(ctx, func(ctx context.Context, i int) error {
		w, err := oplog.ReadWindow(ctx, of.Shards[i].Cluster)
		if err != nil {
			return err
		}
		_, beginning, err := of.Shards[i].OldestEntry(ctx)
		mu.Lock()
		defer mu.Unlock()
		all.Shards[of.Shards[i].Name] = w
		all.Newest = mongo.MaxOpTime(all.Newest, w.Newest)
		switch {
		case !beginning:
			cut = mongo.MaxOpTime(cut, w.Oldest)
		case complete.IsZero():
			complete = w.Oldest
		default:
			complete = mongo.MinOpTime(complete, w.Oldest)
		}
		return err
	})
	if all.Oldest = cut; cut.IsZero() {
		all.Oldest = complete
	}
	return all, err
}

// ListOne finds a collection by the UUID that it has, or had before it moved.
func (c *Sharded) ListOne(ctx context.Context, db string, uuid bson.Binary) (coll schema.Collection, found bool,
	err error) {
	const looks = 5 // it may move while it is looked for
	perhaps := []bson.Binary{uuid}
	for range looks {
		for _, now := range perhaps {
			if coll, found, err = schema.ListOne(ctx, c.router(), db, now); found || err != nil {
				return coll, found, err
			}
		}
		if perhaps, err = c.Cluster().Identities(ctx, uuid); len(perhaps) == 0 || err != nil {
			return coll, false, err
		}
	}
	return coll, false, mongo.Retry(fmt.Sprintf("the router does not show the collection %x of %s, but nobody tells "+
		"that it was dropped", uuid.Data, db), nil, "")
}

// Building lists the index builds under way, as schema.Building does, of each shard: one
// collection may be there several times.
func (c *Sharded) Building(ctx context.Context, rules *transform.Set) ([]schema.Collection, error) {
	of := c.Cluster()
	each := make([][]schema.Collection, len(of.Shards))
	err := of.Each(ctx, func(ctx context.Context, i int) (err error) {
		each[i], err = schema.Building(ctx, of.Shards[i].Cluster, rules)
		return err
	})
	return slices.Concat(each...), err
}

// Find reads documents of a collection by their _ids, as lookup.Find does: those of a
// sharded one through the router, which leaves out what shards do not own.
func (c *Sharded) Find(ctx context.Context, of lookup.Collection, q lookup.Question) ([]bson.Raw, error) {
	if q.Exact { // shards tell it, but not which of them owned what
		return nil, lookup.ErrForgotten
	}
	const looks = 5 // at what is there twice: the reads of several shards have no common time
	for twice := 0; ; {
		ns, err := ownership.Name(ctx, c.router(), of.UUID)
		if err != nil {
			return nil, err
		}
		if ns == "" {
			docs, home, err := c.findOnShards(ctx, of, q)
			if home || err != nil && !mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
				return docs, err
			}
			perhaps, cause := c.Cluster().Identities(ctx, of.UUID)
			other := slices.IndexFunc(perhaps, func(now bson.Binary) bool { return !now.Equal(of.UUID) })
			switch {
			case cause != nil:
				return nil, cause
			case other >= 0:
				of.UUID = perhaps[other]
				continue
			case err == nil && len(perhaps) > 0:
				err = mongo.Retry(fmt.Sprintf("the collection %x of %s is not on its shard, but on another one", of.UUID.Data,
					of.DB), nil, "")
			}
			return docs, err // of what was dropped: the changes tell
		}
		_, of.Name = mongo.SplitNS(ns)
		docs, err := lookup.Find(ctx, c.router(), of, q)
		if twice++; errors.Is(err, lookup.ErrTwice) && twice < looks {
			err = pace.Pause(ctx, 100*time.Millisecond)
			if err == nil {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		if now, err := ownership.Name(ctx, c.router(), of.UUID); err != nil || now == ns {
			return docs, err
		}
	}
}

// findOnShards asks for a collection that is not sharded: one shard has it. home says that
// this was its database's own then; another one may tell of a collection that has moved.
func (c *Sharded) findOnShards(ctx context.Context, of lookup.Collection, q lookup.Question) (docs []bson.Raw,
	home bool, err error) {
	for _, s := range c.Cluster().Shards {
		docs, err = lookup.Find(ctx, s.Cluster, of, q)
		if err == nil {
			own, err := c.primary(ctx, of.DB)
			if err != nil {
				return nil, false, err
			}
			return docs, own == "" || own == s.Name, nil
		}
		if !mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
			return nil, false, fmt.Errorf("shard %s: %w", s.Name, err)
		}
	}
	return nil, false, err
}

// Vanished reports whether the collection with a UUID is gone for good, and has not moved.
func (c *Sharded) Vanished(ctx context.Context, db string, uuid bson.Binary) (bool, error) {
	ns, err := ownership.Name(ctx, c.router(), uuid)
	if err != nil || ns != "" {
		return false, err
	}
	all := c.Cluster()
	gone := make([]bool, len(all.Shards))
	err = all.Each(ctx, func(ctx context.Context, i int) (err error) {
		gone[i], err = all.Shards[i].Vanished(ctx, db, uuid)
		return err
	})
	if err != nil || slices.Contains(gone, false) {
		return false, err
	}
	now, there, err := all.Identity(ctx, uuid)
	return err == nil && (!there || now.Equal(uuid)), err
}

// Whole fails when the cluster has got a shard by now.
func (c *Sharded) Whole(ctx context.Context) error {
	p, err := c.Positions(ctx)
	if err == nil {
		err = c.Cluster().CheckShards(ctx, p.Majority)
	}
	return err
}

// Holds fails when the cluster has got a shard by then.
func (c *Sharded) Holds(ctx context.Context, at mongo.OpTime) error {
	return c.Cluster().CheckShards(ctx, at)
}

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
