package delta

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/deltatest"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
)

// composeCase: want nil means that no single update does it.
type composeCase struct {
	name       string
	a, b, want bson.D
}

func fill(l int32, kv ...any) bson.D { return append(d("a", true, "l", l), d(kv...)...) }

func elems(kv ...any) bson.D { return append(d("a", true), d(kv...)...) }

var composeCases = []composeCase{
	{"nothing", v2("u", d()), v2("i", d(), "so", d("u", d())), v2("so", d("u", d()))},
	{"nothing at all", v2("u", d()), v2("i", d()), v2("d", d())},
	{"different fields", v2("u", d("a", 1)), v2("u", d("b", 2)), v2("u", d("a", 1, "b", 2))},
	{"same field", v2("u", d("a", 1, "b", 1)), v2("u", d("a", 2)), v2("u", d("a", 2, "b", 1))},
	{"delete over update", v2("u", d("a", 1)), v2("d", d("a", false)), v2("d", d("a", false))},
	{"delete over insert", v2("i", d("a", 1, "b", 1)), v2("d", d("a", false)), v2("d", d("a", false), "i", d("b", 1))},
	{"insert over delete moves", v2("d", d("a", false, "b", false)), v2("i", d("z", 1, "a", 2)),
		v2("d", d("b", false), "i", d("z", 1, "a", 2))},
	{"insert order", v2("i", d("z", 1)), v2("i", d("b", 1)), v2("i", d("z", 1, "b", 1))},
	{"move over insert", v2("i", d("z", 1, "y", 1)), v2("i", d("z", 2)), v2("i", d("y", 1, "z", 2))},
	{"move over update", v2("u", d("z", 1)), v2("i", d("z", 2)), v2("i", d("z", 2))},
	{"move over sub", v2("sz", d("u", d("x", 1))), v2("i", d("z", 2)), v2("i", d("z", 2))},
	{"update over insert", v2("i", d("z", 1, "y", 1)), v2("u", d("z", 2)), v2("i", d("z", 2, "y", 1))},
	{"delete twice", v2("d", d("a", false)), v2("d", d("a", false)), nil},
	{"delete twice below", v2("so", d("d", d("a", false))), v2("so", d("d", d("a", false))), nil},
	{"update over delete", v2("d", d("a", false)), v2("u", d("a", 1)), nil},
	{"sub over delete", v2("d", d("a", false)), v2("sa", d("u", d("x", 1))), nil},
	{"update over sub", v2("sa", d("u", d("x", 1))), v2("u", d("a", 2)), v2("u", d("a", 2))},
	{"delete over sub", v2("sa", d("u", d("x", 1))), v2("d", d("a", false)), v2("d", d("a", false))},
	{"sub over sub", v2("sa", d("u", d("x", 1), "i", d("z", 1))), v2("sa", d("d", d("x", false), "i", d("y", 1))),
		v2("sa", d("d", d("x", false), "i", d("z", 1, "y", 1)))},
	{"sub into update", v2("u", d("a", d("x", 1, "y", 1))), v2("sa", d("u", d("x", 2))),
		v2("u", d("a", d("x", 2, "y", 1)))},
	{"sub into insert", v2("i", d("a", d("x", 1, "y", arr{1, 2}))), v2("sa", d("d", d("x", false), "sy", fill(1))),
		v2("i", d("a", d("y", arr{1})))},
	{"array diff into update", v2("u", d("a", arr{1, 2, 3})), v2("sa", elems("u1", 5, "u3", 4)),
		v2("u", d("a", arr{1, 5, 3, 4}))},
	{"sub into a scalar", v2("u", d("a", 1)), v2("sa", d("u", d("x", 2))), nil},
	{"sub into the wrong sort", v2("u", d("a", arr{1})), v2("sa", d("u", d("x", 2))), nil},
	{"sub of a missing part", v2("u", d("a", d("x", 1))), v2("sa", d("sy", d("u", d("x", 2)))), nil},
	{"object and array diff", v2("sa", d("u", d("x", 1))), v2("sa", elems("u0", 1)), nil},

	{"elements", v2("sr", elems("u1", 1, "u4", 1)), v2("sr", elems("u0", 2, "u4", 2, "u9", 2)),
		v2("sr", elems("u0", 2, "u1", 1, "u4", 2, "u9", 2))},
	{"element subs", v2("sr", elems("s1", d("u", d("x", 1)), "u2", d("x", 1))),
		v2("sr", elems("s1", d("u", d("y", 1)), "s2", d("i", d("y", 1)))),
		v2("sr", elems("s1", d("u", d("x", 1, "y", 1)), "u2", d("x", 1, "y", 1)))},
	{"element replaced", v2("sr", elems("s1", d("u", d("x", 1)))), v2("sr", elems("u1", 1)), v2("sr", elems("u1", 1))},
	{"cut", v2("sr", elems("u1", 1, "u4", 1)), v2("sr", fill(3)), v2("sr", fill(3, "u1", 1))},
	{"cut twice", v2("sr", fill(5, "u0", 1, "u4", 1)), v2("sr", fill(3, "u1", 1)), v2("sr", fill(3, "u0", 1, "u1", 1))},
	{"cut longer", v2("sr", fill(2)), v2("sr", fill(3)), nil},
	{"cut of what was appended", v2("sr", elems("u7", 9)), v2("sr", fill(7)), nil},
	{"cut of what was appended, beside another", v2("sr", elems("u0", 8, "u7", 9)), v2("sr", fill(7)),
		v2("sr", fill(7, "u0", 8))},
	{"cut of what was appended below", v2("so", d("sr", elems("u7", 9))), v2("so", d("u", d("x", 1), "sr", fill(7))), nil},
	{"cut of what was cut and appended", v2("sr", fill(3, "u1", 9)), v2("sr", fill(1)), nil},
	{"cut of what was changed", v2("sr", elems("s4", d("u", d("x", 1)))), v2("sr", fill(3)), v2("sr", fill(3))},
	{"append after a cut", v2("sr", fill(2, "u0", 1)), v2("sr", elems("u2", 7, "u3", 8)),
		v2("sr", fill(4, "u0", 1, "u2", 7, "u3", 8))},
	{"gap after a cut", v2("sr", fill(2)), v2("sr", elems("u3", 8)), v2("sr", fill(4, "u2", nil, "u3", 8))},
	{"wide gap after a cut", v2("sr", fill(2)), v2("sr", elems("u9000", 8)), nil},
	{"sub beyond a cut", v2("sr", fill(2)), v2("sr", elems("s2", d("u", d("x", 1)))), nil},
	{"change after a cut", v2("sr", fill(2)), v2("sr", elems("u1", 7)), v2("sr", fill(2, "u1", 7))},

	{"modifiers", v1("$set", d("a", 1, "b", 1)), v1("$set", d("b", 2, "c", 2)), v1("$set", d("a", 1, "b", 2, "c", 2))},
	{"modifiers out of order", v1("$set", d("z", 1)), v1("$set", d("a", 2)), v1("$set", d("z", 1, "a", 2))},
	{"unset over set", v1("$set", d("a", 1, "o.x", 1)), v1("$unset", d("a", true)),
		v1("$set", d("o.x", 1), "$unset", d("a", true))},
	{"unset over parts", v1("$set", d("o.x", 1), "$unset", d("o.y", true)), v1("$unset", d("o", true)),
		v1("$unset", d("o", true))},
	{"deep unset over set", v1("$set", d("o.x", 1)), v1("$unset", d("o.x", true)), nil},
	{"set over unset", v1("$unset", d("a", true)), v1("$set", d("a", 1)), nil},
	{"set below unset", v1("$unset", d("o", true)), v1("$set", d("o.x", 1)), nil},
	{"set over parts", v1("$set", d("o.x", 1, "o.y", 1, "z", 1), "$unset", d("o.k", true)), v1("$set", d("o", 5)),
		v1("$set", d("o", 5, "z", 1))},
	{"set into set", v1("$set", d("o", d("x", 1))), v1("$set", d("o.y.z", 1), "$unset", d("o.x", true)),
		v1("$set", d("o", d("y", d("z", 1))))},
	{"set into an array", v1("$set", d("r", arr{1, d()})), v1("$set", d("r.1.x", 1, "r.2", 5)),
		v1("$set", d("r", arr{1, d("x", 1), 5}))},
	{"set into a scalar", v1("$set", d("o", 1)), v1("$set", d("o.x", 1)), nil},
	{"neighbours", v1("$set", d("o", 1)), v1("$set", d("o-", 1, "ox.y", 1)), v1("$set", d("o", 1, "o-", 1, "ox.y", 1))},
	{"zeros", v1("$set", d("r.01", 1)), v1("$set", d("r.1", 1)), nil},
	{"unset both", v1("$unset", d("a", true)), v1("$unset", d("b", true)), v1("$unset", d("a", true, "b", true))},
	{"unset twice", v1("$unset", d("a", true)), v1("$unset", d("a", true, "b", true)), nil},
	{"mixed kinds", v1("$set", d("a", 1)), v2("u", d("a", 1)), nil},
}

