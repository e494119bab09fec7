package delta

import (
	"bytes"
	"strings"

	"github.com/millrace/millrace/internal/bsonraw"
)

// Touches reports that an update may change the value at a path, something in it, or a value or an
// array on the way. Without names it always may.
func (d Delta) Touches(names ...string) bool {
	if d.kind == Diff {
		return diffTouches(d.diff(), names)
	}
	for section, ok := range bsonraw.Fields(d.o) {
		if !ok {
			return true
		}
		if section.Type != typeObject {
			continue // $v
		}
		set := string(section.Name) != "$unset"
		for f, ok := range bsonraw.Fields(section.Value) {
			if !ok || pathTouches(f.Name, names, set, true) {
				return true
			}
		}
	}
	return false
}

// diffTouches is for a diff of a value on the path, with names still to go. In an array, another
// length or element may lead to other values. Below an element the path goes on with the next name,
// or behind the name that is the element's index.
func diffTouches(diff []byte, names []string) bool {
	if len(names) == 0 {
		return true
	}
	array := IsArrayDiff(diff)
	for e, ok := range bsonraw.Fields(diff) {
		switch {
		case !ok || len(e.Name) == 0:
			return true
		case array && string(e.Name) == "a":
		case array && e.Name[0] != 's':
			return true
		case array:
			if diffTouches(e.Value, names) || sameIndex(e.Name[1:], names[0]) && diffTouches(e.Value, names[1:]) {
				return true
			}
		case e.Name[0] == 's':
			if string(e.Name[1:]) == names[0] && diffTouches(e.Value, names[1:]) {
				return true
			}
		default:
			if _, found := bsonraw.Field(e.Value, names[0]); found {
				return true
			}
		}
	}
	return false
}

// sameIndex compares indexes as updates do, for which 01 is 1.
func sameIndex(a []byte, b string) bool {
	return bsonraw.IsIndex(a) && bsonraw.IsIndex(b) && string(bytes.TrimLeft(a, "0")) == strings.TrimLeft(b, "0")
}

// pathTouches is for setting, or unsetting, a path. It does not say whether there are arrays: a
// number may be an index, and a set beyond the end of an array makes elements.
func pathTouches(path []byte, names []string, set, top bool) bool {
	if len(names) == 0 {
		return true
	}
	name, below, more := bytes.Cut(path, []byte("."))
	if !top && bsonraw.IsIndex(name) && (set || !more || pathTouches(below, names, set, false) ||
		sameIndex(name, names[0]) && pathTouches(below, names[1:], set, false)) {
		return true
	}
	return string(name) == names[0] && (!more || pathTouches(below, names[1:], set, false))
}
