package sharded

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/millrace/millrace/workshop/lab"
)

// Map says which shard owns what in a cluster, and changes it. Its methods may be called concurrently.
type Map struct{ *members }

// Chunk is an entry of the chunk map: a range of shard keys and who owns it.
type Chunk struct {
	ID      bson.RawValue  `bson:"_id"` // ID is the entry's own.
	Min     bson.Raw       `bson:"min"` // Min and Max bound the range, Max excluded.
	Max     bson.Raw       `bson:"max"`
	Shard   string         `bson:"shard"`   // Shard is the owner's name.
	Version bson.Timestamp `bson:"lastmod"` // Version is the chunk's.
	History []Owned        `bson:"history"` // History says who owned it since when, the newest first.
}

// Owned is a part of a chunk's history.
type Owned struct {
	Since bson.Timestamp `bson:"validAfter"` // Since is the first time at which the shard owns the chunk.
	Shard string         `bson:"shard"`      // Shard is the owner's name.
}

// Collection is what the config servers know of a sharded collection.
type Collection struct {
	NS     string      `bson:"_id"`    // NS is its namespace.
	Key    bson.D      `bson:"key"`    // Key is the shard key.
	UUID   bson.Binary `bson:"uuid"`   // UUID is the same on all shards.
	Unique bool        `bson:"unique"` // Unique says that the shard key is.
	// Epoch is another one each time the collection is made or its key changes.
	Epoch     bson.ObjectID  `bson:"lastmodEpoch"`
	Timestamp bson.Timestamp `bson:"timestamp"` // Timestamp is the epoch as a time, from 5.0 on.
}

// ErrNotSharded says that a collection is not sharded, or not there at all.
var ErrNotSharded = errors.New("the collection is not sharded")

// Collection reads what the config servers know of a collection.
func (m *Map) Collection(ctx context.Context, ns string) (*Collection, error) {
	var found Collection
	err := m.configData("collections").FindOne(ctx, bson.D{
		{Key: "_id", Value: ns}, {Key: "dropped", Value: bson.D{{Key: "$ne", Value: true}}}, // 4.4 leaves it there
	}).Decode(&found)
	if errors.Is(err, mongo.ErrNoDocuments) {
		err = ErrNotSharded
	}
	if err != nil {
		return nil, fmt.Errorf("lab: find collection %s of %s: %w", ns, m.name, err)
	}
	return &found, nil
}

// configData is a collection of the config servers, as a majority has it.
func (m *Map) configData(name string) *mongo.Collection {
	return m.config.client.Database("config").
		Collection(name, options.Collection().SetReadConcern(readconcern.Majority()).SetWriteConcern(writeconcern.Majority()))
}

// ofChunks is the filter for a collection's chunks, which before 5.0 name it and since have its UUID.
func (m *Map) ofChunks(coll *Collection) bson.E {
	if m.server.AtLeast(5, 0) {
		return bson.E{Key: "uuid", Value: coll.UUID}
	}
	return bson.E{Key: "ns", Value: coll.NS}
}

// Chunks is the chunk map of a collection, in the order of keys.
func (m *Map) Chunks(ctx context.Context, ns string) ([]Chunk, error) {
	coll, err := m.Collection(ctx, ns)
	if err != nil {
		return nil, err
	}
	var chunks []Chunk
	cursor, err := m.configData("chunks").Find(ctx, bson.D{m.ofChunks(coll)},
		options.Find().SetSort(bson.D{{Key: "min", Value: 1}}))
	if err == nil {
		err = cursor.All(ctx, &chunks)
	}
	return chunks, lab.Wrap(err, "lab: read the chunks of %s", ns)
}

// ChunkAt returns the chunk of a shard key, hashed where the key is. Missing last fields are MinKey.
func (m *Map) ChunkAt(ctx context.Context, ns string, key any) (Chunk, error) {
	coll, err := m.Collection(ctx, ns)
	if err != nil {
		return Chunk{}, err
	}
	complete, err := coll.completeKey(key)
	if err != nil {
		return Chunk{}, err
	}
	return m.chunkAt(ctx, coll, complete)
}

