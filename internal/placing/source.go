package placing

import (
	"context"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/shardkey"
	"github.com/millrace/millrace/internal/wire"
)

// Source says how collections are to be sharded.
type Source struct {
	Cluster *mongo.Cluster
	Shards  *origin.Sharded // behind Cluster, if it is a router; nil if they are not read directly
	Rules   Rules
	Zones   ZoneRules
}

func (s *Source) sharded() bool {
	return s.Shards != nil || s.Cluster != nil && s.Cluster.Info.Kind == mongo.KindSharded
}

func (s *Source) version() mongo.Version {
	if s.Shards != nil {
		return s.Shards.Cluster().Shards[0].Info.Version
	}
	return s.Cluster.Info.Version
}

// Kept are the zones of a collection that no rule leaves out.
func (s *Source) Kept(zones []schema.Zone) []schema.Zone {
	return slices.DeleteFunc(slices.Clone(zones), func(z schema.Zone) bool { return s.Zones.Out(z.Tag) })
}

// Desired is how a collection of the source is to be sharded on the target.
type Desired struct {
	Key bson.Raw // nil: not at all
	// Why says why a sharded collection of the source is not to be sharded.
	Why string
	// Zones are the source's kept ones, where its key is the same. Unzoned says that it has some and another key.
	Zones   []schema.Zone
	Unzoned bool
	bounds  []bound // of the source's chunks, where its key is the same
}

// Desired reads how a collection is to be sharded: by its rule, else as on the source now.
func (s *Source) Desired(ctx context.Context, coll schema.Collection) (w Desired, err error) {
	t, err := s.table(ctx, coll)
	if err != nil {
		return w, err
	}
	key, ruled := s.Rules.Of(coll.NS)
	switch {
	case coll.Type == schema.TypeTimeSeries && t != nil:
		w.Why = "sharded time series are not made sharded"
		return w, nil
	case coll.Type != schema.TypeCollection || coll.Capped():
		return w, nil
	case ruled:
		w.Key = key
	case t != nil:
		w.Key = t.Key
	}
	if t == nil {
		return w, nil
	}
	all, err := schema.Zones(ctx, s.Cluster, []string{t.NS})
	kept := s.Kept(all[t.NS])
	if w.Key == nil || !SameKey(t.Key, w.Key) {
		w.Unzoned = len(kept) > 0
		return w, err
	}
	w.Zones = kept
	for _, c := range t.Chunks[1:] {
		w.bounds = append(w.bounds, clone(shardkey.Bound(c.Min)))
	}
	return w, err
}

// table is that of a sharded collection of the source, nil for any other.
func (s *Source) table(ctx context.Context, coll schema.Collection) (*ownership.Table, error) {
	if !s.sharded() || coll.Type == schema.TypeView || len(coll.UUID.Data) == 0 {
		return nil, nil
	}
	if err := s.settled(ctx, coll.NS); err != nil {
		return nil, err
	}
	t, err := ownership.ReadTable(ctx, s.Cluster, s.version(), coll.UUID)
	if mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
		return nil, nil
	}
	return t, err
}

// settled waits while a collection is being sharded: its creation is in the shards' oplogs before the config servers
// know that it is sharded.
func (s *Source) settled(ctx context.Context, ns string) error {
	const pause, most = 20 * time.Millisecond, 10 * time.Second
	for began := time.Now(); time.Since(began) < most; {
		busy, err := s.sharding(ctx, ns)
		if err != nil || !busy {
			return mongo.Wrap(err, "read whether %s is being sharded", ns)
		}
		if err := pace.Pause(ctx, pause); err != nil {
			return err
		}
	}
	return nil
}

// sharding reports that a collection is being sharded.
func (s *Source) sharding(ctx context.Context, ns string) (bool, error) {
	if s.Shards == nil {
		return operates(ctx, s.Cluster, ns)
	}
	of := s.Shards.Cluster()
	busy := make([]bool, len(of.Shards))
	err := of.Each(ctx, func(ctx context.Context, i int) (err error) {
		c := of.Shards[i].Cluster
		if busy[i], err = coordinates(ctx, c, ns); mongo.IsCode(err, mongo.CodeUnauthorized) {
			busy[i], err = operates(ctx, c, ns)
		}
		return err
	})
	return slices.Contains(busy, true), err
}

