package schema

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

type sharding struct {
	Key    bson.Raw // the pattern of the shard key
	Unique bool
	Zones  []Zone // by their lower bounds
}

// Zone is a range of shard keys, Max excluded, of a zone.
type Zone struct {
	NS  string   `bson:"ns"`
	Min bson.Raw `bson:"min"`
	Max bson.Raw `bson:"max"`
	Tag string   `bson:"tag"`
}

// Zones reads the zones of collections of a sharded cluster, of all if names is nil, by namespace and in the order of
// keys.
func Zones(ctx context.Context, c *mongo.Cluster, names []string) (map[string][]Zone, error) {
	list, err := mongo.ReadAll[Zone](ctx, "read the zones of %s", c.Address())(c.Config("tags").Find(ctx,
		oneOf("ns", names), options.Find().SetSort(bson.D{{Key: "ns", Value: 1}, {Key: "min", Value: 1}})))
	all := map[string][]Zone{}
	for _, z := range list {
		all[z.NS] = append(all[z.NS], z)
	}
	return all, err
}

func oneOf(field string, names []string) bson.D {
	if names == nil {
		return bson.D{}
	}
	return bson.D{{Key: field, Value: bson.D{{Key: "$in", Value: names}}}}
}

// Entry is the config servers' entry of a sharded collection.
type Entry struct {
	NS        string      `bson:"_id"`
	UUID      bson.Binary `bson:"uuid"`
	Key       bson.Raw    `bson:"key"`
	Unique    bool        `bson:"unique"`
	NoBalance *bool       `bson:"noBalance"`
	Dropped   bool        `bson:"dropped"`
	Single    bool        `bson:"unsplittable"` // not sharded, as 8.0 has them
}

// Entries reads which of the given collections of a sharded cluster are sharded, of all if names is nil.
func Entries(ctx context.Context, c *mongo.Cluster, names []string) (map[string]Entry, error) {
	list, err := mongo.ReadAll[Entry](ctx, "read which collections of %s are sharded", c.Address())(
		c.Config("collections").Find(ctx, oneOf("_id", names)))
	all := map[string]Entry{}
	for _, e := range list {
		if !e.Dropped && !e.Single {
			all[e.NS] = e
		}
	}
	return all, err
}

// ShardKeys returns the patterns of the shard keys of the given collections by namespace, of all if names is nil. A
// replica set has none.
func ShardKeys(ctx context.Context, c *mongo.Cluster, names []string) (map[string]bson.Raw, error) {
	keys := map[string]bson.Raw{}
	if c.Info.Kind != mongo.KindSharded {
		return keys, nil
	}
	all, err := Entries(ctx, c, names)
	for ns, one := range all {
		keys[ns] = one.Key
	}
	return keys, err
}

func shardings(ctx context.Context, c *mongo.Cluster) (map[string]sharding, error) {
	if c.Info.Kind != mongo.KindSharded {
		return nil, nil
	}
	var zones map[string][]Zone
	colls, err := Entries(ctx, c, nil)
	if err == nil {
		zones, err = Zones(ctx, c, nil)
	}
	if err != nil {
		return nil, mongo.NeedsRole(err, "grant the role clusterMonitor")
	}
	all := map[string]sharding{}
	for ns, one := range colls {
		all[ns] = sharding{one.Key, one.Unique, zones[ns]}
	}
	return all, nil
}

func (s sharding) keyText() string {
	text := comparableKey(s.Key)
	if s.Unique {
		text += ", unique"
	}
	return text
}

func (s sharding) zonesText() string {
	var all []string
	for _, z := range s.Zones {
		all = append(all, fmt.Sprintf("%s from %s to %s", z.Tag, text(z.Min), text(z.Max)))
	}
	return strings.Join(all, "; ")
}

// diffSharding compares shard keys, and the names and ranges of zones: their shards may differ.
func diffSharding(ns string, a, b sharding) []Difference {
	if a.keyText() != b.keyText() {
		return []Difference{{NS: ns, What: "shard key", Source: a.keyText(), Target: b.keyText()}}
	}
	if a.zonesText() != b.zonesText() {
		return []Difference{{NS: ns, What: "zones", Source: a.zonesText(), Target: b.zonesText()}}
	}
	return nil
}

type catalog struct {
	*mongo.Cluster
	colls []Collection
}

// shardedBeside compares the sharding of collections on both clusters, if both are sharded. A replica
// set does not differ from a sharded cluster, nor by the index that a shard key requires, which it
// removes.
func shardedBeside(ctx context.Context, src, dst catalog, rules *transform.Set, o DiffOptions) ([]Difference, error) {
	if dst.Info.Kind != mongo.KindSharded {
		return nil, nil
	}
	there, err := shardings(ctx, dst.Cluster)
	if err != nil {
		return nil, err
	}
	here, err := shardings(ctx, src.Cluster)
	if err != nil {
		return nil, err
	}
	byName := map[string]int{}
	for i, c := range dst.colls {
		byName[c.NS] = i
	}
	var out []Difference
	for _, c := range src.colls {
		i, ok := byName[rules.Target(c.NS)]
		if !ok || c.Type != dst.colls[i].Type || c.Type == TypeView {
			continue
		}
		target := &dst.colls[i]
		a, b := here[c.DataNS()], there[target.DataNS()]
		if b.Key != nil && comparableKey(a.Key) != comparableKey(b.Key) {
			target.Indexes = withoutKeyIndex(target.Indexes, c.Indexes, b.Key)
		}
		if src.Info.Kind == mongo.KindSharded && !o.IgnoreSharding {
			out = append(out, diffSharding(c.NS, a, b)...)
		}
	}
	return out, nil
}

// withoutKeyIndex removes the plain index of a shard key, unless the other side has its name.
func withoutKeyIndex(indexes, others []stream.Index, key bson.Raw) []stream.Index {
	named := namesOf(others)
	return slices.DeleteFunc(slices.Clone(indexes), func(ix stream.Index) bool {
		return !slices.Contains(named, ix.Name) && !uniqueLike(ix.Spec) &&
			comparableKey(sub(ix.Spec, "key")) == comparableKey(key)
	})
}
