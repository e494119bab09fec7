package schema

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/shardkey"
)

// Listed is a collection or view in a Page.
type Listed struct {
	NS     string
	Type   Type
	Capped bool
	// Docs and Bytes are the server's estimates, -1 for a view or if unknown.
	Docs, Bytes int64
	// ShardKey is the key of a sharded collection, for people.
	ShardKey string
}

func (l Listed) dataNS() string { return Collection{NS: l.NS, Type: l.Type}.DataNS() }

// Range selects a page: up to Limit collections after After, by database and name, whose names
// contain Search in any case.
type Range struct {
	After, Search string
	Limit         int
}

// Page is a part of the collections of a deployment.
type Page struct {
	Collections []Listed
	// More: others follow.
	More bool
	// Unreadable are databases that the user may not list, up to 100.
	Unreadable []string
	// NoKeys: the user may not read shard keys.
	NoKeys bool
}

const maxUnreadable = 100

// ListPage reads a page of the collections of all databases but internal ones. Its memory is bounded
// by the page.
func ListPage(ctx context.Context, c *mongo.Cluster, r Range) (*Page, error) {
	dbs, err := Databases(ctx, c, true)
	if err != nil {
		return nil, err
	}
	p, search := &Page{}, strings.ToLower(r.Search)
	fromDB, fromColl := mongo.SplitNS(r.After)
	for _, db := range dbs {
		if db < fromDB {
			continue
		}
		wanted := func(coll string) bool {
			return (db > fromDB || coll > fromColl) && strings.Contains(strings.ToLower(db+"."+coll), search)
		}
		found, err := firstOf(ctx, c, db, r.Limit+1-len(p.Collections), wanted)
		if mongo.IsCode(err, mongo.CodeUnauthorized) {
			if len(p.Unreadable) < maxUnreadable {
				p.Unreadable = append(p.Unreadable, db)
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		if p.Collections = append(p.Collections, found...); len(p.Collections) > r.Limit {
			p.Collections, p.More = p.Collections[:r.Limit], true
			break
		}
	}
	if err := p.sizes(ctx, c); err != nil {
		return nil, err
	}
	return p, p.shardKeys(ctx, c)
}

func firstOf(ctx context.Context, c *mongo.Cluster, db string, limit int,
	wanted func(coll string) bool) (out []Listed, err error) {
	cur, err := primaryDB(c, db).ListCollections(ctx, bson.D{}, options.ListCollections().SetNameOnly(true))
	if err != nil {
		return nil, fmt.Errorf("list collections of database %s of %s: %w", db, c.Address(), err)
	}
	defer func() { _ = cur.Close(ctx) }()
	first := func() {
		slices.SortFunc(out, func(a, b Listed) int { return cmp.Compare(a.NS, b.NS) })
		out = out[:min(len(out), limit)]
	}
	for cur.Next(ctx) {
		var e listing
		if err := bson.Unmarshal(cur.Current, &e); err != nil {
			return nil, fmt.Errorf("list collections of database %s of %s: %w", db, c.Address(), err)
		}
		if strings.HasPrefix(e.Name, "system.") && e.Name != "system.js" || !wanted(e.Name) {
			continue
		}
		out = append(out, Listed{NS: db + "." + strings.Clone(e.Name), Type: Type(strings.Clone(e.Type)), Docs: -1,
			Bytes: -1})
		if len(out) > 2*limit+100 {
			first()
		}
	}
	first()
	return out, mongo.Wrap(cur.Err(), "list collections of database %s of %s", db, c.Address())
}

func (p *Page) sizes(ctx context.Context, c *mongo.Cluster) error {
	return sideBySide(ctx, listParallel, slices.All(p.Collections), func(ctx context.Context, i int, one Listed) error {
		if one.Type == TypeView {
			return nil
		}
		docs, bytes, capped, err := sizes(ctx, c, one.dataNS())
		if mongo.IsCode(err, mongo.CodeUnauthorized) {
			return nil
		}
		if err != nil {
			return err
		}
		to := &p.Collections[i]
		to.Docs, to.Bytes, to.Capped = docs, bytes, capped
		return nil
	})
}

func (p *Page) shardKeys(ctx context.Context, c *mongo.Cluster) error {
	if c.Info.Kind != mongo.KindSharded || len(p.Collections) == 0 {
		return nil
	}
	var names []string
	for _, one := range p.Collections {
		names = append(names, one.dataNS())
	}
	keys, err := Entries(ctx, c, names)
	if mongo.IsCode(err, mongo.CodeUnauthorized) {
		p.NoKeys = true
		return nil
	}
	if err != nil {
		return err
	}
	for i, ns := range names {
		if k, sharded := keys[ns]; sharded {
			p.Collections[i].ShardKey = shardkey.Text(k.Key)
			if k.Unique {
				p.Collections[i].ShardKey += ", unique"
			}
		}
	}
	return nil
}
