package follow

import (
	"bytes"
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/versions"
	"github.com/millrace/millrace/internal/wire"
)

// targetVersions reads the histories of documents on the target. It implements
// transform.Versions.
type targetVersions struct {
	target *mongo.Cluster
	sink   Sink
}

// Settle implements transform.Versions.
func (v targetVersions) Settle(ctx context.Context) error { return v.sink.Drain(ctx) }

// Applied implements transform.Versions.
func (v targetVersions) Applied() mongo.OpTime { return v.sink.Applied().At }

// together is the number of documents per command: a pipeline has at most 1000 stages.
const together = 200

// Before implements transform.Versions.
func (v targetVersions) Before(ctx context.Context, target string, asked []versions.Asked,
	most int) (found []bson.Raw, err error) {
	found = make([]bson.Raw, len(asked))
	size := 0
	for from := 0; from < len(asked); from += together {
		some := asked[from:min(from+together, len(asked))]
		where := make(map[string]int, len(some))
		for i, one := range some {
			where[delta.KeyOf(one.Key)] = from + i
		}
		err := v.read(ctx, target, func(coll string) bson.D {
			return bson.D{{Key: "aggregate", Value: coll}, {Key: "pipeline", Value: versions.Before(coll, some)},
				{Key: "cursor", Value: bson.D{}}}
		}, func(doc []byte) error {
			one, err := versions.Parse(doc)
			i, ok := where[delta.KeyOf(one.Key)]
			if err != nil || !ok {
				return err
			}
			if size += len(doc); size > most && len(asked) > 1 {
				return transform.ErrTooMuch
			}
			found[i] = bytes.Clone(doc)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Last implements transform.Versions.
func (v targetVersions) Last(ctx context.Context, target string, before versions.Position,
	fn func(version bson.Raw) error) error {
	newest := versions.NewNewest(before)
	err := v.read(ctx, target, func(coll string) bson.D {
		return bson.D{{Key: "find", Value: coll}, {Key: "hint", Value: bson.D{{Key: "_id", Value: 1}}},
			{Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}},
			{Key: "projection", Value: versions.ShapeFields()}, {Key: "noCursorTimeout", Value: true}}
	}, func(doc []byte) error {
		last, err := newest.Add(doc)
		if err != nil || last == nil {
			return err
		}
		return fn(last)
	})
	if last := newest.End(); err == nil && last != nil {
		err = fn(last)
	}
	return err
}

// read calls fn for the results of a command on the target's primary, which has all writes.
func (v targetVersions) read(ctx context.Context, target string, command func(coll string) bson.D,
	fn func(doc []byte) error) error {
	conn, err := v.target.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return err
	}
	defer conn.Release()
	db, coll := mongo.SplitNS(target)
	cur, err := conn.OpenCursor(ctx, db, command(coll), wire.CursorOptions{})
	if err != nil {
		return fmt.Errorf("read %s on the target: %w", target, err)
	}
	for {
		b, err := cur.Next(ctx)
		if err != nil {
			return fmt.Errorf("read %s on the target: %w", target, err)
		}
		if err := b.Each(fn); err != nil {
			cur.Close(ctx)
			return err
		}
		if b.Done {
			return nil
		}
	}
}

// sourceIDs returns the source's _ids of target documents: _ids of versions contain them.
func (s *Source) sourceIDs(from stream.Origin, ids []bson.RawValue) []bson.RawValue {
	if !s.route(from).History {
		return ids
	}
	out := make([]bson.RawValue, len(ids))
	for i, id := range ids {
		key, _, _ := versions.IsID(bsonraw.FromRaw(id))
		out[i] = bsonraw.RawValue(key)
	}
	return out
}
