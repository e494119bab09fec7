package router

import (
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The forms of versions are what servers answer as vReceived and vWanted.

// stamp is what a command to a shard carries so that the shard can refuse it when
// the table is old.
func (f features) stamp(t *table, shard string) bson.D {
	if t.db.primary == configName && !t.sharded {
		return nil
	}
	if t.sharded {
		return bson.D{{Key: "shardVersion", Value: f.shardVersion(t.epoch, t.timestamp, t.versions[shard])}}
	}
	d := bson.D{{Key: "shardVersion", Value: f.shardVersion(bson.ObjectID{}, bson.Timestamp{}, bson.Timestamp{})}}
	if t.db.version != nil {
		d = append(d, bson.E{Key: "databaseVersion", Value: t.db.version})
	}
	return d
}

// ignored is the version of a write that goes to several shards at once, which no
// shard refuses.
func (f features) ignored() bson.D {
	epoch := bson.ObjectID{4: 0xff, 5: 0xff, 6: 0xff, 7: 0xff, 8: 0xff, 9: 0xff, 10: 0xff, 11: 0xff}
	highest := bson.Timestamp{T: math.MaxUint32, I: math.MaxUint32}
	return bson.D{{Key: "shardVersion", Value: f.shardVersion(epoch, highest, bson.Timestamp{})}}
}

// shardVersion writes a version in the servers' form.
func (f features) shardVersion(epoch bson.ObjectID, timestamp, version bson.Timestamp) any {
	switch {
	case !f.atLeast(5, 0):
		return bson.A{version, epoch}
	case !f.atLeast(6, 0):
		return bson.A{version, epoch, timestamp}
	}
	return bson.D{{Key: "e", Value: epoch}, {Key: "t", Value: timestamp}, {Key: "v", Value: version}}
}
