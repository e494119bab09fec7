package write

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
)

// plainModel is what a collection with a unique index on k holds, in plain words.
type plainModel map[int]bson.D

func fieldOf(d bson.D, name string) int {
	return slices.IndexFunc(d, func(e bson.E) bool { return e.Key == name })
}

// taken reports that a document other than id holds the key of d.
func (m plainModel) taken(id int, d bson.D) bool {
	i := fieldOf(d, "k")
	for other, have := range m {
		if j := fieldOf(have, "k"); i >= 0 && j >= 0 && other != id && have[j].Value == d[i].Value {
			return true
		}
	}
	return false
}

// try is one operation with what it makes of a document.
type try struct {
	id      int
	op      fold.Op
	becomes func(was bson.D) (next bson.D, why Outcome)
}

// outcome does an operation as it is to be done, and says what its result is, 0 for
// none.
func (m plainModel) outcome(t *try) Outcome {
	next, why := t.becomes(m[t.id])
	switch {
	case why != 0:
		return why
	case next == nil:
		delete(m, t.id)
	case m.taken(t.id, next):
		return Duplicate
	default:
		m[t.id] = next
	}
	return 0
}

type maker struct {
	*bed
	*rand.Rand
	m plainModel
}

func (g *maker) document(id int) bson.D {
	d := bson.D{{Key: "_id", Value: id}, {Key: "a", Value: bson.A{int32(g.IntN(9)), "x", int32(3)}},
		{Key: "n", Value: int32(g.IntN(99))}}
	for _, e := range []bson.E{{Key: "k", Value: int32(g.IntN(40))}, {Key: "z", Value: bson.Timestamp{}},
		{Key: "$d", Value: "dollar"}} {
		if g.IntN(4) == 0 {
			d = append(d, e)
		}
	}
	return d
}

// whole is an operation that brings a whole document.
func (g *maker) whole(kind stream.Kind, id int) *try {
	d := g.document(id)
	return &try{id, g.op(kind, id, d[1:]...), func(was bson.D) (bson.D, Outcome) {
		switch {
		case kind == stream.Insert && was != nil:
			return nil, Taken
		case kind == stream.Replace && was == nil:
			// A dollar needs delete and insert, which do not ask whether it is there.
			if fieldOf(d, "$d") >= 0 {
				return d, 0
			}
			return nil, Missing
		}
		return d, 0
	}}
}

// update is one of each form: classic, guarded, and one that only a rewriting makes.
func (g *maker) update(id int) *try {
	v := int32(g.IntN(1000))
	diff, change := set("n", v), func(d bson.D) (bson.D, Outcome) { return with(d, "n", v), 0 }
	switch g.IntN(5) {
	case 0:
		k := int32(g.IntN(40))
		diff, change = set("k", k), func(d bson.D) (bson.D, Outcome) { return with(d, "k", k), 0 }
	case 1: // two fields that come to the end in their order, also where they are there
		p, q := fmt.Sprint("p", v), fmt.Sprint("o", v)
		diff = bson.D{{Key: "i", Value: bson.D{{Key: p, Value: v}, {Key: q, Value: v}}}}
		change = func(d bson.D) (bson.D, Outcome) { return with(with(without(d, p, q), p, v), q, v), 0 }
	case 2: // cut and changed at once
		diff = bson.D{{Key: "sa", Value: bson.D{{Key: "a", Value: true}, {Key: "l", Value: int32(2)}, {Key: "u1", Value: v}}}}
		change = func(d bson.D) (bson.D, Outcome) {
			a, ok := d[fieldOf(d, "a")].Value.(bson.A)
			if !ok {
				return nil, Misfit
			}
			return with(d, "a", bson.A{a[0], v}), 0
		}
	case 3:
		diff, change = set("a", "no array"), func(d bson.D) (bson.D, Outcome) { return with(d, "a", "no array"), 0 }
	}
	o := updateOp(g, id, diff)
	o.Upsert = g.IntN(6) == 0 && fieldOf(diff, "sa") < 0
	return &try{id, o, func(was bson.D) (bson.D, Outcome) {
		if was == nil && !o.Upsert {
			return nil, Missing
		}
		if was == nil {
			was = bson.D{{Key: "_id", Value: id}}
		}
		return change(was)
	}}
}

