// Package query evaluates MongoDB filters on raw BSON exactly as the find command of a server does,
// without a collation. It also finds the paths on which a filter depends, and whether an update of
// the oplog may change its result. Parse refuses what it could not evaluate as servers do.
//
// The package talks to nobody, decodes nothing into maps and keeps no state.
//
// # Where the facts come from
//
// The behaviour was found by experiment on 4.2, 4.4, 5.0 and 6.0. The tables of the tests hold what
// was seen. TestServer asks servers the same, and runs random filters on random documents. Less
// obvious facts:
//
//   - A path continues in all documents of an array, and at the element that a number
//     names, but not in arrays of arrays. At its end an array stands for its elements
//     and for itself. An element that a number names at the end stands for itself
//     alone. An array in which nothing is found is not a missing value: {"a.b": null}
//     does not find {a: []} or {a: [1]}.
//   - null is equal to missing and undefined values.
//   - A number that leads to an element without fields finds nothing below it, not a
//     missing value: {"a.0.b": null} does not find {a: [5]}.
//   - A missing value is below MaxKey and above MinKey.
//   - NaN equals NaN and has no order among other numbers. All other numbers are
//     compared exactly, whatever their types.
//   - $mod and the $bits operators round decimals in different ways (number.go).
//   - A regex finds nothing in text that is not valid UTF-8.
//   - Servers give up on a text after some 200 000 backtracks, such as .*.*d on 700
//     characters, and do not find it. Match does.
//
// # What is refused
//
// $expr, $where, $text, $jsonSchema, geospatial and unknown operators; comparisons with undefined;
// of regexes what Go's engine lacks or does otherwise (regexparse.go).
package query

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/delta"
)

// Schema returns definitions of a JSON Schema for editors, "filter" is a filter as configured. What
// Parse takes is valid, except a mix of operators and fields. Parse may still refuse what is valid,
// such as a regex.
func Schema() map[string]any {
	dollar := schema{"pattern": `^\$`}
	return map[string]any{
		"filter": schema{"type": "object", "description": "the documents that find returns for this filter",
			"propertyNames": schema{"if": dollar, "then": schema{"enum": logicalNames()},
				"else": schema{"not": schema{"pattern": `^\.|\.\.|\.$`}}},
			"properties": schema{"$and": refTo("filters"), "$or": refTo("filters"), "$nor": refTo("filters"),
				"$comment": schema{}},

			"additionalProperties": refTo("condition")},
		"filters": schema{"type": "array", "minItems": 1, "items": refTo("filter")},
		"condition": schema{"description": "a value, or operators such as {$in: [open, paid]}",
			"if":   schema{"type": "object", "minProperties": 1, "propertyNames": dollar},
			"then": schema{"if": extended(), "else": refTo("operators")},
			"else": schema{"propertyNames": schema{"not": dollar}}},
		"operators": schema{"type": "object", "minProperties": 1, "properties": operands(), "additionalProperties": false,
			"dependentRequired": schema{"$options": []string{"$regex"}}},
	}
}

type schema = map[string]any

func refTo(name string) schema { return schema{"$ref": "#/$defs/" + name} }

func either(forms ...any) schema { return schema{"anyOf": forms} }

// extended is a value in extended JSON, such as {$oid: …}, with these names only, if any.
func extended(names ...string) schema {
	if names == nil {
		names = []string{"$oid", "$date", "$numberInt", "$numberLong", "$numberDouble", "$numberDecimal", "$binary", "$uuid",
			"$regularExpression", "$timestamp", "$minKey", "$maxKey", "$symbol", "$code", "$scope", "$dbPointer"}
	}
	return schema{"type": "object", "minProperties": 1, "propertyNames": schema{"enum": names}}
}

