package delta

import (
	"bytes"
	"testing"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// updateSeeds is a short corpus of updates, good and bad.
func updateSeeds() [][]byte {
	var out [][]byte
	for _, set := range [][]applyCase{diffCases, skipCases, modCases} {
		for i, c := range set {
			if i%4 == 0 {
				out = append(out, raw(c.o))
			}
		}
	}
	for i, c := range malformedCases {
		if i%4 == 0 {
			out = append(out, raw(c.o))
		}
	}
	return append(out, nil, []byte{5, 0, 0, 0, 0})
}

// FuzzParse: what Parse takes can be composed and translated, and a statement
// is a document.
func FuzzParse(f *testing.F) {
	for _, o := range updateSeeds() {
		f.Add(o)
	}
	f.Fuzz(func(t *testing.T, o []byte) {
		dl, err := Parse(o)
		if err != nil {
			return
		}
		if KindOf(o) != dl.Kind() {
			t.Errorf("kind %s, parsed %s", KindOf(o), dl.Kind())
		}
		u, form := AppendStatement(nil, dl)
		if _, ok := body(u); form != None && !ok {
			t.Errorf("statement %x", u)
		}
		AppendGuard(nil, dl)
		Compose(nil, dl, dl)
	})
}

// FuzzApply: the result is a document within the limits, and it can be built
// upon what is in the buffer already.
func FuzzApply(f *testing.F) {
	for _, o := range updateSeeds() {
		f.Add([]byte(raw(rr)), o)
		f.Add([]byte(raw(nested)), o)
	}
	f.Fuzz(func(t *testing.T, doc, o []byte) {
		dl, err := Parse(o)
		if err != nil {
			return
		}
		out, _, err := Apply([]byte("x"), doc, dl)
		if err != nil {
			if out != nil {
				t.Error("output beside an error")
			}
			return
		}
		if _, ok := body(out[1:]); !ok || len(out) > maxSize+1 {
			t.Errorf("result of %d bytes", len(out))
		}
		again, _, err := Apply(nil, out[1:], dl)
		if err != nil || !bytes.Equal(again, out[1:]) && dl.Kind() == Modifiers {
			t.Errorf("not idempotent: %v, %s, then %s", err, show(out[1:]), show(again))
		}
	})
}

// FuzzCompose: what Compose returns is a delta of its own.
func FuzzCompose(f *testing.F) {
	for _, c := range composeCases {
		f.Add([]byte(raw(c.a)), []byte(raw(c.b)))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		da, err1 := Parse(a)
		db, err2 := Parse(b)
		if err1 != nil || err2 != nil {
			return
		}
		out, c, ok := Compose(nil, da, db)
		if !ok {
			return
		}
		again, err := Parse(out)
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
