package placing

import (
	"context"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/shardkey"
	"github.com/millrace/millrace/internal/stream"
)

// A sharded collection needs an index that begins with its key. One of the source is built before the collection is
// sharded; without one the server builds its own. A unique one can be built at the consistent position only: until
// then an index with an own name and key replaces it.

const standInName = "millrace_shard_key"

// support chooses the index of the source that supports a shard key. standIn says that it cannot be built yet.
func support(indexes []stream.Index, key bson.Raw) (early []stream.Index, standIn bool) {
	pattern := shardkey.Parse(key)
	if len(pattern) == 1 && pattern[0].Path == "_id" && !pattern[0].Hashed {
		return nil, false // there always is one
	}
	for _, ix := range indexes {
		if !ownership.Supports(ix.Spec, pattern) {
			continue
		}
		if truthy(ix.Spec, "unique") || truthy(ix.Spec, "prepareUnique") {
			standIn = true
			continue
		}
		return []stream.Index{ix}, false
	}
	return nil, standIn
}

// Fits reports an index that a collection with a shard key can have. A unique one has to begin with the key, which
// may not be hashed.
func Fits(ix stream.Index, key bson.Raw) bool {
	if !truthy(ix.Spec, "unique") && !truthy(ix.Spec, "prepareUnique") {
		return true
	}
	doc, _ := ix.Spec.Lookup("key").DocumentOK()
	have, want := shardkey.Parse(doc), shardkey.Parse(key)
	return len(have) >= len(want) && slices.EqualFunc(have[:len(want)], want, func(h, w shardkey.Field) bool {
		return !w.Hashed && h.Path == w.Path
	})
}

func truthy(spec bson.Raw, option string) bool {
	v := spec.Lookup(option)
	if b, ok := v.BooleanOK(); ok {
		return b
	}
	n, ok := v.AsInt64OK()
	return ok && n != 0
}

func (p *Placer) standIn(ctx context.Context, n note) error {
	db, _ := mongo.SplitNS(n.ID.NS)
	var key bson.D
	for _, f := range shardkey.Parse(n.Key) {
		key = append(key, bson.E{Key: f.Path, Value: f.Value})
	}
	more := "_id"
	if slices.ContainsFunc(key, func(e bson.E) bool { return e.Key == more }) {
		more = standInName // a field that nobody has: users may have an index on the key itself
	}
	key = append(key, bson.E{Key: more, Value: 1})
	spec := bson.D{{Key: "key", Value: key}, {Key: "name", Value: standInName},
		{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}}}
	defer p.o.Builds.Watch(ctx, n.ID.NS, []string{standInName})()
	err := p.runOn(ctx, db, p.o.Builds.Command(n.ID.NS, bson.A{spec}))
	return mongo.Wrap(err, "build an index on the shard key of %s", n.ID.NS)
}

// Yield makes the stand-in index support a collection's shard key, in place of one that is to be changed or dropped.
// Given clashing specs, it drops that index if it has the name or the keys of one of them. False says that nothing
// was in the way.
func (p *Placer) Yield(ctx context.Context, ns string, clashing []bson.Raw) (bool, error) {
	n, found, err := p.note(ctx, ns)
	if err != nil || !found {
		return false, err
	}
	replace := len(clashing) > 0
	var stale []string
	if replace {
		if stale, err = p.stale(ctx, n, clashing); err != nil || len(stale) == 0 {
			return false, err
		}
	}
	if err := p.replace(ctx, n, stale); err != nil || !replace {
		return true, err
	}
	p.o.Log.Info("the index on the shard key makes way for another", "ns", ns, "indexes", stale)
	return true, nil
}

func (p *Placer) replace(ctx context.Context, n note, names []string) error {
	n.StandIn = true
	if err := p.save(ctx, n); err != nil {
		return err
	}
	if err := p.standIn(ctx, n); err != nil {
		return err
	}
	for _, name := range names {
		if err := p.dropIndex(ctx, n.ID.NS, name); err != nil {
			return err
		}
	}
	return nil
}

// stale are the names of the servers' own indexes on a shard key that clash with one of others.
func (p *Placer) stale(ctx context.Context, n note, others []bson.Raw) (names []string, err error) {
	specs, err := p.indexes(ctx, n.ID.NS)
	pattern := shardkey.Parse(n.Key)
	for _, spec := range specs {
		name, _ := spec.Lookup("name").StringValueOK()
		if plain(spec, n.Key) && ownership.Supports(spec, pattern) && slices.ContainsFunc(others,
			func(other bson.Raw) bool { return clashes(other, name, pattern) }) {
			names = append(names, name)
		}
	}
	return names, err
}

// clashes reports an index that servers refuse beside a plain one of that name on the shard key.
func clashes(spec bson.Raw, name string, pattern shardkey.Pattern) bool {
	if have, _ := spec.Lookup("name").StringValueOK(); have == name {
		return true
	}
	doc, _ := spec.Lookup("key").DocumentOK()
	key := shardkey.Parse(doc)
	locale, collated := spec.Lookup("collation", "locale").StringValueOK()
	partial := spec.Lookup("partialFilterExpression").Type != 0
	return len(key) == len(pattern) && ownership.Begins(key, pattern) && !partial && (!collated || locale == "simple") &&
		!truthy(spec, "sparse") && !truthy(spec, "unique")
}

