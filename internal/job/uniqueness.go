package job

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
)

// mostDuplicates bounds the keys that one index build may stumble over, each of
// which costs a scan.
const mostDuplicates = 1000

// mostUnclear bounds how often the job goes back to its checkpoint because it
// cannot tell which of two documents is in the way.
const mostUnclear = 5

// untangled runs something that builds unique indexes on the drained target,
// again after each duplicate key that the policy on conflicts settles.
func (f *follower) untangled(ctx context.Context, build func() error) error {
	for n := 0; ; n++ {
		err := build()
		var ic *schema.IndexConflict
		if err == nil || !errors.As(err, &ic) || n == mostDuplicates {
			return err
		}
		if err := f.untangle(ctx, ic); err != nil {
			return err
		}
	}
}

func (f *follower) untangle(ctx context.Context, ic *schema.IndexConflict) error {
	j := f.j
	var ce driver.CommandError
	if !errors.As(ic.Err, &ce) {
		return ic
	}
	dup := docwrite.ParseDuplicate(ce.Raw)
	var spec bson.Raw
	for _, s := range ic.Specs {
		if name, _ := s.Lookup("name").StringValueOK(); name == dup.Index() {
			spec = s
		}
	}
	if spec == nil {
		return ic
	}
	const some = 100
	docs, err := docwrite.Holders(ctx, j.dst, ic.NS, dup, spec, nil, nil, some)
	if err == nil && len(docs) < 2 {
		docs, err = j.equalUnder(ctx, ic.NS, spec)
	}
	if err != nil {
		return err
	}
	err = f.eng.Untangle(ctx, mongosink.Clash{NS: ic.NS, Index: dup.Index(), Docs: docs, Reason: ic.Error()})
	var unclear *mongosink.UndecidedError
	if errors.As(err, &unclear) && j.unclear < mostUnclear {
		// From the checkpoint the job first catches up with the source.
		j.unclear++
		return mongo.Retry("it will be clearer after the checkpoint", err, "")
	}
	return err
}

// equalUnder finds documents with one key of an index, where the server does
// not tell the key in a form that can be searched for.
func (j *Job) equalUnder(ctx context.Context, ns string, spec bson.Raw) ([]bson.Raw, error) {
	match := bson.D{}
	if p, ok := spec.Lookup("partialFilterExpression").DocumentOK(); ok {
		match = bson.D{{Key: "$and", Value: bson.A{p}}}
	}
	key := bson.D{}
	keys, ok := spec.Lookup("key").DocumentOK()
	if !ok {
		return nil, nil
	}
	elems, err := keys.Elements()
	if err != nil {
		return nil, fmt.Errorf("read keys of an index of %s: %w", ns, err)
	}
	for i, e := range elems {
		if strings.HasPrefix(e.Key(), "$") {
			return nil, nil
		}
		key = append(key, bson.E{Key: fmt.Sprint("k", i), Value: bson.D{{Key: "$ifNull", Value: bson.A{"$" + e.Key(), nil}}}})
	}
	db, coll := mongo.SplitNS(ns)
	cmd := bson.D{{Key: "aggregate", Value: coll}, {Key: "allowDiskUse", Value: true}, {Key: "cursor", Value: bson.D{}}, {Key: "pipeline", Value: bson.A{
		bson.D{{Key: "$match", Value: match}},
		bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: key}, {Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}},
			{Key: "first", Value: bson.D{{Key: "$first", Value: "$_id"}}}, {Key: "last", Value: bson.D{{Key: "$last", Value: "$_id"}}}}}},
		bson.D{{Key: "$match", Value: bson.D{{Key: "n", Value: bson.D{{Key: "$gt", Value: 1}}}}}},
		bson.D{{Key: "$limit", Value: 1}},
	}}}
	if c, ok := spec.Lookup("collation").DocumentOK(); ok {
		cmd = append(cmd, bson.E{Key: "collation", Value: c})
	}
	cur, err := j.dst.Client.Database(db).RunCommandCursor(ctx, cmd)
	if err != nil {
		return nil, fmt.Errorf("find duplicate keys of %s: %w", ns, err)
	}
	defer cur.Close(ctx)
	if !cur.Next(ctx) {
		return nil, cur.Err()
	}
	var out []bson.Raw
	for _, name := range []string{"first", "last"} {
		doc, err := j.dst.Client.Database(db).Collection(coll).FindOne(ctx, bson.D{{Key: "_id", Value: cur.Current.Lookup(name)}},
			options.FindOne().SetCollation(&options.Collation{Locale: "simple"})).Raw()
		if err != nil {
			return nil, fmt.Errorf("read a document of %s: %w", ns, err)
		}
		out = append(out, doc)
	}
	return out, nil
}
