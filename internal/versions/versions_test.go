package versions

import (
	"bytes"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
)

func raw(t *testing.T, json string) (out bson.Raw) {
	t.Helper()
	if err := bson.UnmarshalExtJSON([]byte(json), false, &out); err != nil {
		t.Fatal(json, err)
	}
	return out
}

func ts(at, i uint32) bson.Timestamp { return bson.Timestamp{T: at, I: i} }

// TestParse: what is written is read, with an _id of any type.
func TestParse(t *testing.T) {
	for _, id := range []string{`1`, `"a"`, `null`, `{"a": 1, "$ref": "x"}`, `{"$minKey": 1}`, `{"$numberDouble": "NaN"}`,
		`{"k": 1, "t": {"$timestamp": {"t": 1, "i": 2}}, "n": 3}`} {
		doc := raw(t, `{"_id": `+id+`, "op": "x", "doc": {"a": 1}}`)
		for _, v := range []Version{
			{Op: "update", Position: Position{ts(7, 8), 9}, Doc: doc},
			{Op: Copy, Position: Position{T: ts(7, 8)}, At: ts(9, 1), Doc: doc},
			{Op: "delete", Position: Position{ts(1<<32-1, 1<<32-1), 1<<31 - 1}},
		} {
			v.Key = bsonraw.IDOf(doc)
			got, err := Parse(Append(nil, v))
			if err != nil || !got.Key.Equal(v.Key) || got.Position != v.Position || got.Op != v.Op || got.At != v.At ||
				!bytes.Equal(got.Doc, v.Doc) || (got.Doc == nil) != (v.Doc == nil) {
				t.Errorf("%v became %v, %v", v, got, err)
			}
			if len(Append(nil, v)) > len(v.Doc)+len(v.Key.Data)+Size {
				t.Errorf("%v is larger than was said", v)
			}
		}
	}
	for _, other := range []string{`{}`, `{"_id": 1}`, `{"_id": {"k": 1, "t": 2, "n": 3}, "op": "copy"}`,
		`{"_id": {"k": 1, "t": {"$timestamp": {"t": 1, "i": 2}}, "n": 3}}`} {
		if v, err := Parse(raw(t, other)); err == nil {
			t.Errorf("%s is taken for %v", other, v)
		}
	}
}

// TestUpdate: the update of what was copied makes of it the copy of the updated document.
func TestUpdate(t *testing.T) {
	doc := raw(t, `{"_id": 1, "at": 5, "doc": {"doc": 1}, "a": {"b": [1, {"c": 2}, 3], "0": 1}, "v": [1, 2, 3, 4]}`)
	start, at := ts(10, 1), ts(20, 2)
	for _, update := range []string{
		`{"$v": 2, "diff": {"u": {"at": 6}, "i": {"new": {"x": 1}}}}`,
		`{"$v": 2, "diff": {"d": {"a": false, "at": false}}}`,
		`{"$v": 2, "diff": {"sdoc": {"u": {"doc": 2}}, "sa": {"sb": {"a": true, "u0": 9, "s1": {"i": {"d": 1}}}}}}`,
		`{"$v": 2, "diff": {"d": {"doc": false}, "sv": {"a": true, "l": 2}}}`,
		`{"$v": 1, "$set": {"at": 6, "a.b.1.c": 3, "doc.doc": 4}, "$unset": {"a.0": true}}`,
		`{"$unset": {"v": true}}`,
		`{"$set": {"v.5": 1, "w.x": 2}}`,
	} {
		u := raw(t, update)
		form := delta.KindOf(u)
		apply := func(to, o bson.Raw) bson.Raw {
			d, err := delta.ParseAs(form, o)
			if err != nil {
				t.Fatalf("%s: %v", o, err)
			}
			out, skipped, err := delta.Apply(nil, to, d)
			if err != nil || skipped > 0 {
				t.Fatalf("%s: %d skipped, %v", o, skipped, err)
			}
			return out
		}
		out, err := AppendUpdate([]byte("xy"), form, u, at)
		if err != nil || string(out[:2]) != "xy" {
			t.Fatalf("%s: %v", update, err)
		}
		got := apply(AppendCopy(nil, doc, start, start), out[2:])
		if want := bson.Raw(AppendCopy(nil, apply(doc, u), start, at)); !bytes.Equal(got, want) {
			t.Errorf("%s\nas %s\ngives %s\nwant  %s", update, bson.Raw(out[2:]), got, want)
		}
	}
	if _, err := AppendUpdate(nil, delta.Replacement, doc, at); err == nil {
		t.Error("a document is taken for an update")
	}
}

// TestNewest: of each document the newest version before a position is found, also where
// the bytes of equal _ids differ.
func TestNewest(t *testing.T) {
	key := func(json string) bsonraw.ID { return bsonraw.Value(raw(t, `{"k": `+json+`}`), "k") }
	at := func(second uint32, n int32) Position { return Position{ts(second, 1), n} }
	list := []Version{
		{Key: key(`1`), Position: at(1, 0), Op: "a"}, {Key: key(`{"$numberLong": "1"}`), Position: at(2, 0), Op: "b"},
		{Key: key(`1.0`), Position: at(2, 1), Op: "c"}, {Key: key(`1`), Position: at(5, 0), Op: "d"},
		{Key: key(`2`), Position: at(5, 0), Op: "e"},
		{Key: key(`3`), Position: at(2, 2), Op: "f"},
	}
	for before, want := range map[Position]string{Ever(): "def", at(5, 0): "cf", at(2, 1): "b", at(1, 0): "",
		at(2, 2): "c", at(5, 1): "def"} {
		w, got := NewNewest(before), ""
		take := func(version bson.Raw) {
			if version != nil {
				v, err := Parse(version)
				if err != nil {
					t.Fatal(err)
				}
				got += v.Op
			}
		}
		buffer := []byte{}
		for _, v := range list {
			buffer = Append(buffer[:0], v) // as a cursor's reply may be
			newest, err := w.Add(buffer)
			if err != nil {
				t.Fatal(err)
			}
			take(newest)
		}
		take(w.End())
		if got != want {
			t.Errorf("before %v: %q, want %q", before, got, want)
		}
	}
	if _, err := NewNewest(Ever()).Add(raw(t, `{"_id": 1}`)); err == nil {
		t.Error("a document is taken for a version")
	}
}
