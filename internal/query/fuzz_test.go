package query

import (
	"bytes"
	"encoding/binary"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

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

// drive does everything with a filter, a document and an update; nothing may panic.
func drive(filter, doc, o []byte) {
	q, err := Parse(filter)
	if err != nil {
		return
	}
	q.Match(doc)
	q.Paths()
	if u, err := parseDelta(o); err == nil {
		q.Touched(u)
	}
}

func FuzzMatch(f *testing.F) {
	g := newGen(1)
	for i := range 60 {
		doc := g.document(i)
		f.Add([]byte(kit.Raw(g.filter(2))), []byte(kit.Raw(doc)), []byte(kit.Raw(g.update(doc))))
	}
	for _, c := range tableCases {
		f.Add([]byte(kit.Raw(parseDoc(f, c.filter))), []byte(kit.Raw(g.document(1))), []byte(nil))
	}
	f.Fuzz(func(_ *testing.T, filter, doc, o []byte) {
		drive(mend(filter), mend(doc), mend(o))
		drive(filter, doc, o)
	})
}

// FuzzRegex: a pattern is refused, or Go's engine takes what becomes of it.
func FuzzRegex(f *testing.F) {
	for _, c := range regexCases {
		f.Add(c.pattern, c.options, "text")
	}
	f.Fuzz(func(t *testing.T, pattern, options, text string) {
		l, err := newRegex(pattern, options, place{})
		if err == nil {
			l.test(value{Type: bson.TypeString, Value: append(append(make([]byte, 4), text...), 0)})
		} else if bytes.Contains([]byte(err.Error()), []byte("too large: error")) &&
			!bytes.Contains([]byte(err.Error()), []byte("repeat")) {
			t.Error(err)
		}
	})
}

// TestDamaged changes single bytes of filters and documents.
func TestDamaged(t *testing.T) {
	g := newGen(testseed.Of(t))
	for range 200 {
		g.docs = nil
		doc := g.document(1)
		all := [3][]byte{kit.Raw(g.filter(2)), kit.Raw(doc), kit.Raw(g.update(doc))}
		for range 50 {
			var b [3][]byte
			for i := range b {
				b[i] = bytes.Clone(all[i])
			}
			for range 1 + g.IntN(2) {
				target := b[g.IntN(3)]
				target[g.IntN(len(target))] = pick(g, 0, 1, 2, 3, 4, 5, 8, 11, 15, 16, '$', '.', '0', 0x7f, 0xff, byte(g.IntN(256)))
			}
			drive(b[0], b[1], b[2])
		}
	}
}
