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
	if err := c.all(ctx, "databases", bson.D{}, &dbs); err != nil {
		return nil, mongo.Wrap(err, "read on which shards the databases of %s are", c.router().Address())
	}
	for _, db := range dbs {
		p.primary[db.Name] = db.Primary
	}
	var colls []struct {
		UUID    bson.Binary `bson:"uuid"`
		Dropped bool        `bson:"dropped"`
	}
	if err := c.all(ctx, "collections", bson.D{}, &colls); err != nil {
		return nil, mongo.Wrap(err, "read which collections of %s are sharded", c.router().Address())
	}
	for _, one := range colls {
		if id, ok := shards.ParseUUID(one.UUID); ok && !one.Dropped {
			p.sharded[id] = true
		}
	}
	return p, nil
}

// Sharded reports a collection that is.
func (p *Places) Sharded(uuid bson.Binary) bool {
	id, ok := shards.ParseUUID(uuid)
	return ok && p.sharded[id]
}

// Primary is the shard that has the collections of a database that are not sharded.
func (p *Places) Primary(db string) (shard string, ok bool) {
	shard, ok = p.primary[db]
	return shard, ok
}

// home is the shard that has the collections of a database that are not sharded; "" where
// the config servers do not tell.
func (c *Sharded) home(ctx context.Context, db string) (shard string, err error) {
	var found struct {
		Primary string `bson:"primary"`
	}
	_, err = c.one(ctx, "databases", bson.D{{Key: "_id", Value: db}}, &found)
	return found.Primary, mongo.Wrap(err, "find the shard of database %s", db)
}

// Missing are those of collections, by their place among them, that are not where they
// belong under their UUIDs: sharded ones on any shard, the others on their database's own.
// The shard from which movePrimary has moved one has it still until it drops it, which may
// be late or never, and no change reaches it there.
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
			if id, ok := shards.ParseUUID(u); ok {
				held[all.Shards[i].Name][id] = true
			}
		}
		return err
	})
	for i, one := range of {
		if !places.has(one, held) {
			missing = append(missing, i)
		}
	}
	return missing, err
}

// has reports that a shard where a collection belongs has it. held are the UUIDs of each.
func (p *Places) has(one schema.Collection, held map[string]map[[16]byte]bool) bool {
	id, _ := shards.ParseUUID(one.UUID)
	db, _ := mongo.SplitNS(one.NS)
	if home, ok := p.Primary(db); ok && !p.Sharded(one.UUID) {
		return held[home][id]
	}
	for _, h := range held {
		if h[id] {
			return true
		}
	}
	return false
}

// Present finds where a collection is by now that is or was not sharded: its UUID, which
// is another one after movePrimary, and the shard that has all of it, "" when it is
// sharded. False says that it was dropped: the changes tell.
func (c *Sharded) Present(ctx context.Context, was schema.Collection) (now bson.Binary, shard string, there bool,
	err error) {
	const looks = 10 // it may move while it is looked for
	db, _ := mongo.SplitNS(was.NS)
	perhaps := []bson.Binary{was.UUID}
	for look := range looks {
		if look > 0 {
			if err := pace.Pause(ctx, 100*time.Millisecond); err != nil {
				return was.UUID, "", false, err
			}
		}
		for _, now := range perhaps {
			if shard, there, err = c.at(ctx, db, now); there || err != nil {
				return now, shard, there, err
			}
		}
		if perhaps, err = c.Cluster().Identities(ctx, was.UUID); len(perhaps) == 0 || err != nil {
			return was.UUID, "", false, err
		}
	}
	return was.UUID, "", false, mongo.Retry(fmt.Sprintf("%s is not on its shard, but nobody tells that it was dropped",
		was.NS), nil, "")
}

// at is the shard where the collection with a UUID is and belongs, "" when it is sharded.
func (c *Sharded) at(ctx context.Context, db string, uuid bson.Binary) (shard string, there bool, err error) {
	if ns, err := c.named(ctx, uuid); ns != "" || err != nil {
		return "", ns != "", err
	}
	home, err := c.home(ctx, db)
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
