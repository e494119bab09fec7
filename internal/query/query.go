package query

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/delta"
)

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
