package test

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/test/history"
	"github.com/millrace/millrace/test/kit"
)

// typeScenarios hold what documents can consist of.
func typeScenarios() []scenario {
	return []scenario{
		{name: "types", setup: typesSetup, change: typesChange},
		{name: "types_in_arrays", setup: typeArraysSetup, change: typeArraysChange},
		// Not while the copy may be ahead: an update names a field, so replayed
		// on a newer document it meets the next field of that name. The source's
		// own secondaries disagree about such updates too (docs/reference/limits.md).
		{name: "duplicate_fields", setup: duplicatesSetup, change: duplicatesChange, only: []string{wayCopy, wayChange}},
		{name: "big_documents", setup: bigSetup, change: bigChange, only: []string{wayCopy, wayChange}},
		{name: "deep_nesting", setup: deepSetup, change: deepChange},
		{name: "field_names", since: "5.0", setup: fieldNamesSetup, change: fieldNamesChange},
		{name: "dotted_literal", since: "5.0", setup: dottedSetup, change: dottedChange},
		{name: "diff_like_names", setup: diffNamesSetup, change: diffNamesChange},
		{name: "many_fields", setup: manyFieldsSetup, change: manyFieldsChange},
	}
}

// ordered walks a map in the order of its keys.
func ordered[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

// rawDoc puts elements into a document as they are, whatever their names.
func rawDoc(elements ...bson.E) bson.Raw {
	i, dst := bsoncore.AppendDocumentStart(nil)
	for _, e := range elements {
		t, v, err := bson.MarshalValue(e.Value)
		check(err)
		dst = bsoncore.AppendValueElement(dst, e.Key, bsoncore.Value{Type: bsoncore.Type(t), Data: v})
	}
	dst, err := bsoncore.AppendDocumentEnd(dst, i)
	check(err)
	return dst
}

func typesSetup(s *site) {
	for name, v := range ordered(history.Values()) {
		s.insert("c", rawDoc(bson.E{Key: "_id", Value: name}, bson.E{Key: "v", Value: v}, bson.E{Key: "x", Value: 1}))
		s.insert("c", d("_id", "set "+name, "v", 0), d("_id", "replace "+name, "v", 0), d("_id", "push "+name, "v", a()),
			d("_id", "sibling "+name, "v", v, "deep", d("v", v, "w", 1)))
	}
	all := bson.D{{Key: "_id", Value: "all"}}
	for name, v := range ordered(history.Values()) {
		all = append(all, bson.E{Key: name, Value: v})
	}
	s.insert("c", all)
}

func typesChange(s *site) {
	for name, v := range ordered(history.Values()) {
		s.insert("c", d("_id", "new "+name, "v", v))
		s.set("c", "set "+name, d("$set", d("v", v)))
		s.set("c", "sibling "+name, d("$set", d("x", 1, "deep.w", 2)))
		s.set("c", "push "+name, d("$push", d("v", v)))
		s.set("c", "replace "+name, rawDoc(bson.E{Key: "v", Value: v}, bson.E{Key: "w", Value: 1}))
		s.update("c", d("_id", "upsert "+name), d("$set", d("v", v)), "upsert", true)
		// Through a pipeline, and from one type to another and back.
		s.set("c", name, a(d("$set", d("w", "$v", "v", d("$literal", name)))))
		s.set("c", name, a(d("$set", d("v", "$w"))))
	}
	s.set("c", "all", d("$set", d("again", 1), "$unset", d("string", 1, "minkey", 1, "nan", 1)))
	s.remove("c", d("_id", d("$regex", "^new (int|null|undefined)")))
}

func typeArraysSetup(s *site) {
	mixed := bson.A{}
	for _, v := range ordered(history.Values()) {
		mixed = append(mixed, v)
	}
	s.insert("c", d("_id", 1, "v", mixed), d("_id", 2, "v", a(mixed, d("v", mixed))), d("_id", 3, "v", mixed, "w", mixed))
}

func typeArraysChange(s *site) {
	n := len(history.Values())
	for _, v := range ordered(history.Values()) {
		s.set("c", 1, d("$set", d("v.3", v)))
		s.set("c", 2, d("$push", d("v.1.v", v)))
	}
	s.set("c", 1, d("$set", d(fmt.Sprintf("v.%d", n+5), 1)))
	s.set("c", 2, d("$set", d("v.0.2", d("a", 1))))
	s.set("c", 3, a(d("$set", d("v", d("$reverseArray", "$v"), "w", d("$slice", a("$w", 5))))))
	s.insert("c", d("_id", 4, "v", a(a(a()), a(d()), d("0", a()))))
}

func duplicatesSetup(s *site) {
	dup := func(id int) bson.Raw {
		inner := rawDoc(bson.E{Key: "k", Value: 1}, bson.E{Key: "k", Value: "two"}, bson.E{Key: "", Value: 3},
			bson.E{Key: "", Value: 4})
		return rawDoc(bson.E{Key: "_id", Value: id}, bson.E{Key: "f", Value: 1}, bson.E{Key: "f", Value: 2},
			bson.E{Key: "sub", Value: inner}, bson.E{Key: "arr", Value: a(inner)}, bson.E{Key: "f", Value: "three"},
			bson.E{Key: "z", Value: 0})
	}
	for i := range 8 {
		s.insert("c", dup(i))
	}
}

func duplicatesChange(s *site) {
	s.set("c", 0, d("$set", d("z", 1)))
	s.set("c", 1, d("$set", d("f", "changed")))
	s.set("c", 2, d("$unset", d("f", 1)))
	s.set("c", 3, d("$set", d("sub.k", "changed", "new", 1)))
	s.set("c", 4, d("$set", d("arr.0.k", "changed")))
	s.set("c", 5, d("$rename", d("z", "y")))
	inner := rawDoc(bson.E{Key: "a", Value: 1}, bson.E{Key: "a", Value: 2})
	s.set("c", 6, rawDoc(bson.E{Key: "n", Value: 1}, bson.E{Key: "n", Value: inner}, bson.E{Key: "n", Value: 1}))
	s.set("c", 7, d("$set", d("raw", inner)))
	s.insert("c", rawDoc(bson.E{Key: "_id", Value: 9}, bson.E{Key: "a", Value: inner}, bson.E{Key: "a", Value: inner}))
}

const maxDocument = 16 << 20

// bigDoc is a document of exactly n bytes.
func bigDoc(id any, n int, fill string) bson.D {
	empty := d("_id", id, "n", 0, "x", "")
	return d("_id", id, "n", 0, "x", strings.Repeat(fill, n-len(kit.Raw(empty))))
}

func bigSetup(s *site) {
	s.insert("c", bigDoc(1, maxDocument, "x"))
	s.insert("c", bigDoc(2, maxDocument, "y"))
	s.insert("c", bigDoc(3, maxDocument-100, "z"))
}

func bigChange(s *site) {
	s.set("c", 1, d("$inc", d("n", 1)))
	s.set("c", 2, bigDoc(2, maxDocument, "r"))
	s.set("c", 3, d("$set", d("n", "a few more bytes")))
	s.insert("c", bigDoc(4, maxDocument, "i"))
	s.remove("c", d("_id", 1))
	s.insert("c", bigDoc(1, maxDocument, "j"))
	s.insert("c", bigDoc(5, 100, "x"))
	s.set("c", 5, bigDoc(5, maxDocument, "g"))
}

// nested is v below depth documents (or arrays) named a.
func nested(depth int, v any, arrays bool) any {
	for i := range depth {
		if arrays && i%2 == 0 {
			v = a(v)
		} else {
			v = d("a", v)
		}
	}
	return v
}

func deepSetup(s *site) {
	s.insert("c", d("_id", 1, "a", nested(99, d("b", 1), false)), d("_id", 2, "a", nested(150, d("b", 1), false)),
		d("_id", 3, "a", nested(99, d("b", 1, "c", 1), true)), d("_id", 4, "a", nested(90, a(1, 2, 3, 4), false)),
		d("_id", 5))
}

func deepChange(s *site) {
	path := func(n int) string { return strings.TrimSuffix(strings.Repeat("a.", n), ".") }
	s.set("c", 1, d("$set", d(path(100)+".b", 2, "x", 1)))
	s.set("c", 2, d("$set", d(path(60)+".b", 2)))
	s.set("c", 3, a(d("$set", d("y", 1))))
	s.set("c", 4, d("$push", d(path(91), 5)))
	s.set("c", 4, d("$pop", d(path(91), -1), "$set", d("x", 1)))
	s.set("c", 5, d("$set", d(path(100), 1)))
	s.insert("c", d("_id", 6, "a", nested(99, 1, true)))
	s.set("c", 6, d("a", nested(120, 1, false)))
}

// oddNames are names that fields may have, though some only deep inside.
func oddNames() []string {
	return []string{
		"", ".", "..", "a.b", "a.", ".a", "$", "$x", "$set", "$v", "$ref", "a$", "0", "1", "01", "-1", "1.5", "_id", " ",
		"ü", "日本", "\t\n",
		strings.Repeat("long", 300), "u", "d", "i", "a", "l", "s", "su", "sa", "u0", "b", "diff",
	}
}

func fieldNamesSetup(s *site) {
	for i, n := range oddNames() {
		// Empty and dotted names are possible at the top, those with a dollar
		// sign too, since 5.0; inside as well.
		in := d(n, 1, "other", 1)
		s.insert("c", rawDoc(bson.E{Key: "_id", Value: i}, bson.E{Key: "in", Value: in}, bson.E{Key: "arr", Value: a(in, in)},
			bson.E{Key: "x", Value: 1}))
		if n != "_id" {
			s.insert("top", rawDoc(bson.E{Key: "_id", Value: i}, bson.E{Key: n, Value: in}, bson.E{Key: "x", Value: 1}))
		}
	}
}

// setField is the expression that sets a field by its literal name, unsetField
// the one that removes it.
func setField(name string, input, value any) bson.D {
	return d("$setField", d("field", d("$literal", name), "input", input, "value", value))
}

func fieldNamesChange(s *site) {
	for i, n := range oddNames() {
		s.set("c", i, d("$set", d("x", 2, "in.other", 2, "arr.1.other", 2)))
		s.set("c", i, a(d("$set", d("in", setField(n, "$in", 2)))))
		s.set("c", i, a(d("$set", d("in", setField(n, "$in", d("$literal", d(n, a(1, 2, 3))))))))
		s.set("c", i, a(d("$set", d("arr", a(setField(n, "$in", "first"), d("$literal", d(n, n)))))))
		if n == "_id" || n == "$v" && kit.Streamed() { // which ends a server's change stream (seen on 6.0.5)
			continue
		}
		s.set("top", i, a(d("$replaceWith", setField(n, "$$ROOT", d("$literal", d(n, 1, "k", a(1, 2)))))))
		s.set("top", i, a(d("$replaceWith", setField(n, "$$ROOT", d("$literal", d(n, 1, "k", a(1), "m", 1)))),
			d("$set", d("y", 1))))
		if i%3 == 0 {
			s.set("top", i, a(d("$replaceWith", d("$unsetField", d("field", d("$literal", n), "input", "$$ROOT")))))
		}
		if len(n) == 0 || n[0] != '$' {
			s.update("top", d("_id", 1000+i), rawDoc(bson.E{Key: n, Value: d(n, 1)}), "upsert", true)
		}
		s.insert("top", rawDoc(bson.E{Key: "_id", Value: 2000 + i}, bson.E{Key: n, Value: d(n, 1)}))
	}
}

// A field named a.b is not field b of a.
func dottedSetup(s *site) {
	for i := range 6 {
		s.insert("c", d("_id", i, "a.b", 1, "a", d("b", 1, "b.c", 1), "arr", a(d("x.y", 1), 2, 3, 4)))
	}
	s.insert("c", d("_id", 10))
}

func dottedChange(s *site) {
	s.set("c", 0, a(d("$replaceWith", setField("a.b", "$$ROOT", 2))))
	s.set("c", 1, d("a.b", 3, "a", d("b", 4)))
	s.set("c", 2, a(d("$set", d("a", setField("b.c", "$a", 2), "n", 1))))
	s.set("c", 3, a(d("$replaceWith", d("$unsetField", d("field", "a.b", "input", "$$ROOT")))))
	s.set("c", 4,
		a(d("$set", d("arr", d("$concatArrays", a(a(d("$literal", d("x.y", 2))), d("$slice", a("$arr", 1, 1))))))))
	s.set("c", 5, d("$set", d("a.b", "through the path")))
	s.set("c", 10, a(d("$replaceWith", setField("a.b", "$$ROOT", d("c", 1)))))
	s.set("c", 10, a(d("$replaceWith", setField("a.b", "$$ROOT", d("c", 1, "d", 2)))))
	s.set("c", 10, a(d("$replaceWith", setField("$set", "$$ROOT", d("$literal", d("a", 1))))))
	s.update("c", d("_id", 11), d("a.b", 1), "upsert", true)
}

// Names that mean something in an oplog's diff mean nothing in a document.
func diffNamesSetup(s *site) {
	full := d()
	for _, n := range []string{"u", "d", "i", "a", "l", "s", "su", "sd", "si", "sa", "sl", "u0", "s0", "v", "o", "diff"} {
		full = append(full,
			bson.E{Key: n, Value: d("u", 1, "d", 1, "i", 1, "a", true, "l", 1, "s", 1, "sa", d("a", 1, "u0", 1))})
	}
	s.insert("c", append(d("_id", 1), full...), append(d("_id", 2), full...), d("_id", 3, "x", full, "s", a(full, full)),
		d("_id", 4, "a", true, "l", 5, "u0", 1))
}

func diffNamesChange(s *site) {
	s.set("c", 1, d("$set", d("u.u", 2, "d.d", 2, "i.new", 1, "a.a", false, "sa.sa.u0", 2), "$unset", d("s.s", 1, "l", 1)))
	s.set("c", 2, a(d("$set", d("u", "$$REMOVE", "d", d("u", 1), "s", d("$mergeObjects", a("$s", d("sa", d("a", 1))))))))
	s.set("c", 3, d("$set", d("s.1.u.u", 3, "s.0.sa.sa.a", 3, "x.diff.u", 1)))
	s.set("c", 3, a(d("$set", d("s", d("$slice", a("$s", 1)), "x.u", d("d", 1)))))
	s.set("c", 4, a(d("$set", d("a", d("a", true, "l", 1), "l", 6))))
	if shared.sourceVer.AtLeast(5, 0) {
		s.insert("c", d("_id", 5, "$v", 2, "diff", d("u", d("x", 1)))) // as a document, not an update
	}
}

func manyFieldsSetup(s *site) {
	doc := d("_id", 1)
	for i := range 5000 {
		doc = append(doc, bson.E{Key: fmt.Sprintf("f%04d", i), Value: i})
	}
	s.insert("c", doc, d("_id", 2, "at", bson.NewDateTimeFromTime(time.Unix(1, 0))))
}

func manyFieldsChange(s *site) {
	set, unset := d(), d()
	for i := range 5000 {
		if i%7 == 0 {
			set = append(set, bson.E{Key: fmt.Sprintf("f%04d", i), Value: d("was", i)})
		}
		if i%11 == 1 && i%7 != 0 {
			unset = append(unset, bson.E{Key: fmt.Sprintf("f%04d", i), Value: 1})
		}
	}
	s.set("c", 1, d("$set", set, "$unset", unset))
	s.set("c", 1, d("$set", d("f9999", 1, "f0000.was", 2)))
	s.set("c", 2, d("$set", set))
}
