package fields

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/test/deltatest"
	"github.com/millrace/millrace/test/kit"
)

// gen makes wild rules, documents and updates.
type gen struct{ *deltatest.Gen }

func newGen(seed uint64) gen { return gen{deltatest.New(seed)} }

func pick[T any](g gen, list ...T) T { return deltatest.Pick(g.Gen, list...) }

func d(fields ...any) bson.D { return kit.D(fields...) }

func parseDoc(t testing.TB, text string) bson.Raw {
	t.Helper()
	var out bson.Raw
	if err := bson.UnmarshalExtJSON([]byte(text), false, &out); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return out
}

const testKey = "a key of the tests, which is long enough"

func testSecrets(ref string) (string, error) {
	switch ref {
	case "env:KEY":
		return testKey, nil
	case "env:SHORT":
		return "short", nil
	}
	return "", fmt.Errorf("there is no %s", ref)
}

func mustParse(t testing.TB, rules string) *Map {
	t.Helper()
	m, err := Parse(parseDoc(t, rules), testSecrets)
	if err != nil {
		t.Fatalf("%s: %v", rules, err)
	}
	return m
}

func parseDelta(o bson.Raw) (delta.Delta, error) { return delta.ParseAs(delta.KindOf(o), o) }

// name is one that a rule can be about.
func (g gen) name() string { return pick(g, "a", "a", "b", "b", "c", "d", "e", "f", "é", "A b") }

func (g gen) path() string {
	names := []string{g.name()}
	for g.One(2) && len(names) < 4 {
		names = append(names, g.name())
	}
	return strings.Join(names, ".")
}

// document is one whose fields rules are often about; of an array it has many.
func (g gen) document() bson.D { return append(d("_id", int32(1)), g.object(1+g.IntN(6), 3)...) }

func (g gen) object(n, depth int) bson.D {
	return deltatest.Object(n, func() string {
		if name := g.name(); !g.One(8) {
			return name
		}
		return g.Name()
	}, func() any { return g.value(depth) })
}

func (g gen) value(depth int) any {
	switch n := g.IntN(12); {
	case n < 5 && depth > 0:
		return g.object(g.IntN(4), depth-1)
	case n < 8 && depth > 0:
		return deltatest.Array(g.IntN(4), func() any { return g.value(depth - 1) })
	case n < 9:
		return pick[any](g, "5", "x", "1.5", "true", "0123456789abcdef01234567", "2026-01-31", "日本語",
			bson.DateTime(1700000000000), int64(1)<<40, 2.5, nil)
	}
	return g.Value(0)
}

// rules are often taken.
func (g gen) rules() bson.D {
	out := bson.D{}
	if g.One(6) { // a rule of a value, and one of its place
		name := g.name()
		out = d("rename", d(name, pick(g, g.name(), "new")), "convert", d(name, g.conversion()))
		if g.One(3) {
			out[0] = bson.E{Key: "move", Value: out[0].Value}
		}
	}
	for range 1 + g.IntN(3) {
		name, v := g.section()
		if i := deltatest.Find(out, name); i < 0 {
			out = append(out, bson.E{Key: name, Value: v})
		} else if e, ok := v.(bson.D); ok {
			if have := out[i].Value.(bson.D); deltatest.Find(have, e[0].Key) < 0 {
				out[i].Value = append(have, e...)
			}
		}
	}
	return out
}

func (g gen) section() (string, any) {
	switch g.IntN(12) {
	case 0:
		return "keep", bson.A{g.path(), g.path(), g.path()}[:1+g.IntN(3)]
	case 1, 2:
		return "drop", bson.A{g.path(), g.path()}[:1+g.IntN(2)]
	case 3, 4:
		return "rename", d(g.name(), pick(g, g.name(), "new"))
	case 5:
		return "move", d(g.path(), pick(g, g.path(), "new", "new.x"))
	case 6, 7:
		return "set", d(pick(g, g.path(), "new", "new.y"), g.Value(1))
	case 8:
		return "from", d(pick(g, g.path(), "new", "when"),
			pick(g, "$namespace", "$operation", "$clusterTime", g.path(), "_id"))
	case 9:
		return "mask", d(g.path(), pick[any](g, "null", "month", "day", "year", d("hmac", "env:KEY"), d("last", 1+g.IntN(3)),
			d("first", 2)))
	case 10:
		return "compute", d(pick(g, g.path(), "new"),
			d("expr", pick(g, "doc.a", "doc.b + 1", "doc.c == doc.d ? doc : 'x'", "has(doc.a.b) ? doc.a.b : null",
				"doc.e.map(x, x)", "doc['f']"), "otherwise", pick(g, "null", "drop", "fail")))
	}
	return "convert", d(g.path(), g.conversion())
}

