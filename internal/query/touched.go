package query

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
)

// dependency is a path on which the result depends. That includes the value there and all in
// it, the values on the way there, and the arrays that the path goes through.
type dependency struct {
	text  string
	names []string
}

func newDependency(text string) dependency { return dependency{text, strings.Split(text, ".")} }

// dependsOnWhole says of a leaf that it looks at all of a value. $elemMatch with
// conditions on fields looks at those fields alone, which are dependencies themselves.
func dependsOnWhole(l leaf) bool {
	switch l := l.(type) {
	case notLeaf:
		return dependsOnWhole(l.of)
	case allLeaves:
		return slices.ContainsFunc(l, dependsOnWhole)
	case *documentLeaf:
		return false
	}
	return true
}

// sortDependencies sorts them and leaves each of them once.
func sortDependencies(deps []dependency) []dependency {
	slices.SortFunc(deps, func(a, b dependency) int { return cmp.Compare(a.text, b.text) })
	return slices.CompactFunc(deps, func(a, b dependency) bool { return a.text == b.text })
}

// Touched reports whether an update of the oplog may change the result for a document. If it is
// false, the update does not change what Match returns.
func (q *Query) Touched(d delta.Delta) bool {
	switch d.Kind() {
	case delta.Diff:
		e, ok := bsonraw.Field(d.Raw(), "diff")
		return !ok || slices.ContainsFunc(q.deps, func(on dependency) bool { return on.byObject(e.Value, 0) })
	case delta.Modifiers:
		return q.touchedByPaths(d.Raw())
	}
	return true
}

// byObject says whether the diff of an object changes something on the path from its
// i'th name on.
func (d *dependency) byObject(diff []byte, i int) bool {
	for section, ok := range bsonraw.Fields(diff) {
		if !ok || len(section.Name) == 0 {
			return true
		}
		if section.Name[0] == 's' {
			if string(section.Name[1:]) == d.names[i] && d.bySub(section.Value, i+1) {
				return true
			}
			continue
		}
		if _, found := bsonraw.Field(section.Value, d.names[i]); found {
			return true
		}
	}
	return false
}

// bySub is for the diff of a value on the path, with the names from i on still to go.
func (d *dependency) bySub(diff []byte, i int) bool {
	if i == len(d.names) {
		return true
	}
	if first, ok := bsonraw.Field(diff, "a"); ok && first.Type == bson.TypeBoolean {
		return d.byArray(diff, i)
	}
	return d.byObject(diff, i)
}

// byArray is for an array on the path: another length, or another element, may lead to
// other values. Below an element the path goes on with its next name, or behind the
// name that is the element's index.
func (d *dependency) byArray(diff []byte, i int) bool {
	for e, ok := range bsonraw.Fields(diff) {
		switch {
		case !ok || len(e.Name) == 0:
			return true
		case string(e.Name) == "a":
			continue
		case e.Name[0] != 's': // a length, or an element as a whole
			return true
		case d.bySub(e.Value, i), sameIndex(e.Name[1:], d.names[i]) && d.bySub(e.Value, i+1):
			return true
		}
	}
	return false
}

// sameIndex compares indexes as updates do, for which 01 is 1.
func sameIndex(name []byte, index string) bool {
	if !isIndex(name) || !isIndex(index) {
		return false
	}
	return string(bytes.TrimLeft(name, "0")) == strings.TrimLeft(index, "0")
}

// touchedByPaths is for {$set, $unset} with dotted paths.
func (q *Query) touchedByPaths(o []byte) bool {
	for section, ok := range bsonraw.Fields(o) {
		if !ok {
			return true
		}
		if section.Type != bson.TypeEmbeddedDocument {
			continue // $v
		}
		set := string(section.Name) != "$unset"
		for e, ok := range bsonraw.Fields(section.Value) {
			if !ok || slices.ContainsFunc(q.deps, func(on dependency) bool { return on.byPath(e.Name, 0, set, true) }) {
				return true
			}
		}
	}
	return false
}

// byPath says whether setting, or unsetting, what an update's path leads to changes
// something on the path from its i'th name on. The update does not say whether there
// are arrays: a number may be an index, and a set beyond the end of an array makes
// elements.
func (d *dependency) byPath(path []byte, i int, set, top bool) bool {
	if i == len(d.names) {
		return true // below the value
	}
	name, below, more := bytes.Cut(path, []byte("."))
	if !top && isIndex(name) {
		if set || !more || d.byPath(below, i, set, false) || sameIndex(name, d.names[i]) && d.byPath(below, i+1, set, false) {
			return true
		}
	}
	if string(name) != d.names[i] {
		return false
	}
	return !more || d.byPath(below, i+1, set, false)
}
