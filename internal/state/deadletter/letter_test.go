package deadletter

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/test/kit"
)

func TestEmbeddable(t *testing.T) {
	deep := bson.D{}
	for range maxDepth + 2 {
		deep = bson.D{{Key: "d", Value: deep}}
	}
	for name, c := range map[string]struct {
		doc  any
		want bool
	}{
		"plain":         {bson.D{{Key: "_id", Value: 1}, {Key: "a.b", Value: 2}, {Key: "", Value: bson.A{bson.D{}}}}, true},
		"name twice":    {bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: 2}, {Key: "a", Value: 3}}, true},
		"dollar":        {bson.D{{Key: "_id", Value: 1}, {Key: "$a", Value: 2}}, false},
		"dollar inside": {bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: bson.A{bson.D{{Key: "$in", Value: 2}}}}}, false},
		"deep":          {deep, false},
		"large":         {bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: strings.Repeat("x", maxEmbedded)}}, false},
	} {
		if got := embeddable(kit.Raw(c.doc)); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestLetterID(t *testing.T) {
	id := func(v any) bsoncore.Value {
		return bsoncore.Document(kit.Raw(bson.D{{Key: "_id", Value: v}})).Lookup("_id")
	}
	at := mongo.OpTime{TS: bson.Timestamp{T: 7, I: 1}}
	base := Letter{NS: "a.b", DocID: id(1), At: at, State: Open}
	seen := map[string]string{letterID("j", base): "base"}
	if undecided := base; letterID("j", Letter{NS: undecided.NS, DocID: undecided.DocID, At: at,
		State: Undecided}) != letterID("j", base) {
		t.Error("the same refusal has two ids")
	}
	for name, l := range map[string]Letter{
		"type":      {NS: "a.b", DocID: id(1.0), At: at},
		"namespace": {NS: "a.c", DocID: id(1), At: at},
		"position":  {NS: "a.b", DocID: id(1), At: mongo.OpTime{TS: bson.Timestamp{T: 7, I: 2}}},
		"removed":   {NS: "a.b", DocID: id(1), At: at, State: Removed},
	} {
		got := letterID("j", l)
		if other, ok := seen[got]; ok {
			t.Errorf("%s has the id of %s", name, other)
		}
		seen[got] = name
	}
}
