package query

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// node is a condition on a document, in $elemMatch also on an array.
type node interface {
	match(doc []byte) bool
}

type (
	allOf   []node
	anyOf   []node
	negated struct{ of node }
	// always is {}.
	always struct{}
	// onField holds when the leaf holds for a value at the path.
	onField struct{ search search }
	// onName is onField for a path of one name.
	onName struct {
		name  string
		leaf  leaf
		whole bool
	}
)

func (n allOf) match(doc []byte) bool {
	for _, of := range n {
		if !of.match(doc) {
			return false
		}
	}
	return true
}

func (n anyOf) match(doc []byte) bool {
	for _, of := range n {
		if of.match(doc) {
			return true
		}
	}
	return false
}

func (n negated) match(doc []byte) bool { return !n.of.match(doc) }

func (always) match([]byte) bool { return true }

func (n *onField) match(doc []byte) bool { return n.search.document(doc, 0) }

func (n *onName) match(doc []byte) bool {
	v := field(doc, n.name)
	if v.IsArray() {
		s := search{leaf: n.leaf, whole: n.whole}
		return s.end(v)
	}
	return n.leaf.test(v)
}

func all(nodes []node) node {
	switch len(nodes) {
	case 0:
		return always{}
	case 1:
		return nodes[0]
	}
	return allOf(nodes)
}

// bind makes a leaf a condition on a path. Negations and conjunctions are of the whole path:
// {a: {$gt: 1, $lt: 3}} holds for {a: [0, 4]}.
func bind(p path, l leaf) node {
	switch l := l.(type) {
	case notLeaf:
		return negated{bind(p, l.of)}
	case allLeaves:
		var nodes []node
		for _, of := range l {
			nodes = append(nodes, bind(p, of))
		}
		return all(nodes)
	}
	if len(p.steps) == 1 {
		return &onName{p.text, l, wantsArray(l)}
	}
	return &onField{search{p.steps, l, wantsArray(l)}}
}

type path struct {
	text  string
	steps []step
}

type step struct {
	name  string
	index bool // may also be the index of an array's element
}

func parsePath(text string) path {
	p := path{text: text}
	for _, name := range strings.Split(text, ".") {
		p.steps = append(p.steps, step{name, bsonraw.IsIndex(name)})
	}
	return p
}

// search looks on a path for a value for which a leaf holds. The path continues in every document
// of an array. At its end, an array counts as its elements and as itself.
type search struct {
	steps []step
	leaf  leaf
	whole bool // of an array at the end the leaf sees the array alone
}

func (s *search) document(doc []byte, i int) bool {
	return s.value(field(doc, s.steps[i].name), i+1)
}

func (s *search) value(v value, i int) bool {
	switch {
	case i == len(s.steps):
		return s.end(v)
	case v.IsDocument():
		return s.document(v.Value, i)
	case v.IsArray():
		return s.elements(v.Value, i)
	}
	return s.leaf.test(value{})
}

// elements searches the documents of an array, and the element that the step names.
func (s *search) elements(array []byte, i int) bool {
	at := &s.steps[i]
	for e, ok := range bsonraw.Fields(array) {
		if !ok {
			return false
		}
		v := e.View
		if v.IsDocument() && s.document(v.Value, i) {
			return true
		}
		if at.index && string(e.Name) == at.name && s.element(v, i+1) {
			return true
		}
	}
	return false
}

// element continues at an element that its index named. At the end of the path, it stands for
// itself alone. Below a scalar there is nothing, not a missing value.
func (s *search) element(v value, i int) bool {
	switch {
	case i == len(s.steps):
		return s.leaf.test(v)
	case v.IsDocument() || v.IsArray():
		return s.value(v, i)
	}
	return false
}

func (s *search) end(v value) bool {
	if v.IsArray() && !s.whole {
		for e, ok := range bsonraw.Fields(v.Value) {
			if ok && s.leaf.test(e.View) {
				return true
			}
		}
	}
	return s.leaf.test(v)
}

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
