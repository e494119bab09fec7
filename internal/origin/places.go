package origin

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/shards"
)

// Places says which collections are sharded, and on which shards the others are.
type Places struct {
	primary map[string]string // by database
	sharded map[[16]byte]bool
}

// Places reads what there is.
func (c *Sharded) Places(ctx context.Context) (*Places, error) {
	p := &Places{primary: map[string]string{}, sharded: map[[16]byte]bool{}}
	var dbs []struct {
		Name    string `bson:"_id"`
		Primary string `bson:"primary"`
	}
	cur, err := c.routed("databases").Find(ctx, bson.D{})
	if err == nil {
		err = cur.All(ctx, &dbs)
	}
	if err != nil {
		return nil, mongo.Wrap(err, "read on which shards the databases of %s are", c.router().Address())
	}
	for _, db := range dbs {
		p.primary[db.Name] = db.Primary
	}
	var colls []struct {
		UUID    bson.Binary `bson:"uuid"`
		Dropped bool        `bson:"dropped"`
	}
	cur, err = c.routed("collections").Find(ctx, bson.D{})
	if err == nil {
		err = cur.All(ctx, &colls)
	}
	if err != nil {
		return nil, mongo.Wrap(err, "read which collections of %s are sharded", c.router().Address())
	}
	for _, one := range colls {
		if id, ok := shards.IDOf(one.UUID); ok && !one.Dropped {
			p.sharded[id] = true
		}
	}
	return p, nil
}

// Sharded reports a collection that is.
func (p *Places) Sharded(uuid bson.Binary) bool {
	id, ok := shards.IDOf(uuid)
	return ok && p.sharded[id]
}

// Primary is the shard that has the collections of a database that are not sharded.
func (p *Places) Primary(db string) (shard string, ok bool) {
	shard, ok = p.primary[db]
	return shard, ok
}

// Owners are the shards that have chunks, sorted.
func (t *Table) Owners() (all []string) {
	for _, c := range t.Chunks {
		if !slices.Contains(all, c.Shard) {
			all = append(all, c.Shard)
		}
	}
	slices.Sort(all)
	return all
}

// Missing are those of collections, by their place among them, that no shard has under
// their UUIDs.
func (c *Sharded) Missing(ctx context.Context, of []schema.Collection) (missing []int, err error) {
	var dbs []string
	for _, one := range of {
		db, _ := mongo.SplitNS(one.NS)
		dbs = append(dbs, db)
	}
	slices.Sort(dbs)
	dbs = slices.Compact(dbs)
	all := c.Cluster()
	held := make([]map[[16]byte]bool, len(all.Shards))
	err = all.Each(ctx, func(ctx context.Context, i int) error {
		uuids, err := schema.UUIDs(ctx, all.Shards[i].Cluster, dbs)
		held[i] = map[[16]byte]bool{}
		for _, u := range uuids {
			if id, ok := shards.IDOf(u); ok {
				held[i][id] = true
			}
		}
		return err
	})
	for i, one := range of {
		id, _ := shards.IDOf(one.UUID)
		if !slices.ContainsFunc(held, func(h map[[16]byte]bool) bool { return h[id] }) {
			missing = append(missing, i)
		}
	}
	return missing, err
}

// Present finds where a collection is by now that is or was not sharded: its UUID, which
// is another one after movePrimary, and the shard that has all of it, "" when it is
// sharded. False says that it was dropped: the changes tell.
func (c *Sharded) Present(ctx context.Context, was schema.Collection) (now bson.Binary, shard string, there bool, err error) {
	const looks = 10 // it may move while it is looked for
	db, _ := mongo.SplitNS(was.NS)
	now = was.UUID
	for look := range looks {
		if look > 0 {
			if err := pace.Pause(ctx, 100*time.Millisecond); err != nil {
				return now, "", false, err
			}
		}
		if ns, err := c.named(ctx, now); ns != "" || err != nil {
			return now, "", true, err
		}
		for _, s := range c.Cluster().Shards {
			if _, found, err := schema.ListOne(ctx, s.Cluster, db, now); found || err != nil {
				return now, s.Name, found, mongo.Wrap(err, "shard %s", s.Name)
			}
		}
		if now, there, err = c.Cluster().Identity(ctx, was.UUID); !there || err != nil {
			return now, "", false, err
		}
	}
	return now, "", false, mongo.Retry(fmt.Sprintf("%s is on none of the shards, but nobody tells that it was dropped", was.NS), nil, "")
}

// Stands are those of the sharded ones among collections, by UUID in hex. at is a
// position before now.
func (c *Sharded) Stands(ctx context.Context, at mongo.OpTime, of []bson.Binary) (map[string]Stand, error) {
	places, err := c.Places(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]Stand{}
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
