package shards

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// teller has a shard's source say whose schema changes it tells.
type teller struct {
	stream.Source
	shard string
}

// Run implements stream.Source.
func (t teller) Run(ctx context.Context, pos stream.Position, emit func(context.Context, *stream.Batch) error) error {
	return t.Source.Run(ctx, pos, func(ctx context.Context, b *stream.Batch) error {
		for i := range b.Events {
			if ch := b.Events[i].Change; ch != nil {
				ch.Shard = t.shard
			}
		}
		return emit(ctx, b)
	})
}

// PrimaryAt is the shard on which a database's collections that are not sharded were at
// a time, "" for none. sure is false where nobody knows that any more: then it is the one
// of now. Config servers read as of a time from 5.0 on, for some minutes; else their oplog
// tells.
func (c *Cluster) PrimaryAt(ctx context.Context, db string, at mongo.OpTime) (shard string, sure bool, err error) {
	if !c.Before(5, 0) {
		shard, err := c.primaryAsOf(ctx, db, at)
		if err == nil || !mongo.Forgotten(err) && mongo.Classify(err) != mongo.ClassFatal {
			return shard, true, mongo.Wrap(err, "find the shard of database %s", db)
		}
	}
	past, err := c.past.open(ctx, c)
	if err != nil {
		return "", false, fmt.Errorf("find which shard had database %s at %s: %w", db, at, err)
	}
	return past.at(ctx, db, at.TS)
}

func (c *Cluster) primaryAsOf(ctx context.Context, db string, at mongo.OpTime) (string, error) {
	ctx, end, err := c.aware(ctx, c.Router, at)
	if err != nil {
		return "", err
	}
	defer end()
	return c.primary(ctx, db, bson.D{{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: at.TS}})
}

func (c *Cluster) primary(ctx context.Context, db string, concern bson.D) (string, error) {
	cur, err := c.Router.Client.Database("config").RunCommandCursor(ctx, bson.D{{Key: "find", Value: "databases"},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: db}}}, {Key: "readConcern", Value: concern}})
	var found []struct {
		Primary string `bson:"primary"`
	}
	if err == nil {
		err = cur.All(ctx, &found)
	}
	if err != nil || len(found) == 0 {
		return "", err
	}
	return found[0].Primary, nil
}
