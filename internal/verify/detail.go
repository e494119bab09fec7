package verify

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
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
			return label(path+string(e.name)) + "only on the source: " + show(e.Value)
		}
		used[j] = true
		if text := differingValue(e.Value, y[j].Value, path+string(e.name), ignoreOrder, depth); text != "" {
			return text
		}
	}
	for j, e := range y {
		if !used[j] {
			return label(path+string(e.name)) + "only on the target: " + show(e.Value)
		}
	}
	if ignoreOrder {
		return ""
	}
	for i := range x {
		if !bytes.Equal(x[i].name, y[i].name) {
			return label(path+string(x[i].name)) + fmt.Sprintf("field order differs: %q comes here on the target", y[i].name)
		}
	}
	return label(path) + "order of fields of the same name differs"
}

// counterpart is the field to hold e against: one of the same name, among
// several the one that is equal, else the first.
func counterpart(e element, y []element, used []bool, from int) int {
	first := -1
	for j := from; j < len(y); j++ {
		if used[j] || !bytes.Equal(e.name, y[j].name) {
			continue
		}
		if y[j].Equal(e.Value) {
			return j
		}
		if first < 0 {
			first = j
		}
	}
	return first
}

func differingValue(a, b bsoncore.Value, path string, ignoreOrder bool, depth int) string {
	if a.Equal(b) || ignoreOrder && sameContent(a, b, depth) {
		return ""
	}
	t := bson.Type(a.Type)
	if a.Type == b.Type && (t == bson.TypeEmbeddedDocument || t == bson.TypeArray) {
		return differing(a.Data, b.Data, path+".", ignoreOrder, depth+1)
	}
	s, d := show(a), show(b)
	if s == d {
		s, d = fmt.Sprintf("%s (%x)", s, abbreviate(a.Data)), fmt.Sprintf("%s (%x)", d, abbreviate(b.Data))
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

func show(v bsoncore.Value) string {
	t := bson.Type(v.Type)
	if len(v.Data) > 4096 {
		return fmt.Sprintf("%s of %d bytes", t, len(v.Data))
	}
	text := bson.RawValue{Type: t, Value: v.Data}.String()
	if len(text) > shown {
		cut := shown
		for cut > 0 && !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut] + "…"
	}
	return t.String() + " " + text
}

func abbreviate(b []byte) []byte { return b[:min(len(b), shown/2)] }
