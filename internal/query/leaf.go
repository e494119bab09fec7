package query

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// leaf is a condition on one value, which may be missing.
type leaf interface {
	test(v value) bool
}

type (
	// notLeaf and allLeaves are of one value inside $elemMatch. On a path, bind takes them apart.
	notLeaf   struct{ of leaf }
	allLeaves []leaf
	// never matches nothing: {$all: []}.
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
		class   Class
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
	// elementLeaf is $elemMatch with conditions on an element, documentLeaf on its fields.
	elementLeaf  struct{ of leaf }
	documentLeaf struct{ of node }
)

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

// wantsArray reports a leaf that tests an array as a whole, not its elements.
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

func (existsLeaf) test(v value) bool { return v.Type != 0 }

func (nullLeaf) test(v value) bool {
	return v.Type == 0 || v.IsNull()
}

// test puts a missing value below MaxKey and above MinKey, too.
func (l *boundLeaf) test(v value) bool {
	if v.Type == 0 {
		v.Type = bson.TypeNull
	}
	return l.op.holds(compare(v, l.operand))
}

// test compares within a class: {$lt: 5} finds no string. NaN equals NaN, and has no order.
func (l *compareLeaf) test(v value) bool {
	if ClassOf(v.Type) != l.class {
		return false
	}
	if l.class == ClassNumber && (isNaN(v) || isNaN(l.operand)) {
		return l.op != opLt && l.op != opGt && isNaN(v) && isNaN(l.operand)
	}
	return l.op.holds(compare(v, l.operand))
}

func (l *textLeaf) test(v value) bool { return isText(v) && string(v.Text()) == l.text }

func (l *inLeaf) test(v value) bool {
	if l.null && (nullLeaf{}).test(v) {
		return true
	}
	if _, found := slices.BinarySearchFunc(l.sorted, v, compare); found {
		return true
	}
	return slices.ContainsFunc(l.regexes, func(re *regexLeaf) bool { return re.test(v) })
}

func (l *typeLeaf) test(v value) bool { return l.types[v.Type] }

func (l sizeLeaf) test(v value) bool {
	if !v.IsArray() {
		return false
	}
	n := int64(0)
	for _, ok := range bsonraw.Fields(v.Value) {
		if !ok {
			return false
		}
		n++
	}
	return n == l.n
}

func (l *elementLeaf) test(v value) bool {
	if !v.IsArray() {
		return false
	}
	for e, ok := range bsonraw.Fields(v.Value) {
		if ok && l.of.test(e.View) {
			return true
		}
	}
	return false
}

// test includes arrays in the array: their fields are named "0", "1" and so on.
func (l *documentLeaf) test(v value) bool {
	if !v.IsArray() {
		return false
	}
	for e, ok := range bsonraw.Fields(v.Value) {
		if ok && (e.Type == bson.TypeEmbeddedDocument || e.Type == bson.TypeArray) && l.of.match(e.Value) {
			return true
		}
	}
	return false
}