func TestCompose(t *testing.T) {
	for _, c := range composeCases {
		t.Run(c.name, func(t *testing.T) {
			prefix := []byte("before")
			out, got, ok := Compose(prefix, mustParse(t, kit.Raw(c.a)), mustParse(t, kit.Raw(c.b)))
			switch {
			case !bytes.HasPrefix(out, prefix) || !ok && len(out) != len(prefix):
				t.Fatalf("the buffer was touched: %q", out)
			case ok != (c.want != nil):
				t.Fatalf("ok %v, %s", ok, show(out[len(prefix):]))
			case !ok:
				return
			}
			if !bytes.Equal(out[len(prefix):], kit.Raw(c.want)) {
				t.Errorf("got  %s\nwant %s", show(out[len(prefix):]), show(kit.Raw(c.want)))
			}
			again := mustParse(t, out[len(prefix):])
			if got.Kind() != again.Kind() || !bytes.Equal(got.Raw(), again.Raw()) || !bytes.Equal(got.diff(), again.diff()) {
				t.Errorf("the returned delta is not the parsed output")
			}
		})
	}
}

// diff makes a random valid diff of an object.
func (g *gen) diff(o bson.D, depth int) bson.D {
	del, upd, ins, subs := bson.D{}, bson.D{}, bson.D{}, bson.D{}
	for i, e := range o {
		sub := g.subDiff(e.Value, depth)
		again := deltatest.Find(o[i+1:], e.Key) >= 0
		switch n := g.IntN(12); {
		case g.calm && !g.One(3):
		case e.Key == "_id", deltatest.Find(o[:i], e.Key) >= 0: // updates are of the first one
		case n == 0, again && n < 6:
			del = append(del, bson.E{Key: e.Key, Value: false})
		case n < 3:
			upd = append(upd, bson.E{Key: e.Key, Value: g.Value(2)})
		case n == 3 && e.Key != g.doubled && !g.calm:
			ins = append(ins, bson.E{Key: e.Key, Value: g.Value(2)})
		case n < 8 && sub != nil:
			subs = append(subs, bson.E{Key: "s" + e.Key, Value: sub})
		}
	}
	for range g.IntN(3) {
		if name := g.Name(); !g.calm && deltatest.Find(o, name) < 0 && deltatest.Find(ins, name) < 0 {
			ins = append(ins, bson.E{Key: name, Value: g.Value(2)})
		}
	}
	g.Shuffle(len(ins), func(i, j int) { ins[i], ins[j] = ins[j], ins[i] })
	out := bson.D{}
	for _, s := range []bson.E{{Key: "d", Value: del}, {Key: "u", Value: upd}, {Key: "i", Value: ins}} {
		if len(s.Value.(bson.D)) > 0 {
			out = append(out, s)
		}
	}
	return append(out, subs...)
}

