package copy

import (
	"context"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// sampleNow samples the collection under the name it has at the moment. The
// strategy changes to ByID when the source refuses record order.
func (r *reader) sampleNow(ctx context.Context, c *collection, strategy *Strategy, size int) ([]bsoncore.Value, error) {
	const patience = 3
	for i := 1; ; i++ {
		name, err := r.currentName(ctx, c, *strategy)
		if *strategy == ByRecord && refused(err) {
			r.e.noRecords.Store(true)
			*strategy = ByID
			continue
		}
		if err != nil || name == "" {
			return nil, err
		}
		ids, err := r.sample(ctx, c, name, size)
		if i == patience || !mongo.IsCode(err, mongo.CodeQueryPlanKilled) && !mongo.IsCode(err, mongo.CodeSampleFailed) {
			return r.withoutSample(c, ids, err)
		}
	}
}

// currentName asks what the collection is called now, for aggregate takes no
// UUID; "" when it is empty. It also finds out whether the source can read in
// record order.
func (r *reader) currentName(ctx context.Context, c *collection, strategy Strategy) (string, error) {
	cmd := r.find(c, bson.D{{Key: "limit", Value: 1}, {Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}}})
	if strategy == ByRecord {
		cmd = append(cmd, recordOrder()...)
	}
	body, err := r.command(ctx, c.sourceDB, cmd)
	if err != nil {
		return "", err
	}
	ns, _ := bson.Raw(body).Lookup("cursor", "ns").StringValueOK()
	_, name := mongo.SplitNS(ns)
	return name, nil
}

// sample returns about size random _ids in the order of the _id index. They
// need not exist when they are used.
func (r *reader) sample(ctx context.Context, c *collection, name string, size int) ([]bsoncore.Value, error) {
	size = int(max(min(int64(size), c.Source.Count/25), 2))
	cmd := bson.D{
		{Key: "aggregate", Value: name},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$sample", Value: bson.D{{Key: "size", Value: size}}}},
			bson.D{{Key: "$project", Value: bson.D{{Key: "_id", Value: 1}}}},
			bson.D{{Key: "$sort", Value: bson.D{{Key: "_id", Value: 1}}}},
		}},
		{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: size}}},
	}
	var ids []bsoncore.Value
	err := r.each(ctx, c, cmd, func(doc []byte) error {
		id := bsonraw.IDOf(doc)
		// Bounds at the very ends are refused; equal neighbours are one bound.
		if id.Type == 0 || id.Type == bsoncore.TypeMinKey || id.Type == bsoncore.TypeMaxKey ||
			len(ids) > 0 && sameValue(id, ids[len(ids)-1]) {
			return nil
		}
		ids = append(ids, id)
		return nil
	})
	return ids, err
}

// withoutSample makes a refused sample an empty one: that costs parallelism, not
// the copy.
func (r *reader) withoutSample(c *collection, ids []bsoncore.Value, err error) ([]bsoncore.Value, error) {
	var ce driver.CommandError
	if errors.As(err, &ce) && mongo.Classify(err) == mongo.ClassFatal && ce.Code != mongo.CodeUnauthorized {
		r.e.opts.Log.Warn("no sample; the collection is copied as one slice", "collection", c.Source.NS, "error", err)
		return nil, nil
	}
	return ids, err
}

// locate finds the record ids of the documents that still have these _ids.
func (r *reader) locate(ctx context.Context, c *collection, ids []bsoncore.Value) ([]bson.Raw, error) {
	const perQuery = 1000 // so that large _ids fit into a command
	var marks []bson.Raw
	for part := range slices.Chunk(ids, perQuery) {
		found, err := r.locateSome(ctx, c, part)
		if err != nil {
			return nil, err
		}
		marks = append(marks, found...)
	}
	return marks, nil
}

func (r *reader) locateSome(ctx context.Context, c *collection, ids []bsoncore.Value) ([]bson.Raw, error) {
	in := make(bson.A, len(ids))
	for i, id := range ids {
		in[i] = bsonraw.RawValue(id)
	}
	cmd := r.find(c, bson.D{
		{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: in}}}}},
		{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}},
		{Key: "showRecordId", Value: true}, {Key: "batchSize", Value: len(ids) + 1},
	})
	var marks []bson.Raw
	err := r.each(ctx, c, cmd, func(doc []byte) error {
		rid, err := recordID(doc)
		if err != nil {
			return err
		}
		marks = append(marks, mark(ByRecord, rid, bsonraw.IDOf(doc)))
		return nil
	})
	return marks, err
}

// each runs a cursor command and hands over its documents.
func (r *reader) each(ctx context.Context, c *collection, cmd bson.D, fn func(doc []byte) error) error {
	cur, b, err := r.open(ctx, c.sourceDB, cmd, wire.CursorOptions{})
	if err != nil {
		return err
	}
	defer r.close(ctx, cur)
	for {
		if err := b.Each(fn); err != nil {
			return err
		}
		if b.Done {
			return nil
		}
		if b, err = r.next(ctx, cur); err != nil {
			return err
		}
	}
}

// refused reports a command whose form the server does not take.
func refused(err error) bool {
	var ce driver.CommandError
	if !errors.As(err, &ce) {
		return false
	}
	switch ce.Code {
	case 2, 9, 59, 115, 40415: // BadValue, FailedToParse, CommandNotFound, CommandNotSupported, unknown field
		return true
	}
	return false
}
