package delta

import (
	"bytes"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/test/deltatest"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
)

// updateSeeds is a short corpus of updates, good and bad.
func updateSeeds() [][]byte {
	var out [][]byte
	for _, set := range [][]applyCase{diffCases, skipCases, modCases} {
		for i, c := range set {
			if i%4 == 0 {
				out = append(out, kit.Raw(c.o))
			}
		}
	}
	for i, c := range malformedCases {
		if i%4 == 0 {
			out = append(out, kit.Raw(c.o))
		}
	}
	return append(out, nil, []byte{5, 0, 0, 0, 0})
}

// mend makes a document of any bytes: the outer length and the end are right,
// so that a fuzzer's inputs get past the first check.
func mend(b []byte) []byte {
	b = append(make([]byte, 4, len(b)+5), b[min(4, len(b)):]...)
	if len(b) == 4 || b[len(b)-1] != 0 {
		b = append(b, 0)
	}
	putInt32(b, len(b))
	return b
}

// checkUpdate drives everything with one update; nothing may panic.
func checkUpdate(t *testing.T, doc, o []byte) {
	dl, err := parse(o)
	if err != nil {
		return
	}
	if KindOf(o) != dl.Kind() {
		t.Errorf("kind %s, parsed %s", KindOf(o), dl.Kind())
	}
	u, form := AppendStatement(nil, dl)
	if _, ok := bsonraw.Body(u); form != None && !ok {
		t.Errorf("statement %x", u)
	}
	AppendGuard(nil, dl)
	if out, c, ok := Compose(nil, dl, dl); ok {
		if again, err := parse(out); err != nil || again.Kind() != c.Kind() {
			t.Errorf("%s with itself is %s: %v", show(o), show(out), err)
		}
	}
	out, _, err := Apply([]byte("x"), doc, dl)
	if err != nil {
		if out != nil {
			t.Error("output beside an error")
		}
		return
	}
	if _, ok := bsonraw.Body(out[1:]); !ok || len(out) > maxSize+1 {
		t.Errorf("result of %d bytes", len(out))
	}
}

// TestCorrupted changes single bytes of valid updates and documents.
func TestCorrupted(t *testing.T) {
	g := newGen(testseed.Of(t))
	seeds := updateSeeds()
	for range 30 {
		o := g.diff(g.Document(1), 3)
		seeds = append(seeds, kit.Raw(d("$v", int32(2), "diff", o)))
	}
	docs := []bson.Raw{kit.Raw(rr), kit.Raw(nested), kit.Raw(g.Document(1)), kit.Raw(abc)}
	for range 20000 {
		o := bytes.Clone(deltatest.Pick(g.Gen, seeds...))
		doc := bytes.Clone(deltatest.Pick(g.Gen, docs...))
		target := &o
		if g.One(3) {
			target = &doc
		}
		for range 1 + g.IntN(2) {
			if n := len(*target); n > 0 {
				(*target)[g.IntN(n)] = deltatest.Pick(g.Gen, 0, 1, 2, 3, 4, 5, 8, 15, 16, 's', 'u', '.', '$', '0', '1', 0x7f,
					0xff, byte(g.IntN(256)))
			}
		}
		checkUpdate(t, doc, o)
		AppendKey(nil, bsoncore.Value{Type: typeObject, Data: doc})
		AppendTimestampRepair(nil, doc)
	}
}

// FuzzParse: what Parse takes can be composed and translated, and a statement
// is a document.
func FuzzParse(f *testing.F) {
	for _, o := range updateSeeds() {
		f.Add(o)
	}
	f.Fuzz(func(t *testing.T, o []byte) {
		checkUpdate(t, kit.Raw(rr), o)
		checkUpdate(t, kit.Raw(nested), mend(o))
	})
}

// FuzzApply: the result is a document within the limits; $v:1 twice is $v:1 once.
func FuzzApply(f *testing.F) {
	for _, o := range updateSeeds() {
		f.Add([]byte(kit.Raw(rr)), o)
		f.Add([]byte(kit.Raw(nested)), o)
	}
	f.Fuzz(func(t *testing.T, doc, o []byte) {
		doc, o = mend(doc), mend(o)
		checkUpdate(t, doc, o)
		dl, err := parse(o)
		if err != nil || dl.Kind() != Modifiers {
			return
		}
		once, _, err := Apply(nil, doc, dl)
		if err != nil {
			return
		}
		if twice, _, err := Apply(nil, once, dl); err != nil || !bytes.Equal(once, twice) {
			t.Errorf("%s, then %s: %v", show(once), show(twice), err)
		}
	})
}

// FuzzCompose: what Compose returns is a delta of its own.
func FuzzCompose(f *testing.F) {
	for _, c := range composeCases {
		f.Add([]byte(kit.Raw(c.a)), []byte(kit.Raw(c.b)))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		da, err1 := parse(mend(a))
		db, err2 := parse(mend(b))
		if err1 != nil || err2 != nil {
			return
		}
		out, c, ok := Compose(nil, da, db)
		if !ok {
			return
		}
		again, err := parse(out)
		if err != nil || !bytes.Equal(again.Raw(), c.Raw()) || again.Kind() != c.Kind() {
			t.Errorf("%s: %v", show(out), err)
		}
	})
}

// FuzzKey: no value is without a key.
func FuzzKey(f *testing.F) {
	for _, group := range idGroups(f) {
		v := value(f, group[0])
		f.Add(byte(v.Type), v.Data)
	}
	f.Fuzz(func(t *testing.T, typ byte, data []byte) {
		if len(AppendKey(nil, bsoncore.Value{Type: bsoncore.Type(typ), Data: data})) == 0 {
			t.Error("no key")
		}
	})
}