// subDiff makes a random valid sub diff of a value, nil for a scalar.
func (g *gen) subDiff(v any, depth int) bson.D {
	if depth == 0 {
		return nil
	}
	switch v := v.(type) {
	case bson.D:
		if sub := g.diff(v, depth-1); len(sub) > 0 {
			return sub
		}
	case bson.A:
		return g.arrayDiff(v, depth-1)
	}
	return nil
}

func (g *gen) arrayDiff(a bson.A, depth int) bson.D {
	out := d("a", true)
	switch { // one change alone: an element beyond the end, or a cut
	case g.One(6):
		return append(out, bson.E{Key: "u" + string(decimalName(nil, len(a)+1+g.IntN(2))), Value: g.Value(1)})
	case g.One(6) && len(a) > 0:
		return append(out, bson.E{Key: "l", Value: int32(g.IntN(len(a)))})
	}
	end := len(a) + g.IntN(3)
	if g.One(2) && len(a) > 0 {
		end = g.IntN(len(a))
		out = append(out, bson.E{Key: "l", Value: int32(end)})
	}
	for i := range end {
		name := string(decimalName(nil, i))
		switch {
		case i >= len(a) || g.One(4):
			out = append(out, bson.E{Key: "u" + name, Value: g.Value(1)})
		case g.One(2):
			if sub := g.subDiff(a[i], depth); sub != nil {
				out = append(out, bson.E{Key: "s" + name, Value: sub})
			}
		}
	}
	return out
}