func operands() schema {
	number := extended("$numberInt", "$numberLong", "$numberDouble", "$numberDecimal")
	whole := either(schema{"type": "integer"}, number)
	natural := either(schema{"type": "integer", "minimum": 0}, number)
	mask := either(natural, schema{"type": "array", "items": natural}, extended("$binary", "$uuid", "$type"))
	regex := extended("$regularExpression", "$regex", "$options")
	null := schema{"type": "null"}
	comparison := extended("$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$not", "$exists", "$elemMatch")
	// null stands by itself.
	list := schema{"type": "array", "if": schema{"contains": null}, "then": schema{"items": null},
		"items": schema{"not": comparison}}
	kind := either(schema{"enum": append(namedTypes(), "number")}, whole)
	out := schema{
		"$in": list, "$nin": list, "$all": schema{"type": "array"}, "$exists": schema{}, "$size": natural,
		"$not":        either(refTo("operators"), regex),
		"$type":       either(kind, schema{"type": "array", "minItems": 1, "items": kind}),
		"$regex":      either(schema{"type": "string"}, regex),
		"$options":    schema{"type": "string", "pattern": "^[imsx]*$"},
		"$mod":        schema{"type": "array", "minItems": 2, "maxItems": 2, "items": whole},
		"$elemMatch":  either(refTo("operators"), refTo("filter")),
		"$bitsAllSet": mask, "$bitsAllClear": mask, "$bitsAnySet": mask, "$bitsAnyClear": mask,
	}
	for _, name := range operatorNames() {
		if _, ok := comparisonOf(name); ok || name == "$ne" {
			out[name] = schema{}
		}
	}
	return out
}

func namedTypes() (out []string) {
	for _, name := range typeNames() {
		if name != "" {
			out = append(out, name)
		}
	}
	return out
}

// Query is a parsed filter. It is immutable and safe for concurrent use.
type Query struct {
	raw   bson.Raw
	root  node
	deps  []dependency
	texts bool
	mods  bool
	regs  bool
	// states is the size of all compiled regexes.
	states int
}

// Match reports whether find with the filter would return the document. For invalid BSON the
// result is undefined.
func (q *Query) Match(doc bson.Raw) bool { return q.root.match(doc) }

// Raw returns the filter as a server takes it. It must not be changed.
func (q *Query) Raw() bson.Raw { return q.raw }

// ComparesText reports that strings are compared: another collation may give another result.
func (q *Query) ComparesText() bool { return q.texts }

// HasMod reports a $mod. For decimals with a fraction, NaN and numbers beyond 64 bits, Match
// follows 5.0.4 and newer; 4.2.6 and 4.4.2 find others. The manual dates the change to 4.4.10 and
// 5.0.4.
func (q *Query) HasMod() bool { return q.mods }

// OfAll reports that servers of 4.4, 5.0 and 6.0 all find what Match keeps. It is false with $mod
// (see HasMod) and with a regex, on which a server may give up.
func (q *Query) OfAll() bool { return !q.mods && !q.regs }

// MaxStates bounds the size of the compiled regexes of a filter: without a bound, some KB of .{1000} take a gigabyte.
const MaxStates = 200_000

// States returns the size of the compiled regexes of the filter.
func (q *Query) States() int { return q.states }

// Parse reads a filter. What cannot be evaluated exactly as servers do is an error, which names its
// place.
func Parse(filter bson.Raw) (*Query, error) {
	if err := checkBytes(filter); err != nil {
		return nil, err
	}
	p := parser{Query{raw: bytes.Clone(filter)}}
	root, err := p.document(p.raw, place{})
	if err != nil {
		return nil, err
	}
	p.root, p.deps = root, sortDependencies(p.deps)
	return &p.Query, nil
}

// dependency is a path on which the result depends, with all values on the way and below.
type dependency struct {
	text  string
	names []string
}

func newDependency(text string) dependency { return dependency{text, strings.Split(text, ".")} }

// dependsOnWhole reports a leaf that depends on all of a value. The fields of an $elemMatch are
// dependencies themselves.
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

func sortDependencies(deps []dependency) []dependency {
	slices.SortFunc(deps, func(a, b dependency) int { return cmp.Compare(a.text, b.text) })
	return slices.CompactFunc(deps, func(a, b dependency) bool { return a.text == b.text })
}

// Touched reports whether an update of the oplog may change what Match returns for a document.
func (q *Query) Touched(d delta.Delta) bool {
	return d.Kind() == delta.Invalid ||
		slices.ContainsFunc(q.deps, func(on dependency) bool { return d.Touches(on.names...) })
}
