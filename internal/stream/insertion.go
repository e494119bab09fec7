package stream

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
)

// Insertion is the insert of one document into a collection, after a position and
// up to another.
type Insertion struct {
	UUID         bson.Binary
	ID           bson.RawValue
	After, Until mongo.OpTime
}

// FindInsertion finds the position of an insertion by commands that run sends to
// one member. found is false where there is none, or more than one.
type FindInsertion func(ctx context.Context, run func(context.Context, string, bson.D) (bsoncore.Document, error),
	in Insertion) (at mongo.OpTime, found bool, err error)
