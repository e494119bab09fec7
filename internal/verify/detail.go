package verify

import (
	"bytes"
	"fmt"

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
	used := make([]bool, len(y))
	from := 0 // all before it are used
	for _, e := range x {
		for from < len(y) && used[from] {
			from++
		}
		j := counterpart(e, y, used, from)
		if j < 0 {
			return label(path+string(e.Name)) + "only on the source: " + show(e)
		}
		used[j] = true
		if text := differingValue(e, y[j], path+string(e.Name), ignoreOrder, depth); text != "" {
			return text
		}
	}
	for j, e := range y {
		if !used[j] {
			return label(path+string(e.Name)) + "only on the target: " + show(e)
		}
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
func counterpart(e element, y []element, used []bool, from int) int {
	first := -1
	for j := from; j < len(y); j++ {
		if used[j] || !bytes.Equal(e.Name, y[j].Name) {
			continue
		}
		if y[j].Type == e.Type && bytes.Equal(y[j].Value, e.Value) {
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
	s, d := show(a), show(b)
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

// shown is how much of a value a report repeats.
const shown = 48

func show(e element) string {
	if len(e.Value) > 4096 {
		return fmt.Sprintf("%s of %d bytes", e.Type, len(e.Value))
	}
	return e.Type.String() + " " + bsonraw.Text(e.ID(), shown)
}

func abbreviate(b []byte) []byte { return b[:min(len(b), shown/2)] }
