package query

import (
	"bytes"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Query is a filter that was read once. It does not change: any number of goroutines
// may use it at once.
type Query struct {
	raw   bson.Raw
	root  node
	deps  []dependency
	texts bool
	mods  bool
	regs  bool
}

// Match reports whether find with the filter would return the document. Of a
// document that is no valid BSON nothing is promised but an answer.
func (q *Query) Match(doc bson.Raw) bool { return q.root.match(doc) }

// Raw is the filter as a server takes it. It must not be changed.
func (q *Query) Raw() bson.Raw { return q.raw }

// Paths are the dotted paths on which the result depends, sorted, each of them once.
// A path goes through arrays without naming their indexes.
func (q *Query) Paths() []string {
	var out []string
	for _, d := range q.deps {
		out = append(out, d.text)
	}
	return out
}

// ComparesText reports that strings are compared, so that the result is another one
// under another collation than the simple one.
func (q *Query) ComparesText() bool { return q.texts }

// HasMod reports a $mod. For decimals with a fraction, NaN and numbers beyond 64 bits, Match
// follows 5.0.4 and newer servers. Servers of 4.2.6 and 4.4.2 find others. The manual dates the
// change to 4.4.10 and 5.0.4 servers.
func (q *Query) HasMod() bool { return q.mods }

// OfAll reports that servers of 4.4, 5.0 and 6.0 all find by the filter what Match keeps. Of
// $mod see HasMod.
// By a regex a server may find less: it gives up on a text that it would have to try in too
// many ways.
func (q *Query) OfAll() bool { return !q.mods && !q.regs }

// Parse reads a filter. Whatever cannot be evaluated exactly as servers do is an
// error, which says what and where it is.
func Parse(filter bson.Raw) (*Query, error) {
	if err := checkBytes(filter); err != nil {
		return nil, err
	}
	raw := bson.Raw(bytes.Clone(filter))
	var p parser
	root, err := p.document(raw, place{})
	if err != nil {
		return nil, err
	}
	return &Query{raw: raw, root: root, deps: sortDependencies(p.deps), texts: p.texts, mods: p.mods, regs: p.regs}, nil
}
