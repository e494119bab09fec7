// Package deltatest makes random documents, and random updates of them, for
// tests of what applies the oplog's updates.
package deltatest

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/kit"
)

// Gen makes random documents and random updates of them. It belongs to one goroutine.
type Gen struct {
	*rand.Rand
	Odd    bool           // also field names that only pipelines can write
	filled map[int32]fill // by the document's _id
}

// fill is what an update makes of an array by setting an element beyond its end: a cut
// right before that element leaves the array longer than it was, and nothing that was set.
type fill struct {
	path string
	at   int // the element
}

// New makes the same things for the same seed.
func New(seed uint64) *Gen {
	return &Gen{Rand: rand.New(rand.NewPCG(seed, 7)), Odd: true, filled: map[int32]fill{}}
}

func d(fields ...any) bson.D { return kit.D(fields...) }

// Pick chooses one of the list.
func Pick[T any](g *Gen, list ...T) T { return list[g.IntN(len(list))] }

// One reports true once in n times.
func (g *Gen) One(n int) bool { return g.IntN(n) == 0 }

// Name is one of a few field names.
func (g *Gen) Name() string {
	if g.Odd && g.One(12) {
		return Pick(g, "", "a.b", "$q", "a.", ".")
	}
	return Pick(g, "a", "b", "c", "d", "e", "f", "g", "h", "0", "1", "9", "10", "é", "A b", "s", "u")
}

// Value is of any type, nested up to depth times.
func (g *Gen) Value(depth int) any {
	switch n := g.IntN(24); {
	case n < 6 && depth > 0:
		return g.object(g.IntN(5), depth-1)
	case n < 12 && depth > 0:
		return Array(g.IntN(6), func() any { return g.Value(depth - 1) })
	case n < 15:
		return int32(g.IntN(5))
	}
	return g.scalar()
}

func (g *Gen) scalar() any {
	oid := bson.ObjectID{1, byte(g.IntN(3))}
	return Pick[any](g,
		int64(g.IntN(5)), 1.5, math.Copysign(0, -1), math.Float64frombits(0x7ff8000000000123), math.Inf(1),
		strings.Repeat("x", g.IntN(30)), "", true, false, nil, oid, bson.DateTime(5),
		bson.Timestamp{T: 1, I: uint32(g.IntN(3) + 1)}, bson.Binary{Subtype: 2, Data: []byte("ab")},
		bson.Binary{Subtype: 0x80, Data: []byte{}}, bson.Regex{Pattern: "a", Options: "i"},
		bson.DBPointer{DB: "d", Pointer: oid}, bson.JavaScript("f"), bson.Symbol("y"),
		bson.CodeWithScope{Code: "f", Scope: bson.D{{Key: "a", Value: int32(1)}}},
		bson.NewDecimal128(0x3040000000000000, uint64(g.IntN(3))), bson.MinKey{}, bson.MaxKey{}, bson.Undefined{})
}

func (g *Gen) object(n, depth int) bson.D {
	return Object(n, g.Name, func() any { return g.Value(depth) })
}

// Object has as many fields as there are names among n that differ.
func Object(n int, name func() string, value func() any) bson.D {
	out := bson.D{}
	for range n {
		if name := name(); Find(out, name) < 0 {
			out = append(out, bson.E{Key: name, Value: value()})
		}
	}
	return out
}

// Array has n elements.
func Array(n int, value func() any) bson.A {
	out := bson.A{}
	for range n {
		out = append(out, value())
	}
	return out
}

// Find is the index of a field, or -1.
func Find(o bson.D, name string) int {
	return slices.IndexFunc(o, func(e bson.E) bool { return e.Key == name })
}

// Document is large enough for the server to prefer a diff to the whole.
func (g *Gen) Document(id int32) bson.D {
	out := bson.D{{Key: "_id", Value: id}, {Key: "pad", Value: strings.Repeat("p", 400)}}
	return append(out, g.object(3+g.IntN(6), 3)...)
}

// mutate changes a few places of a value and returns a new one.
func (g *Gen) mutate(v any, depth int) any {
	switch v := v.(type) {
	case bson.D:
		return g.mutateObject(slices.Clone(v), depth)
	case bson.A:
		return g.mutateArray(slices.Clone(v), depth)
	}
	return g.Value(1)
}

func (g *Gen) mutateObject(o bson.D, depth int) bson.D {
	for range 1 + g.IntN(3) {
		i := g.IntN(len(o) + 1)
		fixed := i < len(o) && (o[i].Key == "_id" || o[i].Key == "pad")
		switch n := g.IntN(10); {
		case i == len(o) || n < 2:
			if name := g.Name(); Find(o, name) < 0 {
				o = append(o, bson.E{Key: name, Value: g.Value(2)})
			}
		case fixed:
		case n < 4:
			o = slices.Delete(o, i, i+1)
		case n < 5: // to the end
			e := o[i]
			o = append(slices.Delete(o, i, i+1), e)
		case n < 9 && depth > 0:
			o[i].Value = g.mutate(o[i].Value, depth-1)
		default:
			o[i].Value = g.Value(2)
		}
	}
	return o
}

func (g *Gen) mutateArray(a bson.A, depth int) bson.A {
	if g.One(3) && len(a) > 0 {
		a = a[:g.IntN(len(a))]
	}
	for range g.IntN(3) {
		if i := g.IntN(len(a) + 1); i == len(a) {
			a = append(a, g.Value(1))
		} else {
			a[i] = g.mutate(a[i], depth-1)
		}
	}
	return a
}

