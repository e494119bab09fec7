package verify

import (
	"bytes"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// describeDifference names the first field in which two documents differ.
func describeDifference(a, b []byte, ignoreOrder bool) string {
	return differing(a, b, "", ignoreOrder, 0)
}

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

// counterpart is the field to hold e against: one of the same name, among
// several the one that is equal, else the first.
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

// maxValue bounds how much of a value a report repeats.
const maxValue = 48

func formatValue(e element) string {
	if len(e.Value) > 4096 {
		return fmt.Sprintf("%s of %d bytes", e.Type, len(e.Value))
	}
	return e.Type.String() + " " + bsonraw.Text(e.ID(), maxValue)
}

func abbreviate(b []byte) []byte { return b[:min(len(b), maxValue/2)] }