// with is the document with a field set, at its place or at the end.
func with(d bson.D, name string, v any) bson.D {
	next := slices.Clone(d)
	if i := fieldOf(next, name); i >= 0 {
		next[i].Value = v
		return next
	}
	return append(next, bson.E{Key: name, Value: v})
}

// without is the document without some fields.
func without(d bson.D, names ...string) bson.D {
	return slices.DeleteFunc(slices.Clone(d), func(e bson.E) bool { return slices.Contains(names, e.Key) })
}

// batch is operations of different documents. No two of them are after one key:
// which of the two gets it, a batch without order does not say.
func (g *maker) batch() (tries []*try) {
	keys := map[any]bool{}
	for _, id := range g.Perm(60)[:1+g.IntN(30)] {
		var t *try
		switch k := g.IntN(8); {
		case k == 0:
			t = &try{id, g.op(stream.Delete, id), func(bson.D) (bson.D, Outcome) { return nil, 0 }}
		case k < 6 && g.m[id] != nil:
			t = g.update(id)
		default:
			t = g.whole([]stream.Kind{stream.Insert, stream.Put, stream.Replace}[g.IntN(3)], id)
		}
		was := g.m[id]
		if i := fieldOf(was, "k"); i >= 0 { // it may be given up: nobody else is after it
			if keys[was[i].Value] {
				continue
			}
			keys[was[i].Value] = true
		}
		if next, _ := t.becomes(was); fieldOf(next, "k") >= 0 {
			key := next[fieldOf(next, "k")].Value
			if i := fieldOf(was, "k"); i < 0 || was[i].Value != key {
				if keys[key] {
					continue
				}
				keys[key] = true
			}
		}
		tries = append(tries, t)
	}
	return tries
}

// testHistories: random batches do on the server what they do one operation after
// the other in a model, and each operation that is not applied has its result.
func testHistories(b *bed) {
	b.unique("k")
	seed := testseed.Of(b)
	g := &maker{b, rand.New(rand.NewPCG(seed, 7)), plainModel{}}
	seen := map[Outcome]int{}
	for round := range 60 {
		tries := g.batch()
		b.w.pause = 0 // transactions are tried each time
		ops, want := make([]fold.Op, len(tries)), map[string]Outcome{}
		for i, t := range tries {
			ops[i] = t.op
			if why := g.m.outcome(t); why != 0 {
				want[bsonraw.IDText(t.op.ID)] = why
			}
		}
		for _, r := range b.write(ops...) {
			id := bsonraw.IDText(r.Op.ID)
			if want[id] != r.Outcome {
				b.Errorf("seed %d, batch %d: %s of %s: outcome %d, want %d (%v)", seed, round, r.Op.Kind, id, r.Outcome, want[id],
					r.Reply)
			}
			seen[r.Outcome]++
			delete(want, id)
		}
		if len(want) > 0 {
			b.Errorf("seed %d, batch %d: without a result: %v", seed, round, want)
		}
		g.same(fmt.Sprintf("seed %d, batch %d", seed, round))
		if b.Failed() {
			return
		}
	}
	for _, o := range []Outcome{Taken, Duplicate, Missing, Misfit} {
		if seen[o] == 0 {
			b.Errorf("seed %d: outcome %d never came", seed, o)
		}
	}
	b.Logf("outcomes %v, %d operations, %d in transactions, %d rewritten", seen, b.all.Stats.Statements.Load(),
		b.all.Stats.Batched.Load(), b.all.Stats.Rewritten.Load())
}

// same compares the collection with the model, byte for byte.
func (g *maker) same(when string) {
	g.Helper()
	cur, err := g.c.Client.Database(g.to.DB).Collection(g.to.Coll).Find(g.Context(), bson.D{})
	if err != nil {
		g.Fatal(err)
	}
	n := 0
	for ; cur.Next(g.Context()); n++ {
		id := int(cur.Current.Lookup("_id").AsInt64())
		if d := g.m[id]; d == nil || !bytes.Equal(kit.Raw(d), cur.Current) {
			g.Errorf("%s: %s, want %v", when, cur.Current, d)
		}
	}
	if n != len(g.m) {
		g.Errorf("%s: %d documents, want %d", when, n, len(g.m))
	}
}
