package schema

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// indexes lists the indexes of a collection but for the one on _id: the finished ones, and
// those that are being built. A collection that is gone has none.
//
// A build under way is not an index yet, for its end comes later in the oplog, if it ends well.
// Some servers list it like the others, and name it in the statistics. Servers before 4.4 do
// so, and newer ones where their reply cannot describe it (an index on measurements of a time
// series, in 5.0 and 6.0). There an index is finished if it is in two listings and not among
// the builds in between. It does not matter which of them started or failed meanwhile.
func indexes(ctx context.Context, c *mongo.Cluster, ns string) (finished, building []stream.Index, err error) {
	if c.Info.Version.AtLeast(4, 4) {
		finished, building, err = listIndexes(ctx, c, ns, withBuilds())
		if !mongo.IsCode(err, codeCannotDescribe) {
			return finished, building, err
		}
	}
	found, _, err := listIndexes(ctx, c, ns)
	if err != nil || len(found) == 0 {
		return nil, nil, err
	}
	under, err := buildsUnderWay(ctx, c, ns)
	if err != nil {
		return nil, nil, err
	}
	again, _, err := listIndexes(ctx, c, ns)
	if err != nil {
		return nil, nil, err
	}
	for _, ix := range found {
		listed := slices.ContainsFunc(again, func(other stream.Index) bool { return other.Name == ix.Name })
		switch {
		case slices.Contains(under, ix.Name):
			building = append(building, ix)
		case listed:
			finished = append(finished, ix)
		}
	}
	return finished, building, nil
}

// codeCannotDescribe is listIndexes' answer where an index has a field that its reply
// does not know, as originalSpec of one that is being built.
const codeCannotDescribe = 5254501

// withBuilds has listIndexes tell which indexes are being built.
func withBuilds() bson.E { return bson.E{Key: "includeBuildUUIDs", Value: true} }

// listIndexes asks for the indexes of a collection. Without withBuilds those that are
// being built count as finished.
func listIndexes(ctx context.Context, c *mongo.Cluster, ns string,
	more ...bson.E) (finished, building []stream.Index, err error) {
	specs, err := listSpecs(ctx, c, ns, more...)
	for _, spec := range specs {
		if under := sub(spec, "spec"); under != nil && has(spec, "buildUUID") {
			building = append(building, stream.Index{Name: str(under, "name"), Spec: under})
		} else if !isIDIndex(spec) && !truthyField(spec, "clustered") {
			finished = append(finished, stream.Index{Name: str(spec, "name"), Spec: spec})
		}
	}
	return finished, building, err
}

// listSpecs lists indexes as the server describes them; none of a collection that is gone.
func listSpecs(ctx context.Context, c *mongo.Cluster, ns string, more ...bson.E) ([]bson.Raw, error) {
	db, coll := mongo.SplitNS(ns)
	cmd := append(bson.D{{Key: "listIndexes", Value: coll}, {Key: "cursor", Value: bson.D{}}}, more...)
	return unlessGone(mongo.ReadAll[bson.Raw](ctx, "list indexes of %s of %s", ns, c.Address())(
		primaryDB(c, db).RunCommandCursor(ctx, cmd)))
}

// buildsUnderWay names the indexes of a collection that are being built.
func buildsUnderWay(ctx context.Context, c *mongo.Cluster, ns string) ([]string, error) {
	stats, err := collStats(ctx, c, ns, bson.D{{Key: "storageStats", Value: bson.D{}}},
		bson.D{{Key: "builds", Value: "$storageStats.indexBuilds"}})
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