// path returns a path into the document, mostly one that exists, and the value there.
func (g *Gen) path(o bson.D) (string, any) {
	var path []string
	var v any = o
	for range 4 {
		var name string
		var below any
		switch t := v.(type) {
		case bson.D:
			name = g.Name()
			if len(t) > 0 && !g.One(4) {
				e := t[g.IntN(len(t))]
				name, below = e.Key, e.Value
			}
		case bson.A:
			i := g.IntN(len(t) + 2)
			name = strconv.Itoa(i)
			if i < len(t) {
				below = t[i]
			}
		default:
			return strings.Join(path, "."), v
		}
		if name == "_id" || name == "pad" || name == "" || strings.ContainsAny(name, ".$") {
			continue
		}
		path, v = append(path, name), below
		if g.One(3) {
			break
		}
	}
	if len(path) == 0 {
		path = []string{"z"}
	}
	return strings.Join(path, "."), v
}

// Update returns a random update of a document and its array filters.
func (g *Gen) Update(o bson.D) (u any, filters bson.A) {
	id := o[0].Value.(int32)
	if f, ok := g.filled[id]; ok {
		if delete(g.filled, id); !g.One(3) {
			// logged as a cut, which $push is not
			return bson.A{d("$set", d(f.path, d("$slice", bson.A{"$" + f.path, f.at - g.IntN(2)})))}, nil
		}
	}
	if g.One(12) {
		if u := g.fill(id, o); u != nil {
			return u, nil
		}
	}
	switch n := g.IntN(20); {
	case n < 11:
		return g.classic(o)
	case n < 17:
		return bson.A{d("$replaceWith", d("$literal", g.mutateObject(slices.Clone(o), 3)))}, nil
	case n < 18:
		p, _ := g.path(o)
		return bson.A{d("$set", d(p, d("$literal", g.Value(2)))), d("$unset", bson.A{Pick(g, "a", "b.c", "d")})}, nil
	case n < 19:
		return bson.A{d("$replaceWith",
			d("$setField", d("field", d("$literal", g.Name()), "input", "$$ROOT", "value", d("$literal", g.Value(1)))))}, nil
	}
	return g.mutateObject(g.Document(id), 2), nil
}

// fill returns an update that sets an element beyond the end of an array, nil if there
// is none to name.
func (g *Gen) fill(id int32, o bson.D) bson.D {
	all := arrays(nil, "", o)
	if len(all) == 0 {
		return nil
	}
	f := Pick(g, all...)
	f.at += 1 + g.IntN(2)
	g.filled[id] = f
	return d("$set", d(f.path+"."+strconv.Itoa(f.at), g.Value(1)))
}

// arrays lists the arrays in an object that a path of a pipeline can name, with their lengths.
func arrays(list []fill, path string, v any) []fill {
	switch v := v.(type) {
	case bson.D:
		for _, e := range v {
			if e.Key != "" && !strings.ContainsAny(e.Key, ".$") {
				list = arrays(list, strings.TrimPrefix(path+"."+e.Key, "."), e.Value)
			}
		}
	case bson.A:
		list = append(list, fill{path, len(v)})
	}
	return list
}

// classic returns an update with operators; some are refused by the server.
func (g *Gen) classic(o bson.D) (bson.D, bson.A) {
	ops := map[string]bson.D{}
	var filters bson.A
	used := []string{}
	for range 1 + g.IntN(4) {
		p, v := g.path(o)
		if slices.ContainsFunc(used, func(q string) bool { return strings.HasPrefix(p, q) || strings.HasPrefix(q, p) }) {
			continue
		}
		used = append(used, p)
		op, arg := "$set", g.Value(2)
		a, isArray := v.(bson.A)
		switch n := g.IntN(12); {
		case isArray && n < 6:
			op, arg = g.arrayOp(a)
		case isArray && n < 7 && filters == nil:
			p, filters = p+".$[e]", bson.A{d("e", int32(g.IntN(5)))}
		case isArray && n < 8:
			p += ".$[]"
		case n == 8:
			op, arg = "$unset", 1
		case n == 9:
			op, arg = "$inc", Pick[any](g, int32(1), int64(1), 0.5)
		case n == 10:
			op, arg = "$rename", "renamed"+g.Name()
		}
		ops[op] = append(ops[op], bson.E{Key: p, Value: arg})
	}
	out := bson.D{}
	for _, op := range []string{"$set", "$unset", "$inc", "$rename", "$push", "$pop", "$pull", "$addToSet"} {
		if ops[op] != nil {
			out = append(out, bson.E{Key: op, Value: ops[op]})
		}
	}
	return out, filters
}

func (g *Gen) arrayOp(a bson.A) (string, any) {
	switch g.IntN(5) {
	case 0:
		return "$pop", Pick(g, 1, -1)
	case 1:
		return "$pull", int32(g.IntN(5))
	case 2:
		return "$addToSet", g.Value(1)
	}
	push := d("$each", bson.A{g.Value(1), g.Value(1)}[:g.IntN(3)])
	if g.One(2) {
		push = append(push, bson.E{Key: "$slice", Value: g.IntN(len(a) + 2)})
	}
	if g.One(4) {
		push = append(push, bson.E{Key: "$position", Value: g.IntN(3)})
	}
	return "$push", push
}
