package schema

import (
	"context"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
)

// Duplicates finds two documents of a collection with one key of an index, where
// the server does not say the key in a form that can be searched for. None are
// found when the index's keys cannot be asked for.
func (b *builder) Duplicates(ctx context.Context, ns string, index bson.Raw) ([]bson.Raw, error) {
	keys, ok := index.Lookup("key").DocumentOK()
	if !ok {
		return nil, nil
	}
	elems, err := keys.Elements()
	if err != nil {
		return nil, fmt.Errorf("read keys of an index of %s: %w", ns, err)
	}
	id := bson.D{}
	for i, e := range elems {
		if strings.HasPrefix(e.Key(), "$") {
			return nil, nil
		}
		id = append(id, bson.E{Key: fmt.Sprint("k", i), Value: bson.D{{Key: "$ifNull", Value: bson.A{"$" + e.Key(), nil}}}})
	}
	match := bson.D{}
	if p, ok := index.Lookup("partialFilterExpression").DocumentOK(); ok {
		match = bson.D{{Key: "$and", Value: bson.A{p}}}
	}
	name, coll := mongo.SplitNS(ns)
	cmd := bson.D{{Key: "aggregate", Value: coll}, {Key: "allowDiskUse", Value: true}, {Key: "cursor", Value: bson.D{}}, {Key: "pipeline", Value: bson.A{
		bson.D{{Key: "$match", Value: match}},
		bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: id}, {Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}},
			{Key: "first", Value: bson.D{{Key: "$first", Value: "$_id"}}}, {Key: "last", Value: bson.D{{Key: "$last", Value: "$_id"}}}}}},
		bson.D{{Key: "$match", Value: bson.D{{Key: "n", Value: bson.D{{Key: "$gt", Value: 1}}}}}},
		bson.D{{Key: "$limit", Value: 1}},
	}}}
	if c, ok := index.Lookup("collation").DocumentOK(); ok {
		cmd = append(cmd, bson.E{Key: "collation", Value: c})
	}
	db := b.c.Client.Database(name)
	cur, err := db.RunCommandCursor(ctx, cmd)
	if err != nil {
		return nil, fmt.Errorf("find duplicate keys of %s: %w", ns, err)
	}
	defer cur.Close(ctx)
	if !cur.Next(ctx) {
		return nil, cur.Err()
	}
	var out []bson.Raw
	for _, which := range []string{"first", "last"} {
		doc, err := db.Collection(coll).FindOne(ctx, bson.D{{Key: "_id", Value: cur.Current.Lookup(which)}},
			options.FindOne().SetCollation(&options.Collation{Locale: "simple"})).Raw()
		if err != nil {
			return nil, fmt.Errorf("read a document of %s: %w", ns, err)
		}
		out = append(out, doc)
	}
	return out, nil
}
