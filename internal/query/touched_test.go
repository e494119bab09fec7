package query

import (
	"bytes"
	"slices"
	"strconv"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
)

func parseDelta(o bson.Raw) (delta.Delta, error) { return delta.ParseAs(delta.KindOf(o), o) }

func TestTouched(t *testing.T) {
	for _, c := range []struct {
		filter, update string
		want           bool
	}{
		{`{}`, `{"$v": 2, "diff": {"u": {"a": 1}}}`, false},
		{`{"a": 1}`, `{"$v": 2, "diff": {"u": {"a": 2}}}`, true},
		{`{"a": 1}`, `{"$v": 2, "diff": {"i": {"a": 2}}}`, true},
		{`{"a": 1}`, `{"$v": 2, "diff": {"d": {"a": false}}}`, true},
		{`{"a": 1}`, `{"$v": 2, "diff": {"u": {"b": 2}, "sc": {"u": {"a": 1}}}}`, false},
		{`{"a": 1}`, `{"$v": 2, "diff": {"sa": {"u": {"x": 1}}}}`, true},
		{`{"a.b": 1}`, `{"$v": 2, "diff": {"sa": {"u": {"x": 1}}}}`, false},
		{`{"a.b": 1}`, `{"$v": 2, "diff": {"sa": {"u": {"b": 1}}}}`, true},
		{`{"a.b": 1}`, `{"$v": 2, "diff": {"u": {"a": 1}}}`, true},
		{`{"a.b": 1}`, `{"$v": 2, "diff": {"sa": {"a": true, "l": 1}}}`, true},
		{`{"a.b": 1}`, `{"$v": 2, "diff": {"sa": {"a": true, "u3": 1}}}`, true},
		{`{"a.b": 1}`, `{"$v": 2, "diff": {"sa": {"a": true, "s3": {"u": {"b": 1}}}}}`, true},
		{`{"a.b": 1}`, `{"$v": 2, "diff": {"sa": {"a": true, "s3": {"u": {"c": 1}}}}}`, false},
		{`{"a.3.b": 1}`, `{"$v": 2, "diff": {"sa": {"a": true, "s3": {"u": {"b": 1}}}}}`, true},
		{`{"a.3.b": 1}`, `{"$v": 2, "diff": {"sa": {"a": true, "s2": {"u": {"b": 1}}}}}`, false},
		{`{"a.3.b": 1}`, `{"$v": 2, "diff": {"sa": {"a": true, "s2": {"u": {"3": 1}}}}}`, true},
		{`{"a": {"$elemMatch": {"b": 1, "c.d": 2}}}`, `{"$v": 2, "diff": {"sa": {"a": true, "s3": {"u": {"c": 1}}}}}`, true},
		{`{"a": {"$elemMatch": {"b": 1, "c.d": 2}}}`, `{"$v": 2, "diff": {"sa": {"a": true, "s3": {"u": {"d": 1}}}}}`, false},
		{`{"a": {"$elemMatch": {"b": 1}, "$size": 2}}`, `{"$v": 2, "diff": {"sa": {"a": true, "s3": {"u": {"d": 1}}}}}`,
			true},
		{`{"a": {"$elemMatch": {"$or": [{}]}}}`, `{"$v": 2, "diff": {"sa": {"a": true, "l": 0}}}`, true},
		{`{"": {"$elemMatch": {"b": 1}}}`, `{"$v": 2, "diff": {"i": {"": 1}}}`, true},
		{`{"": 1}`, `{"$v": 2, "diff": {"s": {"u": {"d": 1}}}}`, true},
		{`{"a.b": 1}`, `{"$v": 2, "diff": {"u": {"a.b": 1}}}`, false},
		{`{"a": 1}`, `{"$v": 1, "$set": {"a": 1}}`, true},
		{`{"a": 1}`, `{"$v": 1, "$set": {"a.x.y": 1}}`, true},
		{`{"a": 1}`, `{"$v": 1, "$unset": {"b": true}, "$set": {"c.a": 1}}`, false},
		{`{"a.b": 1}`, `{"$set": {"a": 1}}`, true},
		{`{"a.b": 1}`, `{"$set": {"a.c": 1}}`, false},
		{`{"a.b": 1}`, `{"$set": {"a.5.c": 1}}`, true}, // may be a new element
		{`{"a.b": 1}`, `{"$unset": {"a.5.c": true}}`, false},
		{`{"a.b": 1}`, `{"$unset": {"a.5.b": true}}`, true},
		{`{"a.b": 1}`, `{"$unset": {"a.5": true}}`, true},
		{`{"a.5.b": 1}`, `{"$unset": {"a.05.b": true}}`, true},
		{`{"5.b": 1}`, `{"$set": {"5.c": true}}`, false},
	} {
		u, err := parseDelta(kit.Raw(parseDoc(t, c.update)))
		if err != nil {
			t.Fatal(c.update, err)
		}
		if got := mustParse(t, c.filter).Touched(u); got != c.want {
			t.Errorf("%s and %s: %v", c.filter, c.update, got)
		}
	}
	if !mustParse(t, `{}`).Touched(delta.Delta{}) {
		t.Error("what is no update touches nothing")
	}
}

// TestTouchedRandom: whenever an update changes what Match says, it was touched.
func TestTouchedRandom(t *testing.T) { testseed.Each(t, touchedRandom) }