// document has a field twice now and then, and decides how calm its updates are.
func (g *gen) document() bson.D {
	g.calm = g.One(2)
	g.Odd = !g.calm
	o := g.Document(1)
	if g.doubled = ""; g.One(4) {
		g.doubled = o[1+g.IntN(len(o)-1)].Key
		o = append(o, bson.E{Key: g.doubled, Value: g.Value(2)})
	}
	return o
}

// TestComposeProperty: folded is the same as one by one, for random diffs of
// every shape that is valid, moved fields, cuts with appends and names that occur
// twice among them. So is the statement, by what the server makes of one.
func TestComposeProperty(t *testing.T) { testseed.Each(t, composes) }

func composes(t *testing.T, seed uint64) {
	g := newGen(seed)
	pairs, refused, classics := 0, 0, 0
	for range 600 {
		first := kit.Raw(g.document())
		doc, pending := slices.Clone(first), Delta{}
		for range 6 {
			var o bson.D
			if err := bson.Unmarshal(doc, &o); err != nil {
				t.Fatal(err)
			}
			diff := g.diff(o, 3)
			if len(diff) == 0 {
				continue
			}
			dl := mustParse(t, kit.Raw(d("$v", int32(2), "diff", diff)))
			after, skipped, err := Apply(nil, doc, dl)
			if err != nil || skipped > 0 {
				t.Fatalf("%s on %s: %d, %v", show(dl.Raw()), show(doc), skipped, err)
			}
			doc = after
			if pending.Kind() == Invalid {
				pending = dl
				continue
			}
			_, c, ok := Compose(nil, pending, dl)
			pairs++
			if !ok {
				refused++
				first, pending = after, Delta{}
				continue
			}
			got, skipped, err := Apply(nil, first, mustParse(t, c.Raw()))
			if err != nil || skipped > 0 || !bytes.Equal(got, doc) {
				t.Fatalf("%s\nand    %s\nfolded %s\non     %s\ngot    %s\nwant   %s\n%d, %v",
					show(pending.Raw()), show(dl.Raw()), show(c.Raw()), show(first), show(got), show(doc), skipped, err)
			}
			if u, form := AppendStatement(nil, c); form == Classic {
				classics++
				if got := classic(t, first, u); !bytes.Equal(got, doc) {
					t.Fatalf("folded %s\nstatement %s\non     %s\ngot    %s\nwant   %s", show(c.Raw()), show(u), show(first),
						show(got), show(doc))
				}
			}
			pending = c
		}
	}
	t.Logf("%d pairs, %d refused, %d classic statements", pairs, refused, classics)
	if refused*8 > pairs {
		t.Errorf("%d of %d valid pairs refused", refused, pairs)
	}
}

// classic does what a server does by a Classic statement: a $slice leaves alone
// what is shorter.
func classic(t *testing.T, doc, u bson.Raw) bson.Raw {
	t.Helper()
	var update, o bson.D
	if err := bson.Unmarshal(u, &update); err != nil {
		t.Fatal(err)
	}
	cuts := bson.D{}
	if i := deltatest.Find(update, "$push"); i >= 0 {
		cuts = update[i].Value.(bson.D)
		update = slices.Delete(update, i, i+1)
	}
	if len(update) > 0 {
		doc, _, _ = Apply(nil, doc, mustParse(t, kit.Raw(update)))
	}
	if len(cuts) == 0 {
		return doc
	}
	if err := bson.Unmarshal(doc, &o); err != nil {
		t.Fatal(err)
	}
	for _, c := range cuts {
		var v any = o
		set := func(any) {}
		for name := range strings.SplitSeq(c.Key, ".") {
			switch in := v.(type) {
			case bson.D:
				i := deltatest.Find(in, name)
				v, set = in[i].Value, func(v any) { in[i].Value = v }
			case bson.A:
				i, _ := strconv.Atoi(name)
				v, set = in[i], func(v any) { in[i] = v }
			}
		}
		a := v.(bson.A)
		set(a[:min(len(a), int(c.Value.(bson.D)[1].Value.(int32)))])
	}
	return kit.Raw(o)
}

// gen also makes diffs that no server wrote.
type gen struct {
	*deltatest.Gen
	doubled string // a field that occurs twice, which nothing moves: see the package's comment
	calm    bool   // few changes at once, so that there is a statement for them
}

func newGen(seed uint64) *gen { return &gen{Gen: deltatest.New(seed)} }