// coordinates reports that a shard is sharding a collection. The role clusterMonitor may not read that.
func coordinates(ctx context.Context, c *mongo.Cluster, ns string) (bool, error) {
	return hasAny(c.Command(ctx, "config", bson.D{{Key: "find", Value: "system.sharding_ddl_coordinators"},
		{Key: "limit", Value: 1}, {Key: "singleBatch", Value: true},
		{Key: "filter", Value: bson.D{{Key: "_id.namespace", Value: ns},
			{Key: "_id.operationType", Value: bson.D{{Key: "$regex", Value: "^createCollection"}}}}}}))
}

// operates reports an operation of a shard that shards a collection.
func operates(ctx context.Context, c *mongo.Cluster, ns string) (bool, error) {
	_, coll := mongo.SplitNS(ns)
	either := bson.A{bson.D{{Key: "command._shardsvrCreateCollection", Value: coll}},
		bson.D{{Key: "desc", Value: bson.D{{Key: "$regex", Value: "^CreateCollectionCoordinator"}}}}}
	return hasAny(c.Command(ctx, "admin", bson.D{{Key: "aggregate", Value: 1}, {Key: "cursor", Value: bson.D{}},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$currentOp", Value: bson.D{{Key: "allUsers", Value: true}}}},
			bson.D{{Key: "$match",
				Value: bson.D{{Key: "ns", Value: bson.D{{Key: "$in", Value: bson.A{ns, strings.TrimSuffix(ns, coll) + "$cmd"}}}},
					{Key: "$or", Value: either}}}},
			bson.D{{Key: "$limit", Value: 1}},
		}}}))
}

func hasAny(reply bson.Raw, err error) (bool, error) {
	_, found := reply.Lookup("cursor", "firstBatch", "0").DocumentOK()
	return found, err
}

// sample reads the shard keys of about n documents of a collection. Fewer, or none, are no error.
func (s *Source) sample(ctx context.Context, coll schema.Collection, key shardkey.Pattern,
	n int) (all []point, err error) {
	members := []*mongo.Cluster{s.Cluster}
	if s.Shards != nil {
		members = nil
		for _, one := range s.Shards.Cluster().Shards {
			members = append(members, one.Cluster)
		}
	}
	for _, m := range members {
		some, err := sampleOf(ctx, m, coll.NS, key, max(n/len(members), 1))
		if err != nil {
			return nil, mongo.Wrap(err, "sample the shard keys of %s", coll.NS)
		}
		all = append(all, some...)
	}
	return all, nil
}

func sampleOf(ctx context.Context, c *mongo.Cluster, ns string, key shardkey.Pattern, n int) ([]point, error) {
	conn, err := c.Checkout(ctx, c.Reader())
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	db, coll := mongo.SplitNS(ns)
	body, err := conn.Run(ctx, db, bson.D{{Key: "count", Value: coll}})
	if err != nil {
		return nil, unlessGone(err)
	}
	count, _ := bson.Raw(body).Lookup("n").AsInt64OK()
	if count == 0 {
		return nil, nil
	}
	project := bson.D{{Key: "_id", Value: 0}}
	for _, f := range key {
		if f.Path == "_id" || strings.HasPrefix(f.Path, "_id.") {
			project[0].Value = 1
			continue
		}
		project = append(project, bson.E{Key: f.Path, Value: 1})
	}
	cur, err := conn.OpenCursor(ctx, db, bson.D{{Key: "aggregate", Value: coll},
		{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: n}}},
		{Key: "pipeline", Value: bson.A{bson.D{{Key: "$sample", Value: bson.D{{Key: "size", Value: n}}}},
			bson.D{{Key: "$project", Value: project}}}}}, wire.CursorOptions{})
	if err != nil {
		return nil, unlessGone(err)
	}
	defer cur.Close(ctx) // after n documents it stays open
	b, err := cur.Next(ctx)
	if err != nil {
		return nil, err
	}
	return points(b, key, float64(count))
}

// unlessGone ignores errors of a missing collection or an incomplete sample: ranges are then cut without.
func unlessGone(err error) error {
	if mongo.Classify(err) == mongo.ClassGone || mongo.IsCode(err, mongo.CodeSampleFailed) {
		return nil
	}
	return err
}

// points are the keys in a reply, which represent count documents.
func points(reply *wire.Batch, key shardkey.Pattern, count float64) (all []point, err error) {
	var k shardkey.Key
	err = reply.Each(func(doc []byte) error {
		if key.Of(&k, doc) {
			if b := clone(k.Values); b.size() <= mostBound {
				all = append(all, point{key: b})
			}
		}
		return nil
	})
	for i := range all {
		all[i].weight = count / float64(len(all))
	}
	return all, err
}
