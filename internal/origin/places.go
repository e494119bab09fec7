package origin

import (
	"context"
	"encoding/hex"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
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

// Moved reports that a collection that was not sharded is on another shard by now,
// under another UUID. Users may have made one of its name since: then the changes tell
// of its documents too.
func (c *Sharded) Moved(ctx context.Context, was schema.Collection) (now bson.Binary, shard string, moved bool, err error) {
	places, err := c.Places(ctx)
	if err != nil || places.Sharded(was.UUID) {
		return now, "", false, err
	}
	db, _ := mongo.SplitNS(was.NS)
	shard, ok := places.Primary(db)
	if !ok {
		return now, "", false, nil
	}
	all := c.Cluster().Shards
	i := slices.IndexFunc(all, func(s shards.Shard) bool { return s.Name == shard })
	if i < 0 {
		return now, shard, false, mongo.Retry("shard "+shard+" has joined since", nil, "")
	}
	colls, err := schema.List(ctx, all[i].Cluster, schema.Scope{Readable: true,
		DB: func(name string) bool { return name == db }, NS: func(ns string) bool { return ns == was.NS }})
	if err != nil || len(colls) == 0 {
		return now, shard, false, err
	}
	now = colls[0].UUID
	return now, shard, colls[0].Type == was.Type && !now.Equal(was.UUID) && !places.Sharded(now), nil
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
