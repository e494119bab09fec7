package fields

import (
	"bytes"
	"encoding/binary"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
)

// mend makes a document of any bytes: the outer length and the end are right, so that
// a fuzzer's inputs get past the first check.
func mend(b []byte) []byte {
	b = append(make([]byte, 4, len(b)+5), b[min(4, len(b)):]...)
	if len(b) == 4 || b[len(b)-1] != 0 {
		b = append(b, 0)
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	return b
}

// drive does everything with rules, a document and an update. Nothing may panic, and
// the law holds of what is mapped without a value that is dropped, where names may stand
// twice in a document.
func drive(t *testing.T, rules, doc, o []byte) {
	m, err := Parse(rules, testSecrets)
	if err != nil {
		return
	}
	mapped, err := m.Apply(nil, doc, testMeta())
	if err == nil {
		if _, err := m.Strip(nil, mapped); err != nil {
			t.Fatalf("%s makes of %s what is not a document: %v", rules, doc, err)
		}
	}
	m.Index(doc)
	m.TouchesPath(string(doc))
	u, updateErr := parseDelta(o)
	if updateErr != nil {
		return
	}
	out, verdict := m.Update(nil, u, testMeta())
	became, _, applyErr := delta.Apply(nil, doc, u)
	if err != nil || applyErr != nil || verdict == State || !bsonraw.Valid(doc, bsonraw.MaxDepth) ||
		bytes.Contains(rules, []byte("drop\x00")) {
		return
	}
	want, err := m.Apply(nil, became, testMeta())
	if err != nil {
		return
	}
	got := bson.Raw(mapped)
	switch verdict {
	case Unchanged:
		got = applied(t, o, got)
	case Translated:
		got = applied(t, out, got)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("rules  %s\nbefore %s\nupdate %s\n%s %s\ngives  %s\nwant   %s", bson.Raw(rules), bson.Raw(doc), bson.Raw(o),
			verdict, bson.Raw(out), got, bson.Raw(want))
	}
}

func FuzzMap(f *testing.F) {
	g := newGen(1)
	for range 200 {
		doc := g.document()
		f.Add([]byte(kit.Raw(g.rules())), []byte(kit.Raw(doc)), []byte(kit.Raw(g.update(doc))))
	}
	for _, c := range applyCases {
		f.Add([]byte(parseDoc(f, c.rules)), []byte(parseDoc(f, c.doc)), []byte(nil))
	}
	f.Fuzz(func(t *testing.T, rules, doc, o []byte) {
		drive(t, mend(rules), mend(doc), mend(o))
		drive(t, rules, doc, o)
	})
}

// TestDamaged changes single bytes of rules, documents and updates.
func TestDamaged(t *testing.T) {
	g := newGen(testseed.Of(t))
	for range 200 {
		doc := g.document()
		all := [3][]byte{kit.Raw(g.rules()), kit.Raw(doc), kit.Raw(g.update(doc))}
		for range 50 {
			var b [3][]byte
			for i := range b {
				b[i] = bytes.Clone(all[i])
			}
			for range 1 + g.IntN(2) {
				target := b[g.IntN(3)]
				target[g.IntN(len(target))] = pick(g, 0, 1, 2, 3, 4, 5, 8, 11, 15, 16, '$', '.', '0', 0x7f, 0xff, byte(g.IntN(256)))
			}
			drive(t, b[0], b[1], b[2])
		}
	}
}
