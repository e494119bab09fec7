package bsonraw

import (
	"strings"
	"testing"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

func TestIDs(t *testing.T) {
	doc := func(v bson.D) []byte {
		raw, err := bson.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	for text, d := range map[string][]byte{
		`{"$numberInt":"7"}`: doc(bson.D{{Key: "_id", Value: int32(7)}, {Key: "a", Value: 1}}),
		`"x"`:                doc(bson.D{{Key: "a", Value: 1}, {Key: "_id", Value: "x"}}),
		"null":               doc(bson.D{{Key: "_id", Value: nil}}),
		"":                   doc(bson.D{{Key: "a", Value: 1}}),
	} {
		id := IDOf(d)
		if got := IDText(id); got != text {
			t.Errorf("%s, want %s", got, text)
		}
		if !FromRaw(RawValue(id)).Equal(id) || !KeyID(string(AppendID(nil, id))).Equal(id) || !Clone(id).Equal(id) {
			t.Errorf("%s changes on its way", text)
		}
		if n := testing.AllocsPerRun(100, func() { IDOf(d) }); n > 0 {
			t.Errorf("%s: %v allocations", text, n)
		}
	}
	long := ID{Type: bsoncore.TypeString, Data: bsoncore.AppendString(nil, strings.Repeat("ä", 300))}
	if s := IDText(long); len(s) > 210 || !utf8.ValidString(s) || !strings.HasSuffix(s, "…") {
		t.Errorf("cut to %d bytes: %q", len(s), s)
	}
	if id := IDOf([]byte("\x10\x00\x00\x00\x02_id\x00\xff\xff\xff\x7f\x00\x00\x00")); id.Type != 0 {
		t.Error("a malformed document has an _id")
	}
}
