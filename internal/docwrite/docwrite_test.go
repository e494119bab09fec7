package docwrite

import (
	"context"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
	"github.com/millrace/millrace/test/kit"
)

// everyType is a document with a field of each type.
func everyType() bson.D {
	d := bson.D{}
	for i, v := range []any{1.5, "x", bson.D{{Key: "a", Value: 1}}, bson.A{1}, bson.Binary{Subtype: 4, Data: []byte{1}},
		bson.Undefined{},
		bson.ObjectID{1}, true, bson.DateTime(1), nil, bson.Regex{Pattern: "a", Options: "i"}, bson.DBPointer{DB: "x"},
		bson.JavaScript("x"),
		bson.Symbol("x"), bson.CodeWithScope{Code: "x", Scope: bson.D{}}, int32(1), bson.Timestamp{T: 1}, int64(1),
		bson.NewDecimal128(1, 2),
		bson.MaxKey{}, bson.MinKey{}} {
		d = append(d, bson.E{Key: fmt.Sprint("f", i%4), Value: v}) // some names twice
	}
	return d
}

func TestInspect(t *testing.T) {
	for name, tc := range map[string]struct {
		doc  bson.D
		want Special
	}{
		"empty": {bson.D{}, Special{}},
		"top": {bson.D{{Key: "_id", Value: 1}, {Key: "t", Value: bson.Timestamp{}}},
			Special{ZeroTimestamp: true}},
		"_id": {bson.D{{Key: "_id", Value: bson.Timestamp{}}}, Special{}},
		"nested": {bson.D{{Key: "d", Value: bson.D{{Key: "t", Value: bson.Timestamp{}}, {Key: "$d", Value: 1}}}},
			Special{}},
		"not zero": {bson.D{{Key: "t", Value: bson.Timestamp{I: 1}}}, Special{}},
		"dollar": {bson.D{{Key: "_id", Value: 1}, {Key: "", Value: 1}, {Key: "$d", Value: 1}},
			Special{Dollar: true}},
		"both":               {bson.D{{Key: "$d", Value: bson.Timestamp{}}}, Special{Dollar: true, ZeroTimestamp: true}},
		"last of every type": {append(everyType(), bson.E{Key: "t", Value: bson.Timestamp{}}), Special{ZeroTimestamp: true}},
	} {
		got, err := Inspect(kit.Raw(tc.doc))
		if err != nil || got != tc.want || got.Plain() != (tc.want == Special{}) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := Inspect([]byte{9, 0, 0, 0, 2, 'a', 0, 99, 0}); err == nil {
		t.Error("a malformed document passes")
	}
	doc := kit.Raw(everyType())
	if n := testing.AllocsPerRun(100, func() { _, _ = Inspect(doc) }); n > 0 {
		t.Errorf("%v allocations a document", n)
	}
}

func FuzzInspect(f *testing.F) {
	f.Add([]byte{9, 0, 0, 0, 2, 'a', 0, 99, 0})
	f.Add([]byte{5, 0, 0, 0, 0})
	f.Add([]byte{10, 0, 0, 0, 0x0b, 0, 'a', 0, 0, 0})
	f.Fuzz(func(_ *testing.T, doc []byte) {
		_, _ = Inspect(doc)
	})
}

func TestIndexOfDuplicate(t *testing.T) {
	for want, text := range map[string]string{
		"k_1":        `E11000 duplicate key error collection: a.b index: k_1 dup key: { k: 1 }`,
		"a b":        `E11000 duplicate key error collection: a.b index: a b collation: { locale: "en" } dup key: { k: "0x29" }`,
		"v.a_1_w_-1": `Index build failed: x: Collection a.b ( y ) :: caused by :: E11000 duplicate key error collection: a.b index: v.a_1_w_-1 dup key: { v.a: 2, w: null }`,
		"":           "something else",
	} {
		if got := ParseDuplicate(kit.Raw(bson.D{{Key: "errmsg", Value: text}})).Index(); got != want {
			t.Errorf("index %q, want %q", got, want)
		}
	}
}

func TestMeanings(t *testing.T) {
	onID := kit.Raw(bson.D{{Key: "keyPattern", Value: bson.D{{Key: "_id", Value: 1}}}})
	onBoth := kit.Raw(bson.D{{Key: "keyPattern", Value: bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}}}})
	for name, c := range map[string]struct {
		e          wire.WriteError
		want       Meaning
		ofDocument bool
		hint       bool
	}{
		"duplicate _id": {wire.WriteError{Code: 11000, Raw: onID}, DuplicateID, true, true},
		"duplicate key": {wire.WriteError{Code: 11000, Raw: onBoth}, DuplicateKey, true, true},
		"other bytes":   {wire.WriteError{Code: 66}, OtherID, true, true},
		"path": {wire.WriteError{Code: 28, Message: "Cannot create field 'b' in element {a: \"No space " +
			"left on device\"}"}, Misfit, true, true},
		"dollar":                {wire.WriteError{Code: 52}, Misfit, true, true},
		"parallel arrays":       {wire.WriteError{Code: 171}, Refused, true, true},
		"validation":            {wire.WriteError{Code: 121}, Refused, true, true},
		"too large":             {wire.WriteError{Code: 10334}, Refused, true, true},
		"capped":                {wire.WriteError{Code: 20}, NoDelete, false, false},
		"full disk":             {wire.WriteError{Code: 28, Message: "No space left on device"}, Interrupted, false, false},
		"election":              {wire.WriteError{Code: 10107}, Interrupted, false, false},
		"not authorized":        {wire.WriteError{Code: 13}, Fatal, false, false},
		"what nobody has named": {wire.WriteError{Code: 987654}, Fatal, false, false},
	} {
		if m := Of(c.e); m != c.want || m.OfDocument() != c.ofDocument || (Hint(c.e) != "") != c.hint {
			t.Errorf("%s: means %d, of the document %t, hint %q", name, m, m.OfDocument(), Hint(c.e))
		}
	}
}

