// Package lookup asks the source for single documents beside the stream of its
// changes. Documents are found by the UUID of their collection, whose name may be
// that of another one by now. Nothing is concluded here from what is not there.
package lookup

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// Collection is one of the source, in a database.
type Collection struct {
	DB   string
	UUID bson.Binary
	// Name is asked for in place of the UUID, of a router, which knows no UUIDs.
	Name string
}

func (c Collection) asked() any {
	if c.Name != "" {
		return c.Name
	}
	return c.UUID
}

// Find reads documents of a collection by their _ids, or only their _ids, in a
// committed state at or after a position; nil stands for one that is not there.
func Find(ctx context.Context, cluster *mongo.Cluster, of Collection, ids []bson.RawValue, at mongo.OpTime, onlyIDs bool) ([]bson.Raw, error) {
	where := map[string]int{}
	for i, id := range ids {
		where[delta.KeyOf(bsonraw.FromRaw(id))] = i
	}
	concern := bson.D{{Key: "level", Value: "majority"}}
	if !at.IsZero() { // a standalone has no positions
		concern = append(concern, bson.E{Key: "afterClusterTime", Value: at.TS})
	}
	find := bson.D{
		{Key: "find", Value: of.asked()}, {Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}},
		{Key: "readConcern", Value: concern},
	}
	if onlyIDs {
		find = append(find, bson.E{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}})
	}
	conn, err := cluster.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	cur, err := conn.OpenCursor(ctx, of.DB, find, wire.CursorOptions{})
	if err != nil {
		return nil, err
	}
	docs := make([]bson.Raw, len(ids))
	for {
		b, err := cur.Next(ctx)
		if err != nil {
			return nil, err
		}
		err = b.Each(func(doc []byte) error {
			if i, ok := where[delta.KeyOf(bsonraw.IDOf(doc))]; ok {
				if docs[i] != nil && of.Name != "" {
					return twice(of, doc)
				}
				docs[i] = bytes.Clone(doc)
			}
			return nil
		})
		if err != nil || b.Done {
			return docs, err
		}
	}
}

// ErrTwice says that shards have different documents of one _id, or had for a moment
// while one changed its shard.
var ErrTwice = errors.New("several documents of one _id, on different shards")

// twice names them.
func twice(of Collection, doc []byte) error {
	return mongo.WithHint(fmt.Errorf("%s.%s, _id %s: %w", of.DB, of.Name, bsonraw.IDText(bsonraw.IDOf(doc)), ErrTwice),
		"a replica set can have but one: give the others new _ids, or exclude the collection")
}
