package schema

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/transform"
)

// Omission is something that the rules choose and no job copies.
type Omission struct{ NS, Why string }

func (o Omission) String() string { return o.NS + ": " + o.Why }

// Omissions lists what the rules choose and no job can copy, sorted, as far as the user may look. It
// fails only with temporary errors.
func Omissions(ctx context.Context, c *mongo.Cluster, rules *transform.Set) ([]Omission, error) {
	dbs, err := Databases(ctx, c, true)
	if err != nil {
		return nil, unlessDenied(err)
	}
	dbs = append(slices.DeleteFunc(dbs, func(db string) bool { return !rules.MatchDB(db) }), mongo.StateDB)
	out, err := gather(ctx, append(dbs, ""), func(ctx context.Context, db string) ([]Omission, error) {
		if db == "" {
			return PartialIndexes(ctx, c, rules.Match)
		}
		entries, err := listCollections(ctx, c, db, bson.D{})
		switch {
		case err != nil:
			return nil, unlessDenied(err)
		case db == mongo.StateDB:
			return usersOfStateDB(entries), nil
		}
		return systemNames(db, entries), nil
	})
	out = slices.DeleteFunc(out, func(o Omission) bool { return !rules.Chooses(o.NS) })
	slices.SortFunc(out, func(a, b Omission) int { return strings.Compare(a.String(), b.String()) })
	return out, err
}

// unlessDenied returns temporary errors only: what a user may not see is not listed.
func unlessDenied(err error) error {
	if mongo.Classify(err) == mongo.ClassRetry {
		return err
	}
	return nil
}

func usersOfStateDB(entries []listing) (out []Omission) {
	for _, e := range entries {
		if !mongo.IsStateCollection(e.Name) && !strings.HasPrefix(e.Name, "system.") {
			out = append(out, Omission{mongo.StateDB + "." + e.Name,
				"the database " + mongo.StateDB + " is that of millrace's jobs, and is never copied"})
		}
	}
	return out
}

func systemNames(db string, entries []listing) (out []Omission) {
	series := map[string]bool{}
	for _, e := range entries {
		if Type(e.Type) == TypeTimeSeries {
			series[e.Name] = true
		}
	}
	for _, e := range entries {
		rest, system := strings.CutPrefix(e.Name, "system.")
		of, buckets := strings.CutPrefix(e.Name, mongo.BucketsPrefix)
		switch {
		case !system || rest == "js" || rest == "views" || rest == "profile" ||
			strings.HasPrefix(e.Name, mongo.ReshardingPrefix) || strings.HasPrefix(rest, "drop."):
		case buckets && !series[of]:
			out = append(out, Omission{db + "." + e.Name, "buckets without the time-series collection " + of +
				", so that nobody can read them"})
		case !buckets:
			out = append(out, Omission{db + "." + e.Name,
				"names that begin with system. are reserved for servers, and are not copied"})
		}
	}
	return out
}

// PartialIndexes lists indexes of sharded collections that some of the shards with documents lack.
func PartialIndexes(ctx context.Context, c *mongo.Cluster, keep func(ns string) bool) ([]Omission, error) {
	keys, err := ShardKeys(ctx, c, nil)
	if err != nil {
		return nil, unlessDenied(err)
	}
	maps.DeleteFunc(keys, func(ns string, _ bson.Raw) bool { return !keep(ns) })
	return gather(ctx, slices.Sorted(maps.Keys(keys)), func(ctx context.Context, ns string) ([]Omission, error) {
		return partialIndexes(ctx, c, ns)
	})
}

func partialIndexes(ctx context.Context, c *mongo.Cluster, ns string) (out []Omission, err error) {
	db, coll := mongo.SplitNS(ns)
	type stat struct {
		Name     string
		Host     string // of the shard's primary
		Shard    string
		Building bool
	}
	stats, err := mongo.ReadAll[stat](ctx, "indexes of %s", ns)(
		primaryDB(c, db).Collection(coll).Aggregate(ctx, bson.A{bson.D{{Key: "$indexStats", Value: bson.D{}}}}))
	if err != nil {
		return nil, unlessDenied(err)
	}
	shards, have := map[string]bool{}, map[string]map[string]bool{}
	for _, s := range stats {
		where := cmp.Or(s.Shard, s.Host)
		shards[where] = true
		if s.Building {
			continue
		}
		if have[s.Name] == nil {
			have[s.Name] = map[string]bool{}
		}
		have[s.Name][where] = true
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		var lack []string
		for _, shard := range slices.Sorted(maps.Keys(shards)) {
			if !have[name][shard] {
				lack = append(lack, shard)
			}
		}
		if len(lack) > 0 {
			out = append(out, Omission{ns, fmt.Sprintf("the index %s exists on some shards only, not on %s", name,
				strings.Join(lack, ", "))})
		}
	}
	return out, nil
}
