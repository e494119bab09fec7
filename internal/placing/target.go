package placing

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/schema"
)

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
