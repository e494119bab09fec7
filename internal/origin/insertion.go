package origin

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// FindInsertion is a stream.FindInsertion that reads a change stream of the member. It finds nothing before
// 6.0, whose events name no UUID.
func (s *Streamed) FindInsertion(ctx context.Context, run func(context.Context, string, bson.D) (bsoncore.Document, error),
	in stream.Insertion) (at mongo.OpTime, found bool, err error) {
	support, err := s.Support(ctx)
	if err != nil || !support.Expanded {
		return at, false, err
	}
	reply, err := run(ctx, "admin", bson.D{{Key: "aggregate", Value: 1},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$changeStream", Value: bson.D{{Key: "allChangesForCluster", Value: true},
				{Key: "showExpandedEvents", Value: true}, {Key: "startAtOperationTime", Value: in.After.TS}}}},
			bson.D{{Key: "$match", Value: bson.D{{Key: "operationType", Value: "insert"}, {Key: "collectionUUID", Value: in.UUID},
				{Key: "documentKey._id", Value: bson.D{{Key: "$eq", Value: in.ID}}}}}},
			bson.D{{Key: "$project", Value: bson.D{{Key: "clusterTime", Value: 1}}}}}},
		{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: 0}}}})
	var times []mongo.OpTime
	var id int64
	for batch := "firstBatch"; err == nil; batch = "nextBatch" {
		docs, bad := bson.Raw(reply).Lookup("cursor", batch).Array().Values()
		if bad != nil {
			err = bad
			break
		}
		for _, d := range docs {
			t, i, _ := d.Document().Lookup("clusterTime").TimestampOK()
			one := mongo.OpTime{TS: bson.Timestamp{T: t, I: i}, Term: -1}
			if in.After.Before(one) && !in.Until.Before(one) {
				times = append(times, one)
			}
		}
		id, _ = bson.Raw(reply).Lookup("cursor", "id").AsInt64OK()
		if id == 0 || in.Until.Before(timeOf(bson.Raw(reply))) {
			break
		}
		reply, err = run(ctx, "admin", bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "$cmd.aggregate"},
			{Key: "maxTimeMS", Value: int64(100)}})
	}
	if id != 0 && err == nil {
		_, err = run(ctx, "admin", bson.D{{Key: "killCursors", Value: "$cmd.aggregate"},
			{Key: "cursors", Value: bson.A{id}}})
	}
	if err != nil {
		return at, false, fmt.Errorf("read the change stream: %w", err)
	}
	if len(times) != 1 {
		return at, false, nil
	}
	return times[0], true, nil
}
