package query

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/deltatest"
	"github.com/millrace/millrace/test/kit"
)

// gen makes wild documents, and filters that find some of them.
type gen struct {
	*deltatest.Gen
	docs []bson.D
}

func newGen(seed uint64) *gen {
	return &gen{Gen: &deltatest.Gen{Rand: rand.New(rand.NewPCG(seed, 11))}}
}

func pick[T any](g *gen, list ...T) T { return deltatest.Pick(g.Gen, list...) }

func d(fields ...any) bson.D { return kit.D(fields...) }

func (g *gen) name() string {
	if g.One(80) {
		return "" // which is refused on a longer path
	}
	return pick(g, "a", "a", "b", "b", "c", "0", "1", "é", "00", "a.b")
}

func (g *gen) decimal() bson.Decimal128 {
	v, err := bson.ParseDecimal128(pick(g, "0", "-0", "1", "1.0", "2", "3", "4.7", "-1.5", "0.1", "NaN", "Infinity",
		"-Infinity", "1E+3", "9007199254740993", "1E-6176", "9.999999999999999999999999999999999E+6144",
		"0.1000000000000000055511151231257827", "9223372036854775807", "9223372036854775808", "1000"))
	if err != nil {
		panic(err)
	}
	return v
}

func (g *gen) number() any {
	switch g.IntN(9) {
	case 0:
		return int64(g.IntN(4))
	case 1:
		return pick[any](g, int64(1<<53), int64(1<<53+1), int64(math.MaxInt64), int64(math.MinInt64), int64(-3), int32(-1),
			int32(math.MinInt32))
	case 2, 3:
		return pick(g, 0, 1, 1.5, 2, -1.5, math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), 1<<53, 1<<63,
			-(1 << 63), 0.1, 1e300, 5e-324, 255, 3.7)
	case 4:
		return g.decimal()
	}
	return int32(g.IntN(4))
}

func (g *gen) text() string {
	return pick(g, "", "a", "ab", "A", "aB", "abc", "a\n", "x\ny", "ä", "Ä", "ǆ", "K", "ſ", "a b", "ab\x00c",
		"1", "\n", "aaa", "b", "ba", "日本", "a\v", "a_1", "a\xffb", "😀")
}

func (g *gen) scalar() any {
	oid := bson.ObjectID{1, byte(g.IntN(3))}
	return pick[any](g,
		g.text(), g.text(), g.text(), true, false, nil, nil, oid, bson.DateTime(g.IntN(3)-1),
		bson.Timestamp{T: uint32(g.IntN(2)), I: uint32(g.IntN(3) + 1)}, bson.Timestamp{T: 1 << 31, I: 1},
		bson.Binary{Subtype: pick[byte](g, 0, 2, 5, 0x80),
			Data: pick(g, []byte(nil), []byte("a"), []byte("ab"), []byte{3, 255}, []byte{0, 0, 0, 0, 0, 0, 0, 0, 1})},
		bson.Regex{Pattern: pick(g, "a", "^a", "b"), Options: pick(g, "", "i", "im")},
		bson.DBPointer{DB: pick(g, "d", "e", strings.Repeat("d", 300)), Pointer: oid}, bson.JavaScript(pick(g, "f", "g")),
		bson.Symbol(g.text()),
		bson.CodeWithScope{Code: bson.JavaScript(pick(g, "f", "g")), Scope: d("a", g.number())},
		bson.MinKey{}, bson.MaxKey{}, bson.Undefined{})
}

// value is of any type, nested up to depth times.
func (g *gen) value(depth int) any {
	switch n := g.IntN(16); {
	case n < 4 && depth > 0:
		return g.object(g.IntN(4), depth-1)
	case n < 9 && depth > 0:
		return deltatest.Array(g.IntN(4), func() any { return g.value(depth - 1) })
	case n < 13:
		return g.number()
	}
	return g.scalar()
}

func (g *gen) object(n, depth int) bson.D {
	return deltatest.Object(n, g.name, func() any { return g.value(depth) })
}

// document is one of the documents that filters are made for.
func (g *gen) document(id int) bson.D {
	doc := append(d("_id", int32(id)), g.object(1+g.IntN(5), 3)...)
	g.docs = append(g.docs, doc)
	return doc
}