func touchedRandom(t *testing.T, seed uint64) {
	g := newGen(seed)
	changes, spared, total := 0, 0, 0
	for range 300 * testseed.Rounds(t, 5) {
		g.docs = nil
		doc := g.document(1)
		if g.One(3) {
			g.document(2)
		}
		before := kit.Raw(doc)
		for range 10 {
			o := kit.Raw(g.update(doc))
			u, err := parseDelta(o)
			if err != nil {
				continue
			}
			after, _, err := delta.Apply(nil, before, u)
			if err != nil {
				t.Fatalf("%s on %s: %v", o, before, err)
			}
			q, err := Parse(kit.Raw(g.filter(2)))
			if err != nil {
				continue
			}
			total++
			changed, touched := q.Match(before) != q.Match(after), q.Touched(u)
			switch {
			case changed && !touched:
				t.Fatalf("%s\nis not touched by %s\nbefore %s\nafter  %s", q.Raw(), o, before, bson.Raw(after))
			case changed:
				changes++
			case !touched:
				spared++
			}
		}
	}
	t.Logf("%d updates: %d changed the result, %d were not touched", total, changes, spared)
	if changes*50 < total || spared*5 < total {
		t.Error("the generator finds too few of both")
	}
}

// update is an oplog update that fits the document, mostly.
func (g *gen) update(doc bson.D) bson.D {
	switch {
	case g.One(3):
		return d("$v", int32(2), "diff", g.deepDiff(doc[1:]))
	case g.One(2):
		return d("$v", int32(2), "diff", g.objectDiff(doc[1:], 3))
	}
	set, unset := bson.D{}, bson.D{}
	for range 1 + g.IntN(2) {
		path, _ := g.place()
		if g.One(3) {
			path += "." + strconv.Itoa(g.IntN(5))
		}
		if g.One(3) {
			unset = append(unset, bson.E{Key: path, Value: true})
		} else {
			set = append(set, bson.E{Key: path, Value: g.value(2)})
		}
	}
	return slices.DeleteFunc(d("$v", int32(1), "$set", set, "$unset", unset), func(e bson.E) bool {
		o, ok := e.Value.(bson.D)
		return ok && len(o) == 0
	})
}

// deepDiff changes one thing alone, as deep as there is one.
func (g *gen) deepDiff(v any) bson.D {
	switch v := v.(type) {
	case bson.D:
		if len(v) == 0 {
			return d("i", d(g.name(), g.value(1)))
		}
		e := v[g.IntN(len(v))]
		if inner := g.deepDiff(e.Value); inner != nil {
			return d("s"+e.Key, inner)
		}
		if g.One(2) {
			return d("d", d(e.Key, false))
		}
		return d("u", d(e.Key, g.value(1)))
	case bson.A:
		if len(v) == 0 {
			return d("a", true, "u0", g.value(1))
		}
		i := g.IntN(len(v))
		if inner := g.deepDiff(v[i]); inner != nil {
			return d("a", true, "s"+strconv.Itoa(i), inner)
		}
		return d("a", true, "u"+strconv.Itoa(i), g.value(1))
	}
	return nil
}

func (g *gen) objectDiff(o bson.D, depth int) bson.D {
	var del, upd, ins, sub bson.D
	used := map[string]bool{}
	for range 1 + g.IntN(2) {
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

func (g *gen) subDiff(v any, depth int) (bson.D, bool) {
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

func (g *gen) arrayDiff(a bson.A, depth int) bson.D {
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

func TestPathsAndText(t *testing.T) {
	for _, c := range []struct {
		filter string
		paths  []string
		texts  bool
	}{
		{`{}`, nil, false},
		{`{"b": 1, "a": {"$gt": 1}, "$or": [{"b": 2}, {"c.d": {"$exists": true}}]}`, []string{"a", "b", "c.d"}, false},
		{`{"a": {"$elemMatch": {"b": 1, "c.d": {"$elemMatch": {"e": null}}}}}`, []string{"a.b", "a.c.d.e"}, false},
		{`{"a": {"$elemMatch": {"b": 1}, "$size": 1}}`, []string{"a", "a.b"}, false},
		{`{"a": {"$elemMatch": {"$gt": 1}}}`, []string{"a"}, false},
		{`{"a": "x"}`, []string{"a"}, true},
		{`{"a": {"$in": [1, {"x": ["y"]}]}}`, []string{"a"}, true},
		{`{"a": {"$not": {"$gte": "x"}}}`, []string{"a"}, true},
		{`{"a": {"$all": ["x"]}}`, []string{"a"}, true},
		{`{"a": {"$elemMatch": {"b": {"$ne": "x"}}}}`, []string{"a.b"}, true},
		{`{"a": {"$regex": "x"}, "b": {"$type": "string"}}`, []string{"a", "b"}, false},
	} {
		q := mustParse(t, c.filter)
		if !slices.Equal(q.Paths(), c.paths) || q.ComparesText() != c.texts {
			t.Errorf("%s: %q, %v", c.filter, q.Paths(), q.ComparesText())
		}
		if !bytes.Equal(q.Raw(), kit.Raw(parseDoc(t, c.filter))) {
			t.Errorf("%s became %s", c.filter, q.Raw())
		}
	}
}
