// Package lookup asks the source for single documents beside the stream of its
// changes. Documents are found by the UUID of their collection, whose name may be
// that of another one by now. Nothing is concluded here from what is not there.
package lookup

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// Collection is one of the source, in a database.
type Collection struct {
	DB   string
	UUID bson.Binary
}

// Has reports which documents of a collection, by their _ids, there are in a
// committed state at or after a position.
func Has(ctx context.Context, cluster *mongo.Cluster, of Collection, ids []bson.RawValue, at mongo.OpTime) ([]bool, error) {
	has := make([]bool, len(ids))
	where := map[string]int{}
	for i, id := range ids {
		where[delta.KeyOf(bsonraw.FromRaw(id))] = i
	}
	conn, err := cluster.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	cur, err := conn.OpenCursor(ctx, of.DB, bson.D{
		{Key: "find", Value: of.UUID}, {Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}},
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

// Find reads one document in a committed state at or after a position;
// nil if there is none.
func Find(ctx context.Context, cluster *mongo.Cluster, of Collection, id bsoncore.Value, at mongo.OpTime) (bson.Raw, error) {
	concern := bson.D{{Key: "level", Value: "majority"}}
	if !at.IsZero() {
		concern = append(concern, bson.E{Key: "afterClusterTime", Value: at.TS})
	}
	raw, err := cluster.Command(ctx, of.DB, bson.D{
		{Key: "find", Value: of.UUID},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: bsonraw.RawValue(id)}}}}},
		{Key: "limit", Value: 1}, {Key: "singleBatch", Value: true}, {Key: "readConcern", Value: concern},
	})
	if err != nil {
		return nil, err
	}
	batch, ok := raw.Lookup("cursor", "firstBatch").ArrayOK()
	if !ok {
		return nil, errors.New("the reply has no documents")
	}
	docs, err := batch.Values()
	if err != nil || len(docs) == 0 {
		return nil, err
	}
	return docs[0].Document(), nil
}