// place is a path in one of the documents, often, and what is there.
func (g *gen) place() (string, any) {
	if len(g.docs) == 0 || g.One(8) {
		path := g.name()
		for g.One(2) {
			path += "." + g.name()
		}
		return path, g.value(2)
	}
	doc := g.docs[g.IntN(len(g.docs))]
	var names []string
	var v any = doc[min(1, len(doc)-1):]
	for {
		switch t := v.(type) {
		case bson.D:
			if len(t) == 0 || len(names) > 0 && g.One(4) {
				return strings.Join(names, "."), v
			}
			e := t[g.IntN(len(t))]
			if g.One(12) {
				e.Key = g.name()
			}
			names, v = append(names, e.Key), e.Value
		case bson.A:
			if len(t) == 0 || g.One(4) {
				return strings.Join(names, "."), v
			}
			i := g.IntN(len(t))
			if g.One(2) {
				names = append(names, strconv.Itoa(i))
			}
			v = t[i]
		default:
			if g.One(15) {
				names = append(names, g.name())
			}
			return strings.Join(names, "."), v
		}
	}
}

// filter is a random filter.
func (g *gen) filter(depth int) bson.D {
	out := bson.D{}
	for range 1 + g.IntN(4)/3 {
		if depth > 0 && g.One(4) {
			list := bson.A{}
			for range 1 + g.IntN(3) {
				list = append(list, g.filter(depth-1))
			}
			out = append(out, bson.E{Key: pick(g, "$and", "$or", "$nor"), Value: list})
			continue
		}
		path, v := g.place()
		if deltatest.Find(out, path) < 0 && !strings.HasPrefix(path, "$") {
			out = append(out, bson.E{Key: path, Value: g.condition(v, depth)})
		}
	}
	if g.One(40) {
		return bson.D{}
	}
	return out
}

// near is the value, or one beside it.
func (g *gen) near(v any) any {
	if a, ok := v.(bson.A); ok && len(a) > 0 && g.One(3) {
		return a[g.IntN(len(a))]
	}
	if g.One(4) {
		return g.value(2)
	}
	return v
}

// condition is one that often holds for v.
func (g *gen) condition(v any, depth int) any {
	if g.One(5) {
		return g.near(v)
	}
	ops := bson.D{}
	for range 1 + g.IntN(5)/4 {
		e := g.operator(v, depth)
		if deltatest.Find(ops, e[0].Key) < 0 {
			ops = append(ops, e...)
		}
	}
	return ops
}

func (g *gen) operator(v any, depth int) bson.D {
	switch g.IntN(16) {
	case 0, 1, 2:
		return d(pick(g, "$eq", "$ne", "$gt", "$gte", "$lt", "$lte"), g.near(v))
	case 3, 4:
		return d(pick(g, "$in", "$in", "$nin"), g.list(v))
	case 5:
		return d("$exists", pick[any](g, true, false, 1, 0, nil, "x", 0.0, math.NaN()))
	case 6:
		return d("$type", g.typ())
	case 7:
		return d("$all", g.allList(v, depth))
	case 8:
		n := g.IntN(4)
		if a, ok := v.(bson.A); ok && !g.One(3) {
			n = len(a)
		}
		return d("$size", pick[any](g, n, n, int64(n), float64(n), -1, 1.5))
	case 9, 10:
		return d("$elemMatch", g.elemMatch(v, depth))
	case 11:
		return d("$mod", bson.A{pick[any](g, 2, 3, -2, int64(2), 2.0, 2.5, int64(1)<<40, 0), pick[any](g, 0, 0, 1, -1, 1.0)})
	case 12:
		return d(pick(g, "$bitsAllSet", "$bitsAllClear", "$bitsAnySet", "$bitsAnyClear"), g.mask())
	case 13:
		return g.regex()
	}
	if depth == 0 {
		return d("$eq", g.near(v))
	}
	if g.One(4) {
		return d("$not", bson.Regex{Pattern: g.pattern(), Options: pick(g, "", "i")})
	}
	if ops, ok := g.condition(v, depth-1).(bson.D); ok && len(ops) > 0 {
		return d("$not", ops)
	}
	return d("$ne", g.near(v))
}