func (g gen) conversion() bson.D {
	return d("to", pick(g, "string", "int", "long", "double", "decimal", "bool", "date", "objectId"), "otherwise",
		pick(g, "keep", "null", "drop", "fail"))
}

// update is an oplog update that fits the document, mostly.
func (g gen) update(doc bson.D) bson.D {
	if g.One(2) {
		return d("$v", int32(2), "diff", g.objectDiff(doc[1:], 3))
	}
	set, unset := bson.D{}, bson.D{}
	for range 1 + g.IntN(3) {
		path := g.updatePath(doc[1:])
		if g.One(3) {
			unset = append(unset, bson.E{Key: path, Value: true})
		} else {
			set = append(set, bson.E{Key: path, Value: g.value(2)})
		}
	}
	out := d("$v", int32(1), "$set", set, "$unset", unset)
	if g.One(2) {
		out[1], out[2] = out[2], out[1]
	}
	return slices.DeleteFunc(out, func(e bson.E) bool {
		o, ok := e.Value.(bson.D)
		return ok && len(o) == 0
	})
}

func (g gen) updatePath(o bson.D) string {
	var names []string
	var v any = o
	for len(names) == 0 || g.IntN(3) > 0 {
		name, below := g.name(), any(nil)
		switch t := v.(type) {
		case bson.D:
			if len(t) > 0 && !g.One(4) {
				e := t[g.IntN(len(t))]
				name, below = e.Key, e.Value
			}
		case bson.A:
			i := g.IntN(len(t) + 2)
			if !g.One(8) {
				name = strconv.Itoa(i)
			}
			if i < len(t) {
				below = t[i]
			}
		default:
			if g.One(2) {
				return strings.Join(names, ".")
			}
			if g.One(4) {
				name = strconv.Itoa(g.IntN(3))
			}
		}
		names, v = append(names, name), below
		if len(names) > 5 {
			break
		}
	}
	return strings.Join(names, ".")
}

func (g gen) objectDiff(o bson.D, depth int) bson.D {
	var del, upd, ins, sub bson.D
	used := map[string]bool{}
	for range 1 + g.IntN(3) {
		name, v := g.name(), any(nil)
		if len(o) > 0 && !g.One(4) {
			e := o[g.IntN(len(o))]
			name, v = e.Key, e.Value
		}
		if used[name] {
			continue
		}
		used[name] = true
		inner, isSub := g.subDiff(v, depth)
		if !isSub && g.One(6) { // one that does not fit
			inner, isSub = d("u", d(g.name(), 1)), true
		}
		switch n := g.IntN(6); {
		case isSub && n < 4:
			sub = append(sub, bson.E{Key: "s" + name, Value: inner})
		case n < 2:
			del = append(del, bson.E{Key: name, Value: false})
		case n < 4:
			upd = append(upd, bson.E{Key: name, Value: g.value(2)})
		default:
			ins = append(ins, bson.E{Key: name, Value: g.value(2)})
		}
	}
	var out bson.D
	for _, s := range []bson.E{{Key: "d", Value: del}, {Key: "u", Value: upd}, {Key: "i", Value: ins}} {
		if len(s.Value.(bson.D)) > 0 {
			out = append(out, s)
		}
	}
	return append(out, sub...)
}

func (g gen) subDiff(v any, depth int) (bson.D, bool) {
	switch v := v.(type) {
	case bson.D:
		if depth > 0 {
			return g.objectDiff(v, depth-1), true
		}
	case bson.A:
		if depth > 0 {
			return g.arrayDiff(v, depth-1), true
		}
	}
	return nil, false
}

func (g gen) arrayDiff(a bson.A, depth int) bson.D {
	out := d("a", true)
	length := len(a) + 3
	if g.One(4) {
		length = g.IntN(len(a) + 2)
		out = append(out, bson.E{Key: "l", Value: int32(length)})
	}
	for i := range length {
		if !g.One(3) {
			continue
		}
		if i < len(a) {
			if inner, ok := g.subDiff(a[i], depth); ok && !g.One(4) {
				out = append(out, bson.E{Key: "s" + strconv.Itoa(i), Value: inner})
				continue
			}
		}
		if g.One(2) {
			out = append(out, bson.E{Key: "u" + strconv.Itoa(i), Value: g.value(2)})
		}
	}
	return out
}
