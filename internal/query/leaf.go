package query

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// leaf is a condition on one value, or on that there is none.
type leaf interface {
	test(v value) bool
}

type (
	// notLeaf and allLeaves are what they are of one value inside $elemMatch;
	// on a path bind takes them apart.
	notLeaf   struct{ of leaf }
	allLeaves []leaf
	// never holds for nothing: {$all: []}.
	never struct{}

	existsLeaf struct{}
	// nullLeaf is equality with null, which missing and undefined values have too.
	nullLeaf struct{}
	// boundLeaf compares with MinKey or MaxKey, which are in order with all types.
	boundLeaf struct {
		op      comparison
		operand value
	}
	// compareLeaf compares with a value of the same class.
	compareLeaf struct {
		op      comparison
		class   class
		operand value
	}
	// textLeaf is equality with a string.
	textLeaf struct{ text string }
	// inLeaf is equality with one of many, and with what a regex finds.
	inLeaf struct {
		sorted  []value
		null    bool
		regexes []*regexLeaf
	}
	typeLeaf struct{ types [256]bool }
	sizeLeaf struct{ n int64 }
	// elementLeaf is $elemMatch with conditions on an element itself, documentLeaf
	// with conditions on its fields.
	elementLeaf  struct{ of leaf }
	documentLeaf struct{ of node }
)

// comparison is one of the operators that compare.
type comparison uint8

const (
	opEq comparison = iota
	opLt
	opLte
	opGt
	opGte
)

func (op comparison) holds(c int) bool {
	switch op {
	case opLt:
		return c < 0
	case opLte:
		return c <= 0
	case opGt:
		return c > 0
	case opGte:
		return c >= 0
	}
	return c == 0
}

// wantsArray says of a leaf that it is about an array as a whole, not about its
// elements.
func wantsArray(l leaf) bool {
	switch l.(type) {
	case *elementLeaf, *documentLeaf, sizeLeaf:
		return true
	}
	return false
}

func (l notLeaf) test(v value) bool { return !l.of.test(v) }

func (l allLeaves) test(v value) bool {
	for _, of := range l {
		if !of.test(v) {
			return false
		}
	}
	return true
}

func (never) test(value) bool { return false }

func (existsLeaf) test(v value) bool { return !v.missing() }

func (nullLeaf) test(v value) bool {
	return v.missing() || v.typ == bson.TypeNull || v.typ == bson.TypeUndefined
}

// test: a missing value too is below MaxKey and above MinKey.
func (l *boundLeaf) test(v value) bool {
	if v.missing() {
		v.typ = bson.TypeNull
	}
	return l.op.holds(compare(v, l.operand))
}

// test keeps to the class: {$lt: 5} finds no string. NaN is in no order with other
// numbers, only equal to itself.
func (l *compareLeaf) test(v value) bool {
	if classOf(v.typ) != l.class {
		return false
	}
	if l.class == classNumber && (v.isNaN() || l.operand.isNaN()) {
		return l.op != opLt && l.op != opGt && v.isNaN() && l.operand.isNaN()
	}
	return l.op.holds(compare(v, l.operand))
}

func (l *textLeaf) test(v value) bool { return v.isText() && string(v.text()) == l.text }

func (l *inLeaf) test(v value) bool {
	if l.null && (nullLeaf{}).test(v) {
		return true
	}
	if _, found := slices.BinarySearchFunc(l.sorted, v, compare); found {
		return true
	}
	for _, re := range l.regexes {
		if re.test(v) {
			return true
		}
	}
	return false
}

func (l *typeLeaf) test(v value) bool { return l.types[v.typ] }

func (l sizeLeaf) test(v value) bool {
	if !v.isArray() {
		return false
	}
	n := int64(0)
	for _, ok := range bsonraw.Fields(v.data) {
		if !ok {
			return false
		}
		n++
	}
	return n == l.n
}

func (l *elementLeaf) test(v value) bool {
	if !v.isArray() {
		return false
	}
	for e, ok := range bsonraw.Fields(v.data) {
		if ok && l.of.test(valueOf(e)) {
			return true
		}
	}
	return false
}

// test asks of arrays in the array too: their fields are named "0", "1" and so on.
func (l *documentLeaf) test(v value) bool {
	if !v.isArray() {
		return false
	}
	for e, ok := range bsonraw.Fields(v.data) {
		if ok && (e.Type == bson.TypeEmbeddedDocument || e.Type == bson.TypeArray) && l.of.match(e.Value) {
			return true
		}
	}
	return false
}
