package schema

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// indexes lists the finished indexes of a collection but for the one on _id. A
// collection that is gone has none.
//
// A build under way is left out, for its end comes later in the oplog, if it
// ends well. Servers before 4.4 list it like the others and say elsewhere that
// it is one: what is finished is in two listings and not among the builds in
// between, whichever of them started or failed meanwhile.
func indexes(ctx context.Context, c *mongo.Cluster, ns string) ([]stream.Index, error) {
	found, err := listIndexes(ctx, c, ns)
	if err != nil || len(found) == 0 || c.Info.Version.AtLeast(4, 4) {
		return found, err
	}
	building, err := buildsUnderWay(ctx, c, ns)
	if err != nil {
		return nil, err
	}
	again, err := listIndexes(ctx, c, ns)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(found, func(ix stream.Index) bool {
		return slices.Contains(building, ix.Name) ||
			!slices.ContainsFunc(again, func(other stream.Index) bool { return other.Name == ix.Name })
	}), nil
}

func listIndexes(ctx context.Context, c *mongo.Cluster, ns string) ([]stream.Index, error) {
	db, coll := mongo.SplitNS(ns)
	cmd := bson.D{{Key: "listIndexes", Value: coll}, {Key: "cursor", Value: bson.D{}}}
	if c.Info.Version.AtLeast(4, 4) {
		cmd = append(cmd, bson.E{Key: "includeBuildUUIDs", Value: true})
	}
	cur, err := primaryDB(c, db).RunCommandCursor(ctx, cmd)
	var specs []bson.Raw
	if err == nil {
		err = cur.All(ctx, &specs)
	}
	if err != nil {
		if mongo.Classify(err) == mongo.ClassGone {
			return nil, nil
		}
		return nil, fmt.Errorf("list indexes of %s of %s: %w", ns, c.Address(), err)
	}
	var out []stream.Index
	for _, spec := range specs {
		if !has(spec, "buildUUID") && !isIDIndex(spec) && !truthyField(spec, "clustered") {
			out = append(out, stream.Index{Name: str(spec, "name"), Spec: spec})
		}
	}
	return out, nil
}

// buildsUnderWay names the indexes of a collection that are being built.
func buildsUnderWay(ctx context.Context, c *mongo.Cluster, ns string) ([]string, error) {
	stats, err := collStats(ctx, c, ns, bson.D{{Key: "storageStats", Value: bson.D{}}}, bson.D{{Key: "builds", Value: "$storageStats.indexBuilds"}})
	var out []string
	for _, shard := range stats {
		arr, ok := shard.Lookup("builds").ArrayOK()
		if !ok {
			continue
		}
		values, err := arr.Values()
		if err != nil {
			return nil, fmt.Errorf("index builds of %s of %s: %w", ns, c.Address(), err)
		}
		for _, v := range values {
			if name, ok := v.StringValueOK(); ok {
				out = append(out, name)
			}
		}
	}
	return out, err
}

func truthyField(doc bson.Raw, key ...string) bool { return truthy(doc.Lookup(key...)) }

// isIDIndex recognises the index that every collection has by itself.
func isIDIndex(spec bson.Raw) bool {
	els := keyFields(spec)
	if len(els) != 1 || els[0].Key() != "_id" {
		return false
	}
	n, ok := els[0].Value().AsFloat64OK()
	return ok && n > 0
}