func (g *gen) list(v any) bson.A {
	out := bson.A{}
	for range g.IntN(4) {
		out = append(out, g.near(v))
	}
	if g.One(6) {
		out = append(out, bson.Regex{Pattern: g.pattern(), Options: pick(g, "", "i")})
	}
	if g.One(6) {
		for range 20 {
			out = append(out, g.value(1))
		}
	}
	if !g.One(8) { // beside other values it is refused
		out = slices.DeleteFunc(out, func(v any) bool { return v == nil })
	}
	return out
}

func (g *gen) allList(v any, depth int) bson.A {
	out := bson.A{}
	a, _ := v.(bson.A)
	for range g.IntN(3) {
		if len(a) > 0 {
			out = append(out, a[g.IntN(len(a))])
		} else {
			out = append(out, g.near(v))
		}
	}
	if g.One(4) && depth > 0 {
		out = bson.A{d("$elemMatch", g.elemMatch(v, depth)), d("$elemMatch", g.elemMatch(v, depth))}[:1+g.IntN(2)]
	}
	if g.One(8) {
		out = append(out, bson.Regex{Pattern: g.pattern()})
	}
	return out
}

// elemMatch is conditions on elements, or on fields of elements.
func (g *gen) elemMatch(v any, depth int) bson.D {
	a, _ := v.(bson.A)
	if len(a) == 0 || depth == 0 {
		return pick(g, d(), d("$gt", g.number()), d("a", g.value(1)), d("$exists", true))
	}
	e := a[g.IntN(len(a))]
	switch t := e.(type) {
	case bson.D:
		if len(t) > 0 && !g.One(4) {
			f := t[g.IntN(len(t))]
			return d(f.Key, g.condition(f.Value, depth-1))
		}
	case bson.A:
		if len(t) > 0 && !g.One(2) {
			i := g.IntN(len(t))
			return d(strconv.Itoa(i), g.condition(t[i], depth-1))
		}
	}
	if g.One(4) {
		return g.filter(depth - 1)
	}
	return g.operator(e, depth-1)
}

func (g *gen) typ() any {
	one := func() any {
		return pick[any](g, "double", "string", "object", "array", "binData", "undefined", "objectId", "bool", "date", "null",
			"regex", "dbPointer", "javascript",
			"symbol", "javascriptWithScope", "int", "timestamp", "long", "decimal", "minKey", "maxKey", "number", "number",
			"array", "object", "missing", "x", 1+g.IntN(20), int64(2), 4.0, -1, 127, 0, 1.5)
	}
	if g.One(4) {
		return bson.A{one(), one(), one()}[:g.IntN(4)]
	}
	return one()
}

func (g *gen) mask() any {
	return pick[any](g, 0, 1, 2, 3, int64(1)<<40, 1.0, 1.5, -1, bson.A{}, bson.A{0}, bson.A{1, 0}, bson.A{63},
		bson.A{64, 200}, bson.A{0, 70}, bson.A{int64(1), 0.0}, bson.A{-1},
		bson.Binary{Data: []byte{1}}, bson.Binary{Data: []byte{0, 0, 0, 0, 0, 0, 0, 0, 1}},
		bson.Binary{Subtype: 2, Data: []byte("ab")}, bson.Binary{})
}

func (g *gen) pattern() string {
	return pick(g, "", "a", "^a", "b$", "a$", "^a$", "a|b", "^(a|A)b*$", ".", "^.$", "..", "\\s", "\\s$", "^\\w+$",
		"\\W", "[^a]", "[a-c]+", "\\bA", "a\\b", "x\\n?y", "^y", "[[:alpha:]]{2,}", "k", "s", "[k]", "[^k]", "^[^k]$",
		"\\x{e4}", "ä", "(?i)B", "\\S", "^\\D*\\z", "(a)\\Z", "日", "\\QA\\E", "a(?=b)", "(a)\\1", "a++", "a b", "^a\\x00?",
		"c", "\\x00c")
}

func (g *gen) regex() bson.D {
	options := pick(g, "", "", "i", "m", "s", "x", "mi", "im", "si", "g")
	switch {
	case g.One(4):
		return d("$regex", bson.Regex{Pattern: g.pattern(), Options: pick(g, "", "i", "im")}, "$options",
			options)[:1+g.IntN(2)]
	case g.One(4):
		return d("$options", options, "$regex", g.pattern())
	}
	return d("$regex", g.pattern(), "$options", options)[:1+g.IntN(2)]
}
