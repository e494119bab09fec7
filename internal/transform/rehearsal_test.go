package transform

import (
	"reflect"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/kit"
)

// TestRehearsal: each rule counts what it decides on, and does to documents.
func TestRehearsal(t *testing.T) {
	rules := mustNew(t, Config{
		Filter:     []string{`a.b={"n":{"$gte":2}}`},
		Fields:     []string{`a.*={"drop":["card"],"convert":{"price":{"to":"int"}},"mask":{"mail":{"first":1}},"rename":{"old":"new"}}`},
		Skip:       []string{"a.c=none", "a.*=delete,drop"},
		SoftDelete: []string{"a.b=gone"},
	})
	r, err := Rehearse(rules)
	if err != nil {
		t.Fatal(err)
	}
	for ns, want := range map[string]bool{"a.b": true, "a.c": true, "b.b": false} {
		if r.Collection(ns) != want {
			t.Errorf("documents of %s are wanted: %v", ns, !want)
		}
	}
	for _, doc := range []bson.D{
		{{Key: "_id", Value: 1}, {Key: "n", Value: 1}, {Key: "price", Value: "x"}}, // not kept
		{{Key: "_id", Value: 2}, {Key: "n", Value: 2}},
		{{Key: "_id", Value: 3}, {Key: "n", Value: 3}, {Key: "price", Value: "free"}, {Key: "card", Value: 1}},
		{{Key: "_id", Value: 4}, {Key: "n", Value: 4}, {Key: "price", Value: "5"}, {Key: "mail", Value: "ann"},
			{Key: "gone", Value: 1}},
	} {
		if err := r.Document("a.b", kit.Raw(doc)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Document("a.c", kit.Raw(bson.D{{Key: "_id", Value: 1}, {Key: "old", Value: 1}})); err != nil {
		t.Fatal(err)
	}
	got := r.Effects()
	for i := range got {
		got[i].Rule = ""
	}
	want := []Effect{
		{Kind: "filter", Collections: 1, Docs: 4, Kept: 3},
		{Kind: "fields", Collections: 2, Docs: 4, Changed: 2, Failed: 1, Why: got[1].Why,
			Parts: []PartEffect{{Rule: `drop → "card"`, Changed: 1}, {Rule: `convert → "price"`, Changed: 1, Failed: 1},
				{Rule: `mask → "mail"`, Changed: 1}, {Rule: `rename → "old"`, Changed: 1}}},
		{Kind: "skip", Collections: 1, Skipped: []string{"none"}},
		{Kind: "skip", Collections: 1, Skipped: []string{"delete", "drop"}},
		{Kind: "soft-delete", Collections: 1, Docs: 3, Marked: 1},
	}
	if !reflect.DeepEqual(got, want) || len(got[1].Why) != 1 || got[1].Why[0].Docs != 1 {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}
