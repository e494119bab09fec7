package replicate

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/tail"
)

// cappedStarts finds, for each capped collection of the target, up to which
// position its inserts need not be replayed: that of its newest document. What
// was inserted before it is there, or has rolled off; inserted again it would
// come to stand behind newer documents. Keyed by target namespace; a
// collection whose newest document is older than from is not in it.
func (j *Job) cappedStarts(ctx context.Context, from, until mongo.OpTime) (map[string]mongo.OpTime, error) {
	newest, err := j.newestOfCapped(ctx)
	if err != nil || len(newest) == 0 {
		return nil, err
	}
	var sources bson.A
	bySource := map[string]string{}
	for ns := range newest {
		if src, ok := j.rules.Source(ns); ok {
			sources = append(sources, src)
			bySource[src] = ns
		}
	}
	starts := map[string]mongo.OpTime{}
	found := func(ns string, at mongo.OpTime, id bson.RawValue) {
		if ns := bySource[ns]; ns != "" && newest[ns].Equal(id) {
			starts[ns] = at
		}
	}
	if s := j.spooler.source(); tail.Spooled(s, from) { // the oplog may begin later
		if err := tail.SpooledInserts(s, from, until, found); err != nil {
			return nil, fmt.Errorf("look for inserts into capped collections: %w", err)
		}
	}
	cur, err := j.src.Client.Database("local", options.Database().SetReadConcern(readconcern.Majority())).Collection("oplog.rs").
		Find(ctx, bson.D{
			{Key: "ts", Value: bson.D{{Key: "$gt", Value: from.TS}, {Key: "$lte", Value: until.TS}}},
			{Key: "op", Value: "i"}, {Key: "ns", Value: bson.D{{Key: "$in", Value: sources}}},
		}, options.Find().SetProjection(bson.D{{Key: "ns", Value: 1}, {Key: "ts", Value: 1}, {Key: "t", Value: 1}, {Key: "o._id", Value: 1}}))
	if err != nil {
		return nil, fmt.Errorf("look for inserts into capped collections: %w", err)
	}
	var e struct {
		mongo.OpTime `bson:",inline"`
		NS           string `bson:"ns"`
		O            struct {
			ID bson.RawValue `bson:"_id"`
		} `bson:"o"`
	}
	for cur.Next(ctx) {
		if err := cur.Decode(&e); err != nil {
			return nil, fmt.Errorf("look for inserts into capped collections: %w", err)
		}
		found(e.NS, e.OpTime, e.O.ID)
	}
	if err := cur.Err(); err != nil {
		return nil, fmt.Errorf("look for inserts into capped collections: %w", err)
	}
	return starts, nil
}

// newestOfCapped reads the _id of the last document of each capped collection
// of the target that is ours.
func (j *Job) newestOfCapped(ctx context.Context) (map[string]bson.RawValue, error) {
	dbs, err := j.dst.Client.ListDatabaseNames(ctx, bson.D{})
	if err != nil {
		return nil, fmt.Errorf("list databases of the target: %w", err)
	}
	out := map[string]bson.RawValue{}
	for _, db := range dbs {
		if !j.rules.MatchTargetDB(db) {
			continue
		}
		// Not ListCollectionNames: asked for names only, the server has no
		// options to filter by and finds nothing.
		specs, err := j.dst.Client.Database(db).ListCollectionSpecifications(ctx, bson.D{{Key: "options.capped", Value: true}})
		if err != nil {
			return nil, fmt.Errorf("list capped collections of %s: %w", db, err)
		}
		for _, spec := range specs {
			name := spec.Name
			if src, ok := j.rules.Source(db + "." + name); !ok || !j.keep(src) {
				continue
			}
			raw, err := j.dst.Client.Database(db).Collection(name).FindOne(ctx, bson.D{},
				options.FindOne().SetSort(bson.D{{Key: "$natural", Value: -1}}).SetProjection(bson.D{{Key: "_id", Value: 1}})).Raw()
			if errors.Is(err, driver.ErrNoDocuments) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("read newest document of %s.%s: %w", db, name, err)
			}
			out[db+"."+name] = raw.Lookup("_id")
		}
	}
	return out, nil
}
