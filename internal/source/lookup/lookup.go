// Package lookup reads single documents of the source, beside its changes. It finds them by the
// UUID of their collection, whose name may be another one's by now. It concludes nothing from what
// is missing.
package lookup

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// Collection is one of the source, in a database.
type Collection struct {
	DB   string
	UUID bson.Binary
	// Name replaces the UUID for a router, which knows no UUIDs.
	Name string
}

// Question asks for documents by their _ids.
type Question struct {
	IDs []bson.RawValue
	// At is a position, zero for none: the documents are as of it or later.
	At mongo.OpTime
	// Exact means as of that very position.
	Exact bool
	// Most bounds the bytes of several documents together; 0 does not.
	Most int
	// OnlyIDs gives documents of an _id alone.
	OnlyIDs bool
}

var (
	// ErrForgotten reports that the server does not have the state at the position.
	ErrForgotten = errors.New("the server does not tell documents as of the position")
	// ErrTooMuch reports that the documents exceed Question.Most bytes.
	ErrTooMuch = errors.New("the documents are too large to be read at once")
)

func (q *Question) concern() bson.D {
	level := bson.D{{Key: "level", Value: "majority"}}
	switch {
	case q.Exact:
		return bson.D{{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: q.At.TS}}
	case !q.At.IsZero(): // a standalone has no positions
		level = append(level, bson.E{Key: "afterClusterTime", Value: q.At.TS})
	}
	return level
}

func (q *Question) find(of Collection) bson.D {
	var asked any = of.UUID
	if of.Name != "" {
		asked = of.Name
	}
	find := bson.D{
		{Key: "find", Value: asked},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: q.IDs}}}}},
		{Key: "readConcern", Value: q.concern()},
	}
	if q.OnlyIDs {
		find = append(find, bson.E{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}})
	}
	return find
}

// Find reads documents from the cluster's primary, in the order of the question; nil is a missing
// one.
func Find(ctx context.Context, cluster *mongo.Cluster, of Collection, q Question) ([]bson.Raw, error) {
	if q.Exact && (!cluster.Info.Version.AtLeast(5, 0) || cluster.Info.Kind != mongo.KindReplicaSet) {
		return nil, ErrForgotten
	}
	docs, err := find(ctx, cluster, of, q)
	if q.Exact && forgotten(err) {
		err = fmt.Errorf("%w: %w", ErrForgotten, err)
	}
	return docs, err
}

// forgotten reports that reading as of a position is impossible; the collection may have been
// dropped since.
func forgotten(err error) bool {
	return mongo.Forgotten(err) || mongo.IsCode(err, mongo.CodeNamespaceNotFound) ||
		mongo.IsCode(err, mongo.CodeInvalidOptions)
}

func find(ctx context.Context, cluster *mongo.Cluster, of Collection, q Question) ([]bson.Raw, error) {
	conn, err := cluster.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	cur, err := conn.OpenCursor(ctx, of.DB, q.find(of), wire.CursorOptions{})
	if err != nil {
		return nil, err
	}
	defer cur.Close(ctx)
	a := newAnswer(of, &q)
	for {
		b, err := cur.Next(ctx)
		if err != nil {
			return nil, err
		}
		if err := b.Each(a.take); err != nil || b.Done {
			return a.docs, err
		}
		if a.exceeds(&q) {
			return nil, ErrTooMuch
		}
	}
}

// FindByClient is Find with the cluster's client, through any of several routers. Then the client's cluster
// time is not before what it has returned, whichever router answers next.
func FindByClient(ctx context.Context, cluster *mongo.Cluster, of Collection, q Question) ([]bson.Raw, error) {
	if q.Exact {
		return nil, ErrForgotten
	}
	cur, err := cluster.Client.Database(of.DB).RunCommandCursor(ctx, q.find(of),
		options.RunCmd().SetReadPreference(readpref.Primary()))
	if err != nil {
		return nil, err
	}
	defer func() { _ = cur.Close(context.WithoutCancel(ctx)) }()
	a := newAnswer(of, &q)
	for cur.Next(ctx) {
		if err := a.take(cur.Current); err != nil {
			return nil, err
		}
		if a.exceeds(&q) {
			return nil, ErrTooMuch
		}
	}
	return a.docs, cur.Err()
}

type answer struct {
	of    Collection
	docs  []bson.Raw
	where map[string]int // by the _ids' keys
	bytes int
}

func newAnswer(of Collection, q *Question) *answer {
	a := &answer{of: of, docs: make([]bson.Raw, len(q.IDs)), where: map[string]int{}}
	for i, id := range q.IDs {
		a.where[delta.KeyOf(bsonraw.FromRaw(id))] = i
	}
	return a
}

func (a *answer) exceeds(q *Question) bool { return q.Most > 0 && a.bytes > q.Most && len(q.IDs) > 1 }

func (a *answer) take(doc []byte) error {
	i, ok := a.where[delta.KeyOf(bsonraw.IDOf(doc))]
	if !ok {
		return nil
	}
	if a.docs[i] != nil && a.of.Name != "" {
		return mongo.WithHint(
			fmt.Errorf("%s.%s, _id %s: %w", a.of.DB, a.of.Name, bsonraw.IDText(bsonraw.IDOf(doc)), ErrTwice),
			"a replica set can have but one: give the others new _ids, or exclude the collection")
	}
	a.docs[i] = bytes.Clone(doc)
	a.bytes += len(doc)
	return nil
}

// ErrTwice reports different documents of one _id on several shards, perhaps only while one changed
// its shard.
var ErrTwice = errors.New("several documents of one _id, on different shards")
