package query

import (
	"strings"

	"github.com/millrace/millrace/internal/bsonraw"
)

// path is a dotted path of a filter, cut into names.
type path struct {
	text  string
	steps []step
}

type step struct {
	name  string
	index bool // may also be the index of an array's element
}

func parsePath(text string) path {
	p := path{text: text}
	for _, name := range strings.Split(text, ".") {
		p.steps = append(p.steps, step{name, isIndex(name)})
	}
	return p
}

// isIndex says of a name that it is written in digits. Of "01" too, but no element of
// an array has that name.
func isIndex[T string | []byte](name T) bool {
	for i := range len(name) {
		if name[i] < '0' || name[i] > '9' {
			return false
		}
	}
	return len(name) > 0
}

// search looks for a value on a path for which a leaf holds. A path may lead to many values. It
// goes on in every document of an array on the way. At its end, an array counts both as its
// elements and as the array itself.
type search struct {
	steps []step
	leaf  leaf
	whole bool // of an array at the end the leaf sees the array alone
}

// document looks in a document from a step on.
func (s *search) document(doc []byte, i int) bool {
	return s.value(field(doc, s.steps[i].name), i+1)
}

// value looks at and below a value, with the steps from i on still to go.
func (s *search) value(v value, i int) bool {
	switch {
	case i == len(s.steps):
		return s.end(v)
	case v.isObject():
		return s.document(v.data, i)
	case v.isArray():
		return s.elements(v.data, i)
	}
	return s.leaf.test(value{})
}

// elements looks into the documents of an array, and at the element that the step
// names by its index.
func (s *search) elements(array []byte, i int) bool {
	at := &s.steps[i]
	for e, ok := range bsonraw.Fields(array) {
		if !ok {
			return false
		}
		v := valueOf(e)
		if v.isObject() && s.document(v.data, i) {
			return true
		}
		if at.index && string(e.Name) == at.name && s.element(v, i+1) {
			return true
		}
	}
	return false
}

// element goes on from an element that was named by its index: at the end of the path
// it is the element alone, also if it is an array. A path that goes on below a value
// which is no document and no array finds nothing there, not a missing value.
func (s *search) element(v value, i int) bool {
	switch {
	case i == len(s.steps):
		return s.leaf.test(v)
	case v.isObject() || v.isArray():
		return s.value(v, i)
	}
	return false
}

// end is at the last step's value.
func (s *search) end(v value) bool {
	if v.isArray() && !s.whole {
		for e, ok := range bsonraw.Fields(v.data) {
			if ok && s.leaf.test(valueOf(e)) {
				return true
			}
		}
	}
	return s.leaf.test(v)
}
