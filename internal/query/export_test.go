package query

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
)

// Wild makes documents and filters as the tests of this package have them, for those that
// look from outside.
type Wild struct{ g *gen }

// NewWild is one with the test's seed.
func NewWild(t *testing.T) Wild { return Wild{newGen(testseed.Of(t))} }

// Documents makes n documents, for which Filter makes filters then.
func (w Wild) Documents(t *testing.T, n int) (docs []bson.Raw) {
	w.g.docs = nil
	for i := range n {
		docs = append(docs, kit.Raw(w.g.document(i)))
	}
	return docs
}

// Filter is a random filter.
func (w Wild) Filter(t *testing.T) bson.Raw { return kit.Raw(w.g.filter(2)) }

// Paths returns the dotted paths on which the result depends, sorted, without indexes of arrays.
func (q *Query) Paths() []string {
	var out []string
	for _, d := range q.deps {
		out = append(out, d.text)
	}
	return out
}
