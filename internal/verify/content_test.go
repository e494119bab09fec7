package verify

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/kit"
)

// canonical writes a document with its fields sorted by name and value, at
// every depth: what sameFields has to agree with.
func canonical(doc []byte, depth int) []byte {
	els, ok := elements(doc)
	if !ok || depth > maxDepth {
		return doc
	}
	parts := make([][]byte, len(els))
	for i, e := range els {
		parts[i] = slices.Concat(e.Name, []byte{0, byte(e.Type)}, canonicalValue(e, depth))
	}
	slices.SortFunc(parts, bytes.Compare)
	return slices.Concat(parts...)
}

func canonicalValue(e element, depth int) []byte {
	switch e.Type {
	case bson.TypeEmbeddedDocument:
		return sized(canonical(e.Value, depth+1))
	case bson.TypeArray:
		els, ok := elements(e.Value)
		if !ok || depth+1 > maxDepth {
			return sized(e.Value)
		}
		var out []byte
		for _, x := range els {
			out = slices.Concat(out, x.Name, []byte{0, byte(x.Type)}, canonicalValue(x, depth+1))
		}
		return sized(out)
	}
	return sized(e.Value)
}

func sized(b []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// shuffled reorders fields at every depth.
func shuffled(doc []byte, r *rand.Rand) []byte {
	els, ok := elements(doc)
	if !ok {
		return doc
	}
	r.Shuffle(len(els), func(i, j int) { els[i], els[j] = els[j], els[i] })
	return rebuilt(els, r)
}

func rebuilt(els []element, r *rand.Rand) []byte {
	out := []byte{0, 0, 0, 0}
	for _, e := range els {
		data := e.Value
		switch e.Type {
		case bson.TypeEmbeddedDocument:
			data = shuffled(data, r)
		case bson.TypeArray:
			if inner, ok := elements(data); ok {
				data = rebuilt(inner, r)
			}
		}
		out = slices.Concat(out, []byte{byte(e.Type)}, e.Name, []byte{0}, data)
	}
	out = append(out, 0)
	binary.LittleEndian.PutUint32(out, uint32(len(out)))
	return out
}

func FuzzSameFields(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 4 {
		d := makeDoc(f, r, makeID(i))
		f.Add([]byte(d), shuffled(d, r), uint64(i))
		for _, p := range plants() {
			if changed := p.change(d); changed != nil {
				f.Add([]byte(d), []byte(changed), uint64(i))
			}
		}
	}
	f.Fuzz(func(t *testing.T, a, b []byte, seed uint64) {
		got := sameFields(a, b, 0)
		if got != sameFields(b, a, 0) {
			t.Fatal("not symmetric")
		}
		if !sameFields(a, a, 0) || got && len(a) != len(b) {
			t.Fatal("not reflexive")
		}
		_, okA := elements(a)
		_, okB := elements(b)
		if okA && okB {
			if want := bytes.Equal(canonical(a, 0), canonical(b, 0)); got != want {
				t.Fatalf("same %v, sorted bytes equal %v", got, want)
			}
			if s := shuffled(a, rand.New(rand.NewPCG(seed, 3))); !sameFields(a, s, 0) {
				t.Fatal("another field order is not the same")
			}
		}
		if !bytes.Equal(a, b) && differing(a, b, "", false, 0) == "" {
			t.Fatal("no description")
		}
		if !got && differing(a, b, "", true, 0) == "" {
			t.Fatal("no description, field order ignored")
		}
		_, _ = appendID(nil, a)
	})
}

func TestDescribeDifference(t *testing.T) {
	d := func(e ...bson.E) []byte { return kit.Raw(bson.D(e)) }
	id := bson.E{Key: "_id", Value: 1}
	tests := []struct {
		a, b []byte
		want string
	}{
		{d(id, bson.E{Key: "a", Value: int32(1)}), d(id, bson.E{Key: "a", Value: int64(1)}),
			`a: 32-bit integer {"$numberInt":"1"} on the source, 64-bit integer {"$numberLong":"1"} on the target`},
		{d(id, bson.E{Key: "a", Value: "x"}), d(id), `a: only on the source: string "x"`},
		{d(id), d(id, bson.E{Key: "a", Value: "x"}), `a: only on the target: string "x"`},
		{d(id, bson.E{Key: "a", Value: bson.D{{Key: "b", Value: bson.A{1, 2}}}}),
			d(id, bson.E{Key: "a", Value: bson.D{{Key: "b", Value: bson.A{1, 3}}}}),
			`a.b.1: 32-bit integer {"$numberInt":"2"} on the source, 32-bit integer {"$numberInt":"3"} on the target`},
		{d(id, bson.E{Key: "a", Value: 1}, bson.E{Key: "b", Value: 1}),
			d(id, bson.E{Key: "b", Value: 1}, bson.E{Key: "a", Value: 1}),
			`a: field order differs: "b" comes here on the target`},
		{[]byte(replaceField(d(id, bson.E{Key: "a", Value: 1}), "a", nan(1))),
			[]byte(replaceField(d(id, bson.E{Key: "a", Value: 1}), "a", nan(2))),
			`a: double {"$numberDouble":"NaN"} (010000000000f87f) on the source, double {"$numberDouble":"NaN"} (020000000000f87f) on the target`},
	}
	for _, tc := range tests {
		if got := differing(tc.a, tc.b, "", false, 0); got != tc.want {
			t.Errorf("got  %s\nwant %s", got, tc.want)
		}
	}
}

func TestLikelyOrderIsAntisymmetric(t *testing.T) {
	keys := make([][]byte, 200)
	for i := range keys {
		keys[i], _ = appendID(nil, kit.Raw(bson.D{{Key: "_id", Value: makeID(i)}}))
	}
	for _, a := range keys {
		for _, b := range keys {
			if likelyOrder(a, b) != -likelyOrder(b, a) {
				t.Fatalf("%s %s", idValue(string(a)), idValue(string(b)))
			}
		}
	}
}
