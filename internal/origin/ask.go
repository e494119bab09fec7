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

// Newest returns a position that is not before any acknowledged write on any shard. ns is a
// namespace that the user may read.
func (c *Sharded) Newest(ctx context.Context, ns string) (mongo.OpTime, error) {
	of := c.Cluster()
	at, err := of.Latest(ctx, func(ctx context.Context, s shards.Shard) (mongo.OpTime, error) { return s.Newest(ctx, ns) })
	if err == nil {
		err = of.CheckShards(ctx, at)
	}
	return at, err
}

// Positions returns those of the shard that is ahead.
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

// Recent returns the positions.
func (c *Sharded) Recent(ctx context.Context) (mongo.Positions, error) { return c.Positions(ctx) }

// Reached waits until every shard has committed all up to a position and passed it: later writes
// have later ones.
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

// ListOne finds a collection by its UUID, or by one that it had before it moved.
func (c *Sharded) ListOne(ctx context.Context, db string, uuid bson.Binary) (coll schema.Collection, found bool,
	err error) {
	found, err = c.seek(ctx, db, uuid, func(now bson.Binary) (there bool, err error) {
		coll, there, err = schema.ListOne(ctx, c.router(), db, now)
		return there, err
	})
	return coll, found, err
}

// seek calls try with the UUIDs that a collection has or had, until one is there, or all are dropped.
// The collection may move meanwhile.
func (c *Sharded) seek(ctx context.Context, db string, uuid bson.Binary,
	try func(now bson.Binary) (there bool, err error)) (there bool, err error) {
	const looks = 10
	perhaps := []bson.Binary{uuid}
	for range looks {
		for _, now := range perhaps {
			if there, err := try(now); there || err != nil {
				return there, err
			}
		}
		if perhaps, err = c.Cluster().Identities(ctx, uuid); len(perhaps) == 0 || err != nil {
			return false, err
		}
		if err := pace.Pause(ctx, 100*time.Millisecond); err != nil {
			return false, err
		}
	}
	return false, mongo.Retry(fmt.Sprintf("cannot find the collection %x of database %s, which was not dropped", uuid.Data,
		db), nil, "")
}

// Building lists index builds under way on each shard, as schema.Building does. A collection may
// occur several times.
func (c *Sharded) Building(ctx context.Context, rules *transform.Set) ([]schema.Collection, error) {
	of := c.Cluster()
	each := make([][]schema.Collection, len(of.Shards))
	err := of.Each(ctx, func(ctx context.Context, i int) (err error) {
		each[i], err = schema.Building(ctx, of.Shards[i].Cluster, rules)
		return err
	})
	return slices.Concat(each...), err
}

// Find reads documents by their _ids, as lookup.Find does. Those of a sharded collection come
// through the router, which leaves out what shards do not own.
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

// findOnShards reads from the shard that has an unsharded collection. home reports its database's
// own shard; a copy on another may be of a collection that has moved.
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

// Vanished reports whether the collection with a UUID is dropped for good, and has not moved.
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

// Whole fails if the cluster has a new shard by now.
func (c *Sharded) Whole(ctx context.Context) error {
	p, err := c.Positions(ctx)
	if err == nil {
		err = c.Cluster().CheckShards(ctx, p.Majority)
	}
	return err
}

// Holds fails if the cluster has a new shard by then.
func (c *Sharded) Holds(ctx context.Context, at mongo.OpTime) error {
	return c.Cluster().CheckShards(ctx, at)
}

// Look calls fn for the events of collections within a span and for all schema changes, in order of
// cluster time, as oplog.Look does. It leaves out events of moved documents; a schema change may
// come once a shard.
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
