package commands

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// Read adds the collections of a database, as its server has them now.
func Read(ctx context.Context, db *mongo.Database, into map[string]Actual) error {
	specs, err := db.ListCollectionSpecifications(ctx, bson.D{})
	if err != nil {
		return err
	}
	for _, spec := range specs {
		var a Actual
		a.Capped, _ = spec.Options.Lookup("capped").BooleanOK()
		cur, err := db.RunCommandCursor(ctx, bson.D{{Key: "find", Value: spec.Name},
			{Key: "hint", Value: bson.D{{Key: "$natural", Value: 1}}}})
		if err != nil {
			return err
		}
		if err := cur.All(ctx, &a.Docs); err != nil {
			return err
		}
		indexes, err := db.Collection(spec.Name).Indexes().ListSpecifications(ctx)
		if err != nil {
			return err
		}
		for _, ix := range indexes {
			if ix.Name != "_id_" {
				a.Indexes = append(a.Indexes, ix.Name)
			}
		}
		into[db.Name()+"."+spec.Name] = a
	}
	return nil
}