func TestUnclear(t *testing.T) {
	named := kit.Raw(bson.D{{Key: "keyPattern", Value: bson.D{{Key: "k", Value: 1}}}})
	for name, c := range map[string]struct {
		e    wire.WriteError
		want bool
	}{
		"which key is not said": {wire.WriteError{Code: 11000, Raw: kit.Raw(bson.D{{Key: "code", Value: 11000}})}, true},
		"which key is said":     {wire.WriteError{Code: 11000, Raw: named}, false},
		"stumbled":              {wire.WriteError{Code: 50, Message: "KeyString format error: x"}, true},
		"another error":         {wire.WriteError{Code: 2}, false},
	} {
		if got := Unclear(c.e); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
		d := AsDuplicateID(c.e)
		if Of(d) != DuplicateID || Unclear(d) && c.e.Message == "" || d.Message != c.e.Message {
			t.Errorf("%s as a duplicate: %+v", name, d)
		}
	}
}

// TestAnswer: what passes by itself is never taken for a word about a document.
func TestAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		code int32 // 0: none
	}{
		"nothing":   {nil, 0},
		"a write":   {driver.WriteException{WriteErrors: driver.WriteErrors{{Code: 171}}}, 171},
		"a command": {fmt.Errorf("x: %w", driver.CommandError{Code: 11000}), 11000},
		"transient": {driver.CommandError{Code: 171, Labels: []string{"TransientTransactionError"}}, 0},
		"election":  {driver.CommandError{Code: 10107}, 0},
		"our own":   {mongo.Retry("x", driver.CommandError{Code: 171}, ""), 0},
		"no answer": {context.DeadlineExceeded, 0},
	} {
		if e, ok := Answer(c.err); ok != (c.code != 0) || e.Code != c.code {
			t.Errorf("%s: %+v, %t", name, e, ok)
		}
	}
}

func TestStatementsAllocateNothing(t *testing.T) {
	doc := kit.Raw(everyType())
	dst := make([]byte, 0, 4096)
	both := func() { dst = Key{}.AppendReplacement(Key{}.AppendInsert(dst[:0], doc), doc) }
	if n := testing.AllocsPerRun(100, both); n > 2 {
		t.Errorf("%v allocations for two statements", n)
	}
}
