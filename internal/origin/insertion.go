package origin

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/changestream"
	"github.com/millrace/millrace/internal/stream"
)

// FindInsertion is a stream.FindInsertion that reads a change stream of the member. It finds nothing before
// 6.0, whose events name no UUID.
func (s *Streamed) FindInsertion(ctx context.Context,
	run func(context.Context, string, bson.D) (bsoncore.Document, error), in stream.Insertion) (at mongo.OpTime,
	found bool, err error) {
	support, err := s.Support(ctx)
	if err != nil || !support.Expanded {
		return at, false, err
	}
	times, err := insertions(ctx, run, in)
	if err != nil || len(times) != 1 {
		return at, false, mongo.Wrap(err, "read the change stream")
	}
	return times[0], true, nil
}

// insertions reads the stream up to the end of the insertion's span.
func insertions(ctx context.Context, run func(context.Context, string, bson.D) (bsoncore.Document, error),
	in stream.Insertion) (times []mongo.OpTime, err error) {
	const poll = 100 // milliseconds
	reply, err := run(ctx, "admin", bson.D{{Key: "aggregate", Value: 1},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$changeStream", Value: bson.D{{Key: "allChangesForCluster", Value: true},
				{Key: "showExpandedEvents", Value: true}, {Key: "startAtOperationTime", Value: in.After.TS}}}},
			bson.D{{Key: "$match", Value: bson.D{{Key: "operationType", Value: "insert"},
				{Key: "collectionUUID", Value: in.UUID}, {Key: "documentKey._id", Value: bson.D{{Key: "$eq", Value: in.ID}}}}}},
			bson.D{{Key: "$project", Value: bson.D{{Key: "clusterTime", Value: 1}}}}}},
		{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: 0}}}})
	for batch := "firstBatch"; err == nil; batch = "nextBatch" {
		docs, err := bson.Raw(reply).Lookup("cursor", batch).Array().Values()
		if err != nil {
			return nil, err
		}
		for _, d := range docs {
			t, i, _ := d.Document().Lookup("clusterTime").TimestampOK()
			one := mongo.OpTime{TS: bson.Timestamp{T: t, I: i}, Term: -1}
			if in.After.Before(one) && !in.Until.Before(one) {
				times = append(times, one)
			}
		}
		id, _ := bson.Raw(reply).Lookup("cursor", "id").AsInt64OK()
		if id == 0 {
			return times, nil
		}
		if in.Until.Before(changestream.TimeOf(bson.Raw(reply))) {
			_, err = run(ctx, "admin", bson.D{{Key: "killCursors", Value: "$cmd.aggregate"},
				{Key: "cursors", Value: bson.A{id}}})
			return times, err
		}
		reply, err = run(ctx, "admin", bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "$cmd.aggregate"},
			{Key: "maxTimeMS", Value: int64(poll)}})
		if err != nil {
			return nil, err
		}
	}
	return times, err
}
