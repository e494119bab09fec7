package verify

import (
	"bytes"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// same compares two documents as the options say.
func (o *Options) same(a, b []byte) bool {
	return bytes.Equal(a, b) || o.IgnoreFieldOrder && sameFields(a, b, 0)
}

// agree reports that both sides have the same document, or both have none (nil).
func (o *Options) agree(a, b []byte) bool {
	return a == nil && b == nil || a != nil && b != nil && o.same(a, b)
}

// maxDepth ends the recursion into nested documents; servers allow 200 levels
// or less. What lies deeper is compared byte for byte.
const maxDepth = 256

// element is a field.
type element = bsonraw.Element

// elements cuts a document into its fields. It reports false when the document
// is malformed.
func elements(doc []byte) (out []element, ok bool) {
	rest, ok := bsonraw.Body(doc)
	for ok && len(rest) > 0 {
		var e element
		e, rest, ok = bsonraw.Next(rest)
		out = append(out, e)
	}
	return out, ok
}

// sameFields compares two documents without regard to the order of fields, at
// every depth. Fields of the same name are compared as a multiset.
func sameFields(a, b []byte, depth int) bool {
	if bytes.Equal(a, b) {
		return true
	}
	if len(a) != len(b) || depth > maxDepth {
		return false
	}
	x, ok1 := elements(a)
	y, ok2 := elements(b)
	if !ok1 || !ok2 || len(x) != len(y) {
		return false
	}
	sortByName(x)
	sortByName(y)
	for len(x) > 0 {
		n := run(x)
		if n != run(y) || !bytes.Equal(x[0].Name, y[0].Name) || !sameMultiset(x[:n], y[:n], depth) {
			return false
		}
		x, y = x[n:], y[n:]
	}
	return true
}

func sortByName(e []element) {
	slices.SortStableFunc(e, func(a, b element) int { return bytes.Compare(a.Name, b.Name) })
}

// run is how many fields at the head have the same name.
func run(e []element) int {
	n := 1
	for n < len(e) && bytes.Equal(e[n].Name, e[0].Name) {
		n++
	}
	return n
}

// sameMultiset pairs values greedily, which is right because being the same is
// an equivalence.
func sameMultiset(x, y []element, depth int) bool {
	if len(x) == 1 {
		return sameContent(x[0], y[0], depth)
	}
	left := slices.Clone(y)
	for _, e := range x {
		i := slices.IndexFunc(left, func(f element) bool { return sameContent(e, f, depth) })
		if i < 0 {
			return false
		}
		left[i], left = left[0], left[1:]
	}
	return true
}

func sameContent(a, b element, depth int) bool {
	if a.Type != b.Type {
		return false
	}
	switch a.Type {
	case bson.TypeEmbeddedDocument:
		return sameFields(a.Value, b.Value, depth+1)
	case bson.TypeArray:
		return sameElements(a.Value, b.Value, depth+1)
	}
	return bytes.Equal(a.Value, b.Value)
}

// sameElements compares arrays, whose order counts, without collecting their
// elements: arrays may be large.
func sameElements(a, b []byte, depth int) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, ok1 := bsonraw.Body(a)
	y, ok2 := bsonraw.Body(b)
	if len(a) != len(b) || depth > maxDepth || !ok1 || !ok2 {
		return false
	}
	for len(x) > 0 && len(y) > 0 {
		var e, f element
		e, x, ok1 = bsonraw.Next(x)
		f, y, ok2 = bsonraw.Next(y)
		if !ok1 || !ok2 || !bytes.Equal(e.Name, f.Name) || !sameContent(e, f, depth) {
			return false
		}
	}
	return len(x) == len(y)
}
