package sharded

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/router"
)

// Sharding is how a collection is sharded.
type Sharding struct {
	Key    bson.D // Key is the shard key: fields with 1, and at most one with "hashed".
	Unique bool   // Unique makes the key's index unique.
	// Chunks is how many a hashed collection begins with; 0 leaves it to the servers. Others: see Split.
	Chunks int
	// Series names the fields of a time-series collection. Its buckets, system.buckets.<name>, are sharded: Split
	// and MoveChunk take their name and keys, such as {meta: 1}.
	Series SeriesFields
}

// SeriesFields are the fields that a time-series collection is made of.
type SeriesFields struct{ Time, Meta string }

// ShardCollection makes a sharded collection in an existing database, or shards one. Documents need an index first.
func (m *Map) ShardCollection(ctx context.Context, ns string, s Sharding) error {
	db, coll, ok := strings.Cut(ns, ".")
	if !ok {
		return fmt.Errorf("lab: invalid namespace %q; use database.collection", ns)
	}
	how := bson.D{{Key: "unique", Value: s.Unique}}
	if s.Chunks > 0 {
		how = append(how, bson.E{Key: "numInitialChunks", Value: s.Chunks})
	}
	if !m.server.AtLeast(5, 0) {
		cmd := bson.D{
			{Key: "_configsvrShardCollection", Value: ns}, {Key: "key", Value: s.Key},
			{Key: "getUUIDfromPrimaryShard", Value: true},
		}
		return m.config.command(ctx, append(append(cmd, how...), majority()))
	}
	if s.Series != (SeriesFields{}) {
		how = append(how, bson.E{Key: "timeseries",
			Value: bson.D{{Key: "timeField", Value: s.Series.Time}, {Key: "metaField", Value: s.Series.Meta}}})
	}
	_, primary, err := m.database(ctx, db)
	if err != nil {
		return err
	}
	_, err = primary.run(ctx, db, func(ctx context.Context) (bson.D, error) {
		d, _, err := m.database(ctx, db)
		cmd := bson.D{
			{Key: "_shardsvrCreateCollection", Value: coll}, {Key: "shardKey", Value: s.Key},
			{Key: "databaseVersion", Value: d.Version},
		}
		return append(append(cmd, how...), majority()), err
	})
	return lab.Wrap(err, "lab: shard collection %s", ns)
}

// Split cuts the chunks of a collection so that each of the shard keys begins one.
func (m *Map) Split(ctx context.Context, ns string, at ...any) error {
	for _, key := range at {
		if err := m.split(ctx, ns, key); err != nil {
			return fmt.Errorf("lab: split %s at %v: %w", ns, key, err)
		}
	}
	return nil
}

// split cuts one chunk, unless one begins there already. The owner is asked, as a mongos asks it.
func (m *Map) split(ctx context.Context, ns string, at any) error {
	coll, err := m.Collection(ctx, ns)
	if err != nil {
		return err
	}
	key, err := coll.completeKey(at)
	if err != nil {
		return err
	}
	begin, err := bson.Marshal(key)
	if err != nil {
		return err
	}
	return m.atOwner(ctx, coll, key, func(chunk Chunk) bson.D {
		if bytes.Equal(chunk.Min, begin) {
			return nil
		}
		return coll.versioned(bson.D{
			{Key: "splitChunk", Value: ns}, {Key: "from", Value: chunk.Shard}, {Key: "keyPattern", Value: coll.Key},
			{Key: "min", Value: chunk.Min}, {Key: "max", Value: chunk.Max}, {Key: "splitKeys", Value: bson.A{key}},
		})
	})
}

// versioned adds which collection a command means.
func (coll *Collection) versioned(cmd bson.D) bson.D {
	cmd = append(cmd, bson.E{Key: "epoch", Value: coll.Epoch})
	if !coll.Timestamp.IsZero() {
		cmd = append(cmd, bson.E{Key: "timestamp", Value: coll.Timestamp})
	}
	return cmd
}

// atOwner sends a key's owner the command of make, unless nil, until the answer does not pass.
func (m *Map) atOwner(ctx context.Context, coll *Collection, key bson.D, make func(Chunk) bson.D) error {
	return poll(ctx, func(ctx context.Context) (bool, error) {
		chunk, err := m.chunkAt(ctx, coll, key)
		if err != nil {
			return true, err
		}
		owner, err := m.shard(chunk.Shard)
		if err != nil {
			return true, err
		}
		if cmd := make(chunk); cmd != nil {
			err = owner.client.Database("admin").RunCommand(ctx, cmd).Err()
		}
		return !passes(err), err
	})
}

// Merge makes one chunk of all that lie between two bounds on the same shard.
func (m *Map) Merge(ctx context.Context, ns string, min, max any) error {
	coll, from, to, err := m.bounds(ctx, ns, min, max)
	if err != nil {
		return err
	}
	err = m.atOwner(ctx, coll, from, func(chunk Chunk) bson.D {
		return coll.versioned(bson.D{
			{Key: "mergeChunks", Value: ns}, {Key: "bounds", Value: bson.A{from, to}}, {Key: "shardName", Value: chunk.Shard},
		})
	})
	return lab.Wrap(err, "lab: merge chunks of %s from %v to %v", ns, from, to)
}

// bounds returns complete keys for two bounds.
func (m *Map) bounds(ctx context.Context, ns string, min, max any) (coll *Collection, from, to bson.D, err error) {
	if coll, err = m.Collection(ctx, ns); err != nil {
		return nil, nil, nil, err
	}
	if from, err = coll.completeKey(min); err != nil {
		return nil, nil, nil, err
	}
	to, err = coll.completeKey(max)
	return coll, from, to, err
}

// MoveChunk moves a shard key's chunk, and waits for the config servers. A chunk does not return to a shard that
// has its orphans, by default for 900 seconds (orphanCleanupDelaySecs).
func (m *Map) MoveChunk(ctx context.Context, ns string, key any, to string) error {
	coll, err := m.Collection(ctx, ns)
	if err != nil {
		return err
	}
	at, err := coll.completeKey(key)
	if err != nil {
		return err
	}
	return m.move(ctx, coll, at, to)
}

// move moves the chunk with a key, again until it arrives. A move fails when another one is under way on a shard, and
// when the shards do not reach each other.
func (m *Map) move(ctx context.Context, coll *Collection, at bson.D, to string) error {
	const operationFailed = 96 // of the migration as a whole
	if _, err := m.shard(to); err != nil {
		return err
	}
	err := poll(ctx, func(ctx context.Context) (bool, error) {
		chunk, err := m.chunkAt(ctx, coll, at)
		if err != nil || chunk.Shard == to {
			return true, err
		}
		err = m.config.client.Database("admin").RunCommand(ctx, m.server.MoveChunk(router.Move{
			NS: coll.NS, UUID: coll.UUID, ID: chunk.ID, Min: chunk.Min, Max: chunk.Max, Shard: chunk.Shard, To: to,
			Lastmod: chunk.Version, Epoch: coll.Epoch, Timestamp: coll.Timestamp,
		})).Err()
		// Else the chunk map has the last word.
		return err != nil && !passes(err) && !hasCode(err, operationFailed), err
	})
	return lab.Wrap(err, "lab: move a chunk of %s to %s", coll.NS, to)
}
