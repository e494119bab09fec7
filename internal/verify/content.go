package verify

import (
	"bytes"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

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

// element is a field: its value's type and bytes, and its name.
type element struct {
	name []byte
	bsoncore.Value
}

// elements cuts a document into its fields. It reports false when the document
// is malformed.
func elements(doc []byte) (out []element, ok bool) {
	rest, ok := bsonraw.Body(doc)
	for ok && len(rest) > 0 {
		var e element
		e, rest, ok = cutElement(rest)
		out = append(out, e)
	}
	return out, ok
}

// cutElement cuts the first field off.
func cutElement(src []byte) (element, []byte, bool) {
	e, rest, ok := bsonraw.Next(src)
	return element{e.Name, bsoncore.Value{Type: bsoncore.Type(e.Type), Data: e.Value}}, rest, ok
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
		if n != run(y) || !bytes.Equal(x[0].name, y[0].name) || !sameMultiset(x[:n], y[:n], depth) {
			return false
		}
		x, y = x[n:], y[n:]
	}
	return true
}

func sortByName(e []element) {
	slices.SortStableFunc(e, func(a, b element) int { return bytes.Compare(a.name, b.name) })
}

// run is how many fields at the head have the same name.
func run(e []element) int {
	n := 1
	for n < len(e) && bytes.Equal(e[n].name, e[0].name) {
		n++
	}
	return n
}

// sameMultiset pairs values greedily, which is right because being the same is
// an equivalence.
func sameMultiset(x, y []element, depth int) bool {
	if len(x) == 1 {
		return sameContent(x[0].Value, y[0].Value, depth)
	}
	used := make([]bool, len(y))
	for i := range x {
		j := slices.IndexFunc(used, func(u bool) bool { return !u })
		for j < len(y) && (used[j] || !sameContent(x[i].Value, y[j].Value, depth)) {
			j++
		}
		if j == len(y) {
			return false
		}
		used[j] = true
	}
	return true
}

func sameContent(a, b bsoncore.Value, depth int) bool {
	if a.Type != b.Type {
		return false
	}
	switch bson.Type(a.Type) {
	case bson.TypeEmbeddedDocument:
		return sameFields(a.Data, b.Data, depth+1)
	case bson.TypeArray:
		return sameElements(a.Data, b.Data, depth+1)
	}
	return bytes.Equal(a.Data, b.Data)
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
		e, x, ok1 = cutElement(x)
		f, y, ok2 = cutElement(y)
		if !ok1 || !ok2 || !bytes.Equal(e.name, f.name) || !sameContent(e.Value, f.Value, depth) {
			return false
		}
	}
	return len(x) == len(y)
}