// chunkAt lets the server compare, which knows the order of all types.
func (m *Map) chunkAt(ctx context.Context, coll *Collection, key bson.D) (chunk Chunk, err error) {
	literal := bson.D{{Key: "$literal", Value: key}}
	err = m.configData("chunks").FindOne(ctx, bson.D{
		m.ofChunks(coll),
		{Key: "$expr", Value: bson.D{{Key: "$and", Value: bson.A{
			bson.D{{Key: "$lte", Value: bson.A{"$min", literal}}},
			bson.D{{Key: "$gt", Value: bson.A{"$max", literal}}},
		}}}},
	}).Decode(&chunk)
	return chunk, lab.Wrap(err, "lab: find the chunk of %s that has %v", coll.NS, key)
}

// completeKey returns a shard key with all its fields, missing ones as MinKey.
func (coll *Collection) completeKey(key any) (bson.D, error) {
	raw, err := bson.Marshal(key)
	if err != nil {
		return nil, fmt.Errorf("lab: read a shard key of %s: %w", coll.NS, err)
	}
	var complete bson.D
	for _, field := range coll.Key {
		var value any = bson.MinKey{}
		if v, err := bson.Raw(raw).LookupErr(field.Key); err == nil {
			value = v
		}
		complete = append(complete, bson.E{Key: field.Key, Value: value})
	}
	return complete, nil
}

// OwnerOf is the name of the shard that owns a document of a sharded collection.
func (m *Map) OwnerOf(ctx context.Context, ns string, document any) (string, error) {
	coll, err := m.Collection(ctx, ns)
	if err != nil {
		return "", err
	}
	key, err := m.keyOf(ctx, coll, document)
	if err != nil {
		return "", err
	}
	chunk, err := m.chunkAt(ctx, coll, key)
	return chunk.Shard, err
}

// keyOf takes the shard key out of a document. What a document lacks is null to the server.
func (m *Map) keyOf(ctx context.Context, coll *Collection, document any) (bson.D, error) {
	raw, err := bson.Marshal(document)
	if err != nil {
		return nil, fmt.Errorf("lab: read a document of %s: %w", coll.NS, err)
	}
	var key bson.D
	for _, field := range coll.Key {
		value, err := bson.Raw(raw).LookupErr(strings.Split(field.Key, ".")...)
		if err != nil {
			value = bson.RawValue{Type: bson.TypeNull}
		}
		part := bson.E{Key: field.Key, Value: value}
		if field.Value == "hashed" {
			if part.Value, err = m.Hash(ctx, value); err != nil {
				return nil, err
			}
		}
		key = append(key, part)
	}
	return key, nil
}

// Hash hashes a value as shard keys are: the server does, by a hashed index, whose key is read back. Before 6.0 no
// expression does that. The database local of the config servers has no oplog.
func (m *Map) Hash(ctx context.Context, value any) (int64, error) {
	coll := m.config.client.Database("local").Collection("millrace.hashes")
	index := bson.D{{Key: "v", Value: "hashed"}}
	if _, err := coll.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: index}); err != nil {
		return 0, fmt.Errorf("lab: hash a shard key: %w", err)
	}
	id := bson.NewObjectID()
	if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "v", Value: value}}); err != nil {
		return 0, fmt.Errorf("lab: hash a shard key: %w", err)
	}
	defer func() { _, _ = coll.DeleteOne(context.WithoutCancel(ctx), bson.D{{Key: "_id", Value: id}}) }()
	var found struct {
		Hash int64 `bson:"v"`
	}
	err := coll.FindOne(ctx, bson.D{{Key: "v", Value: value}, {Key: "_id", Value: id}},
		options.FindOne().SetHint(index).SetReturnKey(true)).Decode(&found)
	if err != nil {
		return 0, fmt.Errorf("lab: hash a shard key: %w", err)
	}
	return found.Hash, nil
}

// ShardVersion returns what makes a shard refuse a command (StaleConfig, 13388) unless it agrees with the chunk
// map: its newest chunk version, with the collection's epoch.
func (m *Map) ShardVersion(ctx context.Context, ns, shard string) (any, error) {
	coll, err := m.Collection(ctx, ns)
	if err != nil {
		return nil, err
	}
	var newest Chunk
	err = m.configData("chunks").FindOne(ctx, bson.D{m.ofChunks(coll), {Key: "shard", Value: shard}},
		options.FindOne().SetSort(bson.D{{Key: "lastmod", Value: -1}})).Decode(&newest)
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) { // which is version 0
		return nil, fmt.Errorf("lab: read the version of %s on %s: %w", ns, shard, err)
	}
	return m.server.ShardVersion(coll.Epoch, coll.Timestamp, newest.Version), nil
}
