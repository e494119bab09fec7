// Package lookup asks the source for single documents beside the stream of its
// changes. Documents are found by the UUID of their collection, whose name may be
// that of another one by now. Nothing is concluded here from what is not there.
package lookup

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// Has tells which documents of a collection, by their _ids, there are in a
// committed state at or after a position.
func Has(ctx context.Context, c *mongo.Cluster, db string, uuid bson.Binary, ids []bson.RawValue, at mongo.OpTime) ([]bool, error) {
	has := make([]bool, len(ids))
	where := map[string]int{}
	for i, id := range ids {
		where[delta.KeyOf(bsonraw.FromRaw(id))] = i
	}
	conn, err := c.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	cur, err := conn.OpenCursor(ctx, db, bson.D{
		{Key: "find", Value: uuid}, {Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}},
		{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}, {Key: "afterClusterTime", Value: at.TS}}},
	}, wire.CursorOptions{})
	if mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
		return has, nil
	}
	if err != nil {
		return nil, err
	}
	for {
		b, err := cur.Next(ctx)
		if err != nil {
			return nil, err
		}
		err = b.Each(func(doc []byte) error {
			if i, ok := where[delta.KeyOf(bsonraw.IDOf(doc))]; ok {
				has[i] = true
			}
			return nil
		})
		if err != nil || b.Done {
			return has, err
		}
	}
}
