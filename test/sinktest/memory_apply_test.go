package sinktest_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
)

// TestMemoryApplies: what each kind of event does, and what it does not do outside the
// overlap.
func TestMemoryApplies(t *testing.T) {
	diff := kit.Raw(bson.D{{Key: "$v", Value: int32(2)},
		{Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "a", Value: 2}}}}}})
	nested := kit.Raw(bson.D{{Key: "$v", Value: int32(2)},
		{Key: "diff", Value: bson.D{{Key: "sa", Value: bson.D{{Key: "u", Value: bson.D{{Key: "x", Value: 2}}}}}}}})
	old, made, changed := kit.Raw(bson.D{{Key: "_id", Value: int32(1)}, {Key: "a", Value: 1}}),
		kit.Raw(bson.D{{Key: "_id", Value: int32(1)}, {Key: "a", Value: 2}}),
		kit.Raw(bson.D{{Key: "_id", Value: int32(1)}, {Key: "a", Value: 2}})
	for i, c := range []struct {
		there   bson.Raw
		kind    stream.Kind
		doc     bson.Raw
		overlap bool
		want    bson.Raw
		fails   bool
	}{
		{nil, stream.Insert, old, false, old, false},
		{old, stream.Replace, changed, false, changed, false},
		{old, stream.Put, changed, false, changed, false},
		{old, stream.Update, diff, false, changed, false},
		{nil, stream.Upsert, diff, false, made, false},
		{nil, stream.Update, diff, false, nil, true},
		{nil, stream.Update, diff, true, nil, false},
		{old, stream.Update, nested, false, old, true},
		{old, stream.Update, nested, true, old, false},
		{old, stream.Update, old, true, old, true},
		{old, stream.Delete, nil, false, nil, false},
		{nil, stream.Delete, nil, false, nil, false},
	} {
		var s memoryStore
		key := stream.Key{ID: bsoncore.Value{Type: bsoncore.TypeInt32, Data: bsoncore.AppendInt32(nil, 1)}}
		if c.there != nil {
			if err := s.Apply(&stream.Event{Kind: stream.Insert, NS: "d.c", Route: &stream.Route{Target: "d.c"}, Key: key,
				Doc: c.there}, false); err != nil {
				t.Fatal(err)
			}
		}
		err := s.Apply(&stream.Event{Kind: c.kind, Form: delta.Diff, NS: "d.c", Route: &stream.Route{Target: "d.c"}, Key: key,
			Doc: c.doc}, c.overlap)
		if (err != nil) != c.fails {
			t.Errorf("case %d: %v", i, err)
		}
		docs := s.Documents("d.c")
		if len(docs) > 1 || (len(docs) == 1) != (c.want != nil) || c.want != nil && string(docs[0]) != string(c.want) {
			t.Errorf("case %d: %v, want %s", i, docs, c.want)
		}
	}
}
