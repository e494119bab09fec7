package follow

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/test/kit"
)

// model is a ring as a server has it.
type model struct {
	limit limit
	docs  []bson.Raw
}

func (m *model) find(id string) int {
	return slices.IndexFunc(m.docs, func(d bson.Raw) bool { return keyOf(bsonraw.IDOf(d)) == id })
}

// insert returns what rolls off.
func (m *model) insert(doc bson.Raw) (gone []string) {
	m.docs = append(m.docs, doc)
	for {
		var size int64
		for _, d := range m.docs {
			size += int64(len(d))
		}
		if size <= m.limit.bytes && int64(len(m.docs)) <= m.limit.docs {
			return gone
		}
		gone = append(gone, keyOf(bsonraw.IDOf(m.docs[0])))
		m.docs = m.docs[1:]
	}
}

type modelEvent struct {
	op  byte
	id  string
	doc bson.Raw
	now []bson.Raw // the target after it
}

// TestRing: after whichever event of a random history a target was killed, the
// ring finds an event after which the source's list was the same. What rolls off is logged, as 5.0
// and newer do, or not.
func TestRing(t *testing.T) {
	for seed := range uint64(20000) {
		r := rand.New(rand.NewPCG(seed, 1))
		logged := r.IntN(2) == 0
		events, before, l := randomEvents(t, r, logged)
		killed := r.IntN(len(events) + 1)
		there := before
		if killed > 0 {
			there = events[killed-1].now
		}
		got := found(events, there, l, r.IntN(2) == 0)
		state := before
		if got > 0 {
			state = events[got-1].now
		}
		if fmt.Sprint(state) != fmt.Sprint(there) {
			for i, e := range events {
				t.Logf("%d: %c %q %s -> %s", i+1, e.op, e.id, e.doc, e.now)
			}
			t.Fatalf("seed %d, logged %v: killed after %d, found %d:\nthere %s\nstate %s", seed, logged, killed, got, there,
				state)
		}
	}
}

func randomEvents(t *testing.T, r *rand.Rand, logged bool) (events []modelEvent, before []bson.Raw, l limit) {
	t.Helper()
	m := model{limit: limit{bytes: int64(60 + r.IntN(160)), docs: int64(2 + r.IntN(4))}}
	start := r.IntN(8)
	for n := range start + 1 + r.IntN(25) {
		if n == start {
			events, before = nil, slices.Clone(m.docs)
		}
		step := func(op byte, id string, doc bson.Raw) {
			events = append(events, modelEvent{op, id, doc, slices.Clone(m.docs)})
		}
		switch at := r.IntN(max(len(m.docs), 1)); {
		case r.IntN(4) > 0 || len(m.docs) == 0:
			doc := kit.Raw(bson.D{{Key: "_id", Value: int32(r.IntN(6))}, {Key: "p", Value: strings.Repeat("p", 10*r.IntN(3))}})
			id := keyOf(bsonraw.IDOf(doc))
			if m.find(id) >= 0 {
				continue
			}
			gone := m.insert(doc)
			step('i', id, doc)
			for _, g := range gone {
				if logged {
					step('d', g, nil)
				}
			}
		case r.IntN(2) == 0 && logged:
			id := keyOf(bsonraw.IDOf(m.docs[at]))
			m.docs = slices.Delete(slices.Clone(m.docs), at, at+1)
			step('d', id, nil)
		default:
			p, _ := m.docs[at].Lookup("p").StringValueOK()
			doc := kit.Raw(bson.D{{Key: "_id", Value: m.docs[at].Lookup("_id")},
				{Key: "p", Value: strings.Repeat(string(rune('p'+r.IntN(2))), len(p))}})
			m.docs = slices.Clone(m.docs)
			m.docs[at] = doc
			step('u', keyOf(bsonraw.IDOf(doc)), doc)
		}
	}
	return events, before, m.limit
}

// found asks a ring; whole is how much of the target it knows.
func found(events []modelEvent, there []bson.Raw, l limit, whole bool) (n int) {
	inserts := 0
	for _, e := range events {
		if e.op == 'i' {
			inserts++
		}
	}
	h := targetDocs{docs: map[string]targetDoc{}, n: len(there), whole: whole || len(there) <= inserts}
	for i, d := range there {
		place := len(there) - 1 - i
		if !h.whole && place > inserts {
			place = far
		}
		h.docs[keyOf(bsonraw.IDOf(d))] = targetDoc{doc: d, place: place}
	}
	r := newRing(h, l)
	for i, e := range events {
		switch e.op {
		case 'i':
			r.insert(e.id, e.doc)
		case 'u':
			r.update(e.id, e.doc)
		case 'd':
			r.remove(e.id)
		}
		if r.matches() {
			n = i + 1
		}
	}
	return n
}
