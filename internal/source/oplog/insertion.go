package oplog

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// FindInsertion is a stream.FindInsertion.
func FindInsertion(ctx context.Context, run func(context.Context, string, bson.D) (bsoncore.Document, error), in stream.Insertion) (at mongo.OpTime, found bool, err error) {
	body, err := run(ctx, "local", bson.D{
		{Key: "find", Value: "oplog.rs"}, {Key: "limit", Value: 2}, {Key: "singleBatch", Value: true},
		{Key: "filter", Value: bson.D{
			{Key: "ts", Value: bson.D{{Key: "$gt", Value: in.After.TS}, {Key: "$lte", Value: in.Until.TS}}},
			{Key: "op", Value: "i"}, {Key: "ui", Value: in.UUID}, {Key: "o._id", Value: bson.D{{Key: "$eq", Value: in.ID}}},
		}},
		{Key: "projection", Value: bson.D{{Key: "ts", Value: 1}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	})
	if err != nil {
		return at, false, fmt.Errorf("read the oplog: %w", err)
	}
	docs, err := bson.Raw(body).Lookup("cursor", "firstBatch").Array().Values()
	if err != nil || len(docs) != 1 {
		return at, false, err
	}
	t, i, ok := docs[0].Document().Lookup("ts").TimestampOK()
	return mongo.OpTime{TS: bson.Timestamp{T: t, I: i}, Term: -1}, ok, nil
}