// DropRest drops the indexes that a server keeps when all are dropped, but for a plain one on the shard key.
func (p *Placer) DropRest(ctx context.Context, ns string) error {
	n, found, err := p.note(ctx, ns)
	if err != nil || !found {
		return err
	}
	specs, err := p.indexes(ctx, ns)
	if err != nil {
		return err
	}
	var rest []string
	for _, spec := range specs {
		if name, _ := spec.Lookup("name").StringValueOK(); name != "_id_" && name != standInName && !plain(spec, n.Key) {
			rest = append(rest, name)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	return p.replace(ctx, n, rest)
}

// plain reports an index on a shard key as servers make it.
func plain(spec, key bson.Raw) bool {
	doc, _ := spec.Lookup("key").DocumentOK()
	all, err := spec.Elements()
	return err == nil && SameKey(doc, key) && !slices.ContainsFunc(all, func(e bson.RawElement) bool {
		return !slices.Contains([]string{"v", "key", "name", "ns"}, e.Key())
	})
}

func (p *Placer) indexes(ctx context.Context, ns string) ([]bson.Raw, error) {
	db, coll := mongo.SplitNS(ns)
	return mongo.ReadAll[bson.Raw](ctx, "list the indexes of %s", ns)(
		p.c.Client.Database(db).Collection(coll).Indexes().List(ctx))
}

func (p *Placer) dropIndex(ctx context.Context, ns, name string) error {
	db, coll := mongo.SplitNS(ns)
	err := p.runOn(ctx, db, bson.D{{Key: "dropIndexes", Value: coll}, {Key: "index", Value: name}})
	if err != nil && mongo.Classify(err) == mongo.ClassGone {
		return nil
	}
	return mongo.Wrap(err, "drop the index %s of %s", name, ns)
}

// Settle drops stand-in indexes whose originals exist now.
func (p *Placer) Settle(ctx context.Context) error {
	all, err := p.notes(ctx)
	if err != nil {
		return err
	}
	for _, n := range all {
		if !n.StandIn {
			continue
		}
		if err := p.settle(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

func (p *Placer) settle(ctx context.Context, n note) error {
	specs, err := p.indexes(ctx, n.ID.NS)
	if err != nil {
		return err
	}
	pattern := shardkey.Parse(n.Key)
	other := slices.ContainsFunc(specs, func(spec bson.Raw) bool {
		name, _ := spec.Lookup("name").StringValueOK()
		return name != standInName && ownership.Supports(spec, pattern)
	})
	if !other {
		return nil
	}
	if err := p.dropIndex(ctx, n.ID.NS, standInName); err != nil {
		return err
	}
	n.StandIn = false
	return p.save(ctx, n)
}

// Made returns a function that reports indexes that exist for a shard key alone.
func (p *Placer) Made(ctx context.Context) (func(ns string, ix stream.Index) bool, error) {
	all, err := p.notes(ctx)
	keys := map[string]bson.Raw{}
	for _, n := range all {
		keys[n.ID.NS] = n.Key
	}
	return func(ns string, ix stream.Index) bool {
		key, ok := keys[ns]
		return ok && (ix.Name == standInName || plain(ix.Spec, key))
	}, err
}

func (p *Placer) entry(ctx context.Context, ns string) (e schema.Entry, found bool, err error) {
	all, err := schema.Entries(ctx, p.c, []string{ns})
	e, found = all[ns]
	return e, found, err
}

type Shard struct {
	Name     string   `bson:"_id"`
	Host     string   `bson:"host"` // set/host:port,…
	Draining bool     `bson:"draining"`
	Zones    []string `bson:"tags"`
	Hosts    []string `bson:"-"`
}

// Shards returns the shards of a cluster, by name.
func Shards(ctx context.Context, c *mongo.Cluster) ([]Shard, error) {
	list, err := mongo.ReadAll[Shard](ctx, "read the shards of %s", c.Address())(
		c.Config("shards").Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}})))
	for i, s := range list {
		_, hosts, _ := strings.Cut(s.Host, "/")
		list[i].Hosts = strings.Split(hosts, ",")
	}
	return list, err
}

// shards are the target's that take documents, by name.
func (p *Placer) shards(ctx context.Context) (names []string, err error) {
	list, err := Shards(ctx, p.c)
	for _, s := range list {
		if !s.Draining {
			names = append(names, s.Name)
		}
	}
	return names, err
}

func (p *Placer) chunks(ctx context.Context, e schema.Entry) ([]ownership.Chunk, error) {
	list, err := ownership.ReadChunks(ctx, p.c, ownership.ChunksOf(p.c.Info.Version, e.NS, e.UUID))
	return list, mongo.Wrap(err, "read the chunks of %s", e.NS)
}

func (p *Placer) has(ctx context.Context, ns string) (bool, error) {
	db, coll := mongo.SplitNS(ns)
	names, err := p.c.Client.Database(db,
		options.Database().SetReadPreference(readpref.Primary())).ListCollectionNames(ctx, bson.D{{Key: "name", Value: coll}})
	return len(names) > 0, mongo.Wrap(err, "look for %s on the target", ns)
}
