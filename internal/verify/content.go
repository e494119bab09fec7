package verify

import (
	"bytes"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

func (o *Options) same(a, b []byte) bool {
	return bytes.Equal(a, b) || o.IgnoreFieldOrder && sameFields(a, b, 0)
}

func (o *Options) agree(a, b []byte) bool {
	return a == nil && b == nil || a != nil && b != nil && o.same(a, b)
}

// maxDepth bounds the recursion. What lies deeper is compared byte for byte.
const maxDepth = 256

type element = bsonraw.Element

func elements(doc []byte) (out []element, ok bool) {
	rest, ok := bsonraw.Body(doc)
	for ok && len(rest) > 0 {
		var e element
		e, rest, ok = bsonraw.Next(rest)
		out = append(out, e)
	}
	return out, ok
}

// sameFields compares documents without the order of fields, at every depth. Fields of the same
// name are a multiset.
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

func run(e []element) int {
	n := 1
	for n < len(e) && bytes.Equal(e[n].Name, e[0].Name) {
		n++
	}
	return n
}

// sameMultiset pairs values greedily: being the same is an equivalence.
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

// sameElements compares arrays, in order. It collects no elements: arrays may be large.
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

// differing names the first field below path in which two documents differ.
func differing(a, b []byte, path string, ignoreOrder bool, depth int) string {
	x, ok1 := elements(a)
	y, ok2 := elements(b)
	if !ok1 || !ok2 || depth > maxDepth {
		return label(path) + "bytes differ"
	}
	left := slices.Clone(y)
	for _, e := range x {
		j := counterpart(e, left)
		if j < 0 {
			return label(path+string(e.Name)) + "only on the source: " + formatValue(e)
		}
		f := left[j]
		copy(left[1:j+1], left)
		left = left[1:]
		if text := differingValue(e, f, path+string(e.Name), ignoreOrder, depth); text != "" {
			return text
		}
	}
	if len(left) > 0 {
		return label(path+string(left[0].Name)) + "only on the target: " + formatValue(left[0])
	}
	if ignoreOrder {
		return ""
	}
	for i := range x {
		if !bytes.Equal(x[i].Name, y[i].Name) {
			return label(path+string(x[i].Name)) + fmt.Sprintf("field order differs: %q comes here on the target", y[i].Name)
		}
	}
	return label(path) + "order of fields of the same name differs"
}

// counterpart prefers an equal field among those of the name.
func counterpart(e element, among []element) int {
	first := -1
	for j, f := range among {
		if !bytes.Equal(e.Name, f.Name) {
			continue
		}
		if f.Type == e.Type && bytes.Equal(f.Value, e.Value) {
			return j
		}
		if first < 0 {
			first = j
		}
	}
	return first
}

func differingValue(a, b element, path string, ignoreOrder bool, depth int) string {
	if a.Type == b.Type && bytes.Equal(a.Value, b.Value) || ignoreOrder && sameContent(a, b, depth) {
		return ""
	}
	if a.Type == b.Type && (a.Type == bson.TypeEmbeddedDocument || a.Type == bson.TypeArray) {
		return differing(a.Value, b.Value, path+".", ignoreOrder, depth+1)
	}
	s, d := formatValue(a), formatValue(b)
	if s == d {
		abbreviate := func(b []byte) []byte { return b[:min(len(b), maxValue/2)] }
		s, d = fmt.Sprintf("%s (%x)", s, abbreviate(a.Value)), fmt.Sprintf("%s (%x)", d, abbreviate(b.Value))
	}
	return label(path) + s + " on the source, " + d + " on the target"
}

func label(path string) string {
	if n := len(path); n > 0 && path[n-1] == '.' {
		path = path[:n-1]
	}
	if path == "" {
		return ""
	}
	return path + ": "
}

const maxValue = 48

func formatValue(e element) string {
	if len(e.Value) > 4096 {
		return fmt.Sprintf("%s of %d bytes", e.Type, len(e.Value))
	}
	return e.Type.String() + " " + bsonraw.Text(e.ID(), maxValue)
}
