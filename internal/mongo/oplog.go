package mongo

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

// Oplog is the collection of a replica set's oplog.
func (c *Cluster) Oplog() *driver.Collection {
	return c.Client.Database("local").Collection("oplog.rs")
}

// EachEntry calls fn for the matching entries of the primary's oplog, the oldest first, and reuses the bytes. It
// reads with majority concern after a time: a newly elected primary may not know yet that entries are committed.
func (c *Cluster) EachEntry(ctx context.Context, filter bson.D, at bson.Timestamp, fn func(bson.Raw) error) error {
	cur, err := c.Client.Database("local").RunCommandCursor(ctx, bson.D{
		{Key: "find", Value: "oplog.rs"}, {Key: "filter", Value: filter},
		{Key: "sort", Value: bson.D{{Key: "$natural", Value: 1}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}, {Key: "afterClusterTime", Value: at}}},
	}, options.RunCmd().SetReadPreference(readpref.Primary()))
	if err != nil {
		return err
	}
	defer func() { _ = cur.Close(context.WithoutCancel(ctx)) }()
	for cur.Next(ctx) {
		if err := fn(cur.Current); err != nil {
			return err
		}
	}
	return cur.Err()
}

// OldestEntry returns the position of the oldest entry. begins says that it is the first entry of the replica set
// (seen on 4.2 to 6.0), so that no entry was lost.
func (c *Cluster) OldestEntry(ctx context.Context) (at OpTime, begins bool, err error) {
	fields := bson.D{{Key: "ts", Value: 1}, {Key: "t", Value: 1}, {Key: "op", Value: 1}, {Key: "o.msg", Value: 1}}
	raw, err := c.Oplog().FindOne(ctx, bson.D{},
		options.FindOne().SetSort(bson.D{{Key: "$natural", Value: 1}}).SetProjection(fields)).Raw()
	if err == nil {
		err = bson.Unmarshal(raw, &at)
	}
	if err != nil {
		return at, false, Wrap(err, "read the oldest oplog entry of %s", c.Address())
	}
	op, _ := raw.Lookup("op").StringValueOK()
	msg, _ := raw.Lookup("o", "msg").StringValueOK()
	return at, op == "n" && msg == "initiating set", nil
}
