package history

import (
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// scalar is mostly a small number.
func (g *Generator) scalar() any {
	switch g.r.IntN(10) {
	case 0, 1, 2, 3, 4:
		return g.r.IntN(10)
	case 5:
		return pick(g, "", "a", "b", "x")
	case 6:
		return float64(g.r.IntN(10))
	case 7:
		return int64(g.r.IntN(10))
	}
	return g.values[g.r.IntN(len(g.values))]
}

// name is a field's name. Few names make paths meet.
func (g *Generator) name() string {
	if g.one(12) {
		return pick(g, "u", "i", "d", "s", "l", "ua", "0", "1", "10", "diff", "-1", "01")
	}
	return pick(g, "a", "b", "c", "v", "o")
}

// value is of any type, nested up to depth.
func (g *Generator) value(depth int) any {
	if depth == 0 || g.r.IntN(3) > 0 {
		return g.scalar()
	}
	if g.one(2) {
		return g.array(depth - 1)
	}
	return g.nested(depth - 1)
}

func (g *Generator) array(depth int) bson.A {
	out := bson.A{}
	for range g.r.IntN(6) {
		out = append(out, g.value(depth))
	}
	return out
}

// nested has no name twice: an update of such a document may come out
// different (docs/reference/limits.md).
func (g *Generator) nested(depth int) bson.D {
	out := bson.D{}
	for range g.r.IntN(5) {
		name := g.name()
		if has(out, name) {
			continue
		}
		v := g.value(depth)
		if g.one(60) {
			v = bson.Timestamp{}
		}
		out = append(out, bson.E{Key: name, Value: v})
	}
	return out
}

func has(doc bson.D, name string) bool {
	for _, e := range doc {
		if e.Key == name {
			return true
		}
	}
	return false
}

// document is one without its _id.
func (g *Generator) document() bson.D {
	out := D("n", g.r.IntN(50), "by", g.n)
	for _, e := range g.nested(3) {
		if !has(out, e.Key) {
			out = append(out, e)
		}
	}
	if g.one(20) {
		out = append(out, bson.E{Key: "pad", Value: strings.Repeat("p", g.r.IntN(20000))})
	}
	return out
}

func withID(id any, doc bson.D) bson.D { return append(D("_id", id), doc...) }

// id is one of those there were at first, or another, of any type. Some are
// equal but of other bytes.
func (g *Generator) id() any {
	n := g.r.IntN(g.size + g.size/4 + 5)
	switch g.r.IntN(16) {
	case 0:
		return fmt.Sprint("s", n)
	case 1:
		return float64(n)
	case 2:
		return D("a", n)
	case 3:
		return int64(n)
	case 4:
		if v := g.values[g.r.IntN(len(g.values))]; v.Type != bson.TypeArray && v.Type != bson.TypeRegex &&
			v.Type != bson.TypeUndefined {
			return v
		}
	case 5:
		return float64(n) + 0.5
	}
	return n
}

// path is where something in a document may be.
func (g *Generator) path() string {
	p := g.name()
	for g.r.IntN(5) < 2 {
		p += "." + pick(g, "a", "b", "c", "v", "0", "1", "2", g.name())
	}
	return p
}

// change is an update of any kind. Most fit some documents only.
func (g *Generator) change() any {
	switch g.r.IntN(12) {
	case 0:
		return g.document() // a replacement
	case 1, 2:
		return g.pipeline()
	case 3:
		return D("$set", D("by", g.n, "v", g.array(2), "o", g.nested(2)))
	}
	out := bson.D{}
	for range 1 + g.r.IntN(3) {
		e := g.operator()
		if !has(out, e.Key) {
			out = append(out, e)
		}
	}
	return out
}

// operator is one of an update's.
func (g *Generator) operator() bson.E {
	p := g.path()
	e := func(op string, v any) bson.E { return bson.E{Key: op, Value: D(p, v)} }
	switch g.r.IntN(20) {
	case 0, 1, 2, 3:
		return e("$set", g.value(3))
	case 4:
		return bson.E{Key: "$set", Value: D(g.name(), g.value(2), "by", g.n, g.name()+"."+g.name(), g.value(1))}
	case 5, 6:
		return e("$unset", 1)
	case 7:
		return e("$inc", pick[any](g, 1, 2.5, int64(-1)))
	case 8:
		return e("$mul", pick[any](g, 2, 0.5))
	case 9, 10, 11:
		return e("$push", g.pushed())
	case 12:
		return e("$pull", g.scalar())
	case 13:
		return e("$pop", pick(g, 1, -1))
	case 14:
		return e("$addToSet", D("$each", g.array(1)))
	case 15:
		return e("$rename", g.path())
	case 16:
		return e(pick(g, "$min", "$max"), g.scalar())
	case 17:
		return e("$pullAll", g.array(0))
	case 18:
		return e("$bit", D("xor", 5))
	}
	return e("$currentDate", D("$type", pick(g, "date", "timestamp")))
}

// pushed is what is pushed, and how.
func (g *Generator) pushed() any {
	if g.one(3) {
		return g.value(2)
	}
	out := D("$each", g.array(1))
	if g.one(2) {
		out = append(out, bson.E{Key: "$slice", Value: g.r.IntN(9) - 4})
	}
	if g.one(3) {
		out = append(out, bson.E{Key: "$position", Value: g.r.IntN(6) - 2})
	}
	if g.one(4) {
		out = append(out, bson.E{Key: "$sort", Value: pick(g, 1, -1)})
	}
	return out
}

// pipeline is an update's. It fits every document.
func (g *Generator) pipeline() bson.A {
	out := bson.A{}
	for range 1 + g.r.IntN(2) {
		out = append(out, g.stage())
	}
	return out
}

func (g *Generator) stage() bson.D {
	f := g.name()
	arr := func(e any) bson.D { return D("$cond", A(D("$isArray", A("$"+f)), e, D("$literal", g.array(1)))) }
	doc := func(e any) bson.D {
		return D("$cond", A(D("$eq", A(D("$type", "$"+f), "object")), e, D("$literal", g.nested(1))))
	}
	switch g.r.IntN(12) {
	case 0:
		return D("$set", D(f, arr(D("$slice", A("$"+f, 1+g.r.IntN(4)))), "by", g.n))
	case 1:
		return D("$set", D(f, arr(D("$concatArrays", A("$"+f, D("$literal", g.array(1)))))))
	case 2:
		return D("$set", D(f, arr(D("$reverseArray", "$"+f))))
	case 3:
		return D("$set", D(f, doc(D("$mergeObjects", A("$"+f, D("$literal", g.nested(2)))))))
	case 4:
		return D("$unset", f)
	case 5:
		return D("$replaceWith", D("$mergeObjects", A(D("_id", "$_id", "n", "$n"), D("$literal", g.document()))))
	case 6:
		return D("$set", D(f, "$"+g.name(), "by", g.n)) // moves values about
	case 7:
		return D("$set", D(f+"."+g.name(), D("$literal", g.value(1))))
	case 8:
		return D("$set", D(f, arr(D("$map", D("input", "$"+f, "in", D("x", "$$this", "n", g.n))))))
	case 9:
		return D("$set", D(f, arr(D("$concatArrays", A(D("$slice", A("$"+f, 2)), A(D("a", g.n)))))))
	case 10:
		return D("$project", D(f, 0))
	}
	return D("$set", D(f, D("$literal", g.value(3))))
}
