package delta

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Sorted returns modifiers whose sets stand in the order in which a server
// applies them: what it logs by itself does, what a user's applyOps brings
// need not. Since 5.0 (numeric) names that are numbers are ordered as such. What
// is no valid $v:1 update comes back as it is.
func Sorted(o bson.Raw, numeric bool) bson.Raw {
	list, err := modPaths(nil, o)
	if err != nil {
		return o
	}
	order := func(a, b modPath) int {
		return slices.CompareFunc(strings.Split(string(a.path), "."), strings.Split(string(b.path), "."),
			func(x, y string) int {
				if numeric && number([]byte(x)) && number([]byte(y)) && len(x) != len(y) {
					return len(x) - len(y)
				}
				return strings.Compare(x, y)
			})
	}
	if slices.IsSortedFunc(list, order) {
		return o
	}
	slices.SortStableFunc(list, order)
	out, at := openDoc(nil)
	for _, name := range []string{"$set", "$unset"} {
		var start int
		out, start = openField(out, name)
		for _, p := range list {
			if p.unset == (name == "$unset") {
				out = appendValue(out, p.typ, p.path, p.val)
			}
		}
		out = closeOrDrop(out, start, name)
	}
	return closeDoc(out, at)
}
