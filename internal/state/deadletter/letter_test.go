package deadletter

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
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
	base := Letter{Origin: stream.Origin{NS: "a.b"}, DocID: id(1), At: at, State: Open}
	seen := map[string]string{letterID("j", base): "base"}
	if undecided := base; letterID("j", Letter{Origin: undecided.Origin, DocID: undecided.DocID, At: at,
		State: Undecided}) != letterID("j", base) {
		t.Error("the same refusal has two ids")
	}
	for name, l := range map[string]Letter{
		"type":      {Origin: stream.Origin{NS: "a.b"}, DocID: id(1.0), At: at},
		"namespace": {Origin: stream.Origin{NS: "a.c"}, DocID: id(1), At: at},
		"position":  {Origin: stream.Origin{NS: "a.b"}, DocID: id(1), At: mongo.OpTime{TS: bson.Timestamp{T: 7, I: 2}}},
		"removed":   {Origin: stream.Origin{NS: "a.b"}, DocID: id(1), At: at, State: Removed},
	} {
		got := letterID("j", l)
		if other, ok := seen[got]; ok {
			t.Errorf("%s has the id of %s", name, other)
		}
		seen[got] = name
	}
}

// TestOptionalFields: a dead letter that is written again loses the optional fields that it has no
// more.
func TestOptionalFields(t *testing.T) {
	some := bson.RawValue{Type: bson.TypeString, Value: bsoncore.AppendString(nil, "x")}
	id := bsoncore.Value{Type: bsoncore.TypeString, Data: bsoncore.AppendString(nil, "x")}
	full := Letter{ID: "l", DocID: id, Doc: kit.Raw(bson.D{{Key: "_id", Value: "x"}}),
		Origin: stream.Origin{NS: "d.c", Source: "d.c",
			UUID: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: make([]byte, 16)}},
		Target: &bson.Binary{Subtype: bson.TypeBinaryUUID, Data: make([]byte, 16)}, Index: "k_1", Other: some}
	write := func(l Letter) (set, unset bson.Raw) {
		var update bson.RawValue
		for _, cmd := range commands("j", &l) {
			raw := kit.Raw(cmd)
			if coll, _ := raw.Lookup("update").StringValueOK(); coll == Collection {
				update = raw.Lookup("updates", "0", "u")
			}
		}
		set, _ = update.Document().Lookup("$set").DocumentOK()
		unset, _ = update.Document().Lookup("$unset").DocumentOK()
		return set, unset
	}
	all, none := write(full)
	if len(none) > 0 {
		t.Errorf("a complete dead letter loses %s", none)
	}
	rest, removed := write(Letter{ID: "l"})
	fields, err := all.Elements()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fields {
		if _, kept := rest.LookupErr(f.Key()); kept == nil {
			continue
		}
		if _, err := removed.LookupErr(f.Key()); err != nil {
			t.Errorf("%s stays as it was", f.Key())
		}
	}
}
