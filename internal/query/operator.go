package query

import (
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// operator reads one operator beside a path, without $regex and $options.
func (p *parser) operator(name string, v value, at place) (leaf, error) {
	if !slices.Contains(operatorNames(), name) {
		return nil, at.refuse("%s", unsupported(name, listed(operatorNames())+" are"))
	}
	if op, ok := comparisonOf(name); ok {
		if v.typ == bson.TypeRegex && op != opEq {
			return nil, at.refuse("a regex has no order; use $regex, $in or $not")
		}
		return p.comparison(op, v, at)
	}
	switch name {
	case "$ne":
		if v.typ == bson.TypeRegex {
			return nil, at.refuse("it takes no regex; use $not")
		}
		return negate(p.comparison(opEq, v, at))
	case "$in":
		return p.in(v, at)
	case "$nin":
		return negate(p.in(v, at))
	case "$not":
		return p.not(v, at)
	case "$exists":
		return exists(v), nil
	case "$type":
		return typeOf(v, at)
	case "$size":
		return size(v, at)
	case "$mod":
		return p.mod(v, at)
	case "$all":
		return p.all(v, at)
	case "$elemMatch":
		return p.elemMatch(v, at)
	case "$bitsAllSet", "$bitsAllClear", "$bitsAnySet", "$bitsAnyClear":
		return bitsOf(name, v, at)
	}
	return nil, at.refuse("%s is not read", name)
}

// operatorNames are the operators beside a path: no others are taken.
func operatorNames() []string {
	return []string{"$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$not", "$exists", "$type", "$regex",
		"$options", "$size", "$mod",
		"$all", "$elemMatch", "$bitsAllSet", "$bitsAllClear", "$bitsAnySet", "$bitsAnyClear"}
}

func listed(names []string) string {
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

func comparisonOf(name string) (comparison, bool) {
	switch name {
	case "$eq":
		return opEq, true
	case "$lt":
		return opLt, true
	case "$lte":
		return opLte, true
	case "$gt":
		return opGt, true
	case "$gte":
		return opGte, true
	}
	return 0, false
}

func negate(l leaf, err error) (leaf, error) {
	if err != nil {
		return nil, err
	}
	return notLeaf{l}, nil
}

// comparison makes the leaf of a comparison with a value.
func (p *parser) comparison(op comparison, v value, at place) (leaf, error) {
	p.texts = p.texts || hasText(v)
	switch {
	case v.typ == bson.TypeUndefined:
		return nil, at.refuse("nothing can be compared with undefined; use null, or {$type: \"undefined\"}")
	case renumbered(v):
		return nil, at.refuse("%s", errRenumbered)
	case v.typ == bson.TypeMinKey || v.typ == bson.TypeMaxKey:
		return &boundLeaf{op, v}, nil
	case v.typ == bson.TypeNull && (op == opLt || op == opGt):
		return never{}, nil
	case v.typ == bson.TypeNull:
		return nullLeaf{}, nil
	case op == opEq && v.isText():
		return &textLeaf{string(v.text())}, nil
	}
	return &compareLeaf{op, classOf(v.typ), v}, nil
}

// hasText says of a value that there is text in it which a collation would compare.
func hasText(v value) bool {
	switch v.typ {
	case bson.TypeString, bson.TypeSymbol, bson.TypeCodeWithScope:
		return true
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		for e := range bsonraw.Fields(v.data) {
			if hasText(valueOf(e)) {
				return true
			}
		}
	}
	return false
}

const errRenumbered = "the elements of an array have other names than 0, 1 and so on"

// renumbered says of a value that it is, or has in it, an array whose elements are not
// named by their indexes. Newer servers name them anew where older ones do not.
func renumbered(v value) bool {
	if !v.isArray() && !v.isObject() {
		return false
	}
	i := 0
	for e := range bsonraw.Fields(v.data) {
		if v.isArray() && string(e.Name) != strconv.Itoa(i) || renumbered(valueOf(e)) {
			return true
		}
		i++
	}
	return false
}

// in reads the list of $in.
func (p *parser) in(v value, at place) (leaf, error) {
	if !v.isArray() {
		return nil, at.refuse("it needs a list, not %s", describe(v))
	}
	l := &inLeaf{}
	for e := range bsonraw.Fields(v.data) {
		v := valueOf(e)
		switch {
		case v.typ == bson.TypeUndefined:
			return nil, at.refuse("nothing can be compared with undefined; use null")
		case renumbered(v):
			return nil, at.refuse("%s", errRenumbered)
		case v.isObject() && startsWithDollar(v.data):
			return nil, at.refuse("the list holds values, not operators; use $or")
		case v.typ == bson.TypeNull:
			l.null = true
		case v.typ == bson.TypeRegex:
			re, err := p.regexValue(v, at)
			if err != nil {
				return nil, err
			}
			l.regexes = append(l.regexes, re)
		default:
			p.texts = p.texts || hasText(v)
			l.sorted = append(l.sorted, v)
		}
	}
	if l.null && len(l.sorted)+len(l.regexes) > 0 {
		return nil,
			at.refuse(
				"null stands beside other values; servers before 5.0 find no undefined value then, newer ones do: write null by " +
					"itself, as in {$or: [{a: null}, {a: {$in: [1, 2]}}]} or {$ne: null, $nin: [1, 2]}")
	}
	slices.SortFunc(l.sorted, compare)
	return l, nil
}

// not reads $not, whose argument is operators or a regex.
func (p *parser) not(v value, at place) (leaf, error) {
	switch {
	case v.typ == bson.TypeRegex:
		return negate(p.regexValue(v, at))
	case v.isObject() && startsWithDollar(v.data):
		return negate(p.operators(v.data, at))
	}
	return nil, at.refuse("it needs operators or a regex, not %s; for a value use $ne", describe(v))
}

// exists reads $exists, whose argument is true or false as in JavaScript.
func exists(v value) leaf {
	if truth(v) {
		return existsLeaf{}
	}
	return notLeaf{existsLeaf{}}
}

func truth(v value) bool {
	switch {
	case v.typ == bson.TypeBoolean:
		return v.data[0] != 0
	case v.isNumber():
		return compareNumbers(v, value{bson.TypeInt32, make([]byte, 4)}) != 0
	}
	return v.typ != bson.TypeNull && v.typ != bson.TypeUndefined
}

// size reads $size.
func size(v value, at place) (leaf, error) {
	n, ok := argument(v)
	if !ok || n < 0 {
		return nil, at.refuse("it needs a whole number that is not negative, not %s", describe(v))
	}
	return sizeLeaf{n}, nil
}

// argument is a whole number that stands in a filter.
func argument(v value) (int64, bool) {
	if v.typ == bson.TypeDouble {
		return exactInt(v.double())
	}
	return v.whole()
}

// mod reads $mod. Servers of 4.2 keep 32 bits of its arguments, and differ in what
// becomes of a fraction.
func (p *parser) mod(v value, at place) (leaf, error) {
	var n []int64
	if v.isArray() {
		for e := range bsonraw.Fields(v.data) {
			i, ok := argument(valueOf(e))
			if !ok || i != int64(int32(i)) {
				return nil, at.refuse("divisor and remainder must be whole numbers of 32 bits, not %s", describe(valueOf(e)))
			}
			n = append(n, i)
		}
	}
	switch {
	case len(n) != 2:
		return nil, at.refuse("it needs a list of divisor and remainder, not %s", describe(v))
	case n[0] == 0:
		return nil, at.refuse("the divisor is 0; use {$eq: 0}")
	}
	p.mods = true
	return modLeaf{n[0], n[1]}, nil
}

// all reads $all: values that must all occur, or $elemMatch for all of them.
func (p *parser) all(v value, at place) (leaf, error) {
	if !v.isArray() {
		return nil, at.refuse("it needs a list, not %s", describe(v))
	}
	var leaves allLeaves
	matches := 0
	for e := range bsonraw.Fields(v.data) {
		v := valueOf(e)
		inner, is := onlyElemMatch(v)
		var l leaf
		var err error
		switch {
		case is:
			matches++
			l, err = p.elemMatch(inner, at.in("$elemMatch"))
		case v.isObject() && startsWithDollar(v.data):
			return nil, at.refuse("the list holds values, or {$elemMatch: …}, but no other operators; use $and")
		default:
			l, err = p.condition(v, at)
		}
		if err != nil {
			return nil, err
		}
		leaves = append(leaves, l)
	}
	switch {
	case matches > 0 && matches < len(leaves):
		return nil, at.refuse("$elemMatch and values do not go together in one list; use $and")
	case len(leaves) == 0:
		return never{}, nil
	}
	return leaves, nil
}

// onlyElemMatch is the argument in {$elemMatch: …}.
func onlyElemMatch(v value) (value, bool) {
	if !v.isObject() {
		return value{}, false
	}
	b, _ := bsonraw.Body(v.data)
	e, rest, ok := bsonraw.Next(b)
	return valueOf(e), ok && len(rest) == 0 && string(e.Name) == "$elemMatch"
}

// elemMatch reads conditions that one element of an array fulfils: on the element
// itself, or on its fields.
func (p *parser) elemMatch(v value, at place) (leaf, error) {
	if !v.isObject() {
		return nil, at.refuse("it needs a document, not %s", describe(v))
	}
	if onElement(v.data) {
		l, err := p.operators(v.data, at)
		if err != nil {
			return nil, err
		}
		return &elementLeaf{l}, nil
	}
	before := len(p.deps)
	n, err := p.document(v.data, at)
	if err != nil {
		return nil, err
	}
	if len(p.deps) == before { // {$elemMatch: {}}: on what sort of elements there are
		p.deps = append(p.deps, newDependency(at.path))
	}
	return &documentLeaf{n}, nil
}

// onElement says of an $elemMatch that it has operators of values.
func onElement(doc []byte) bool {
	b, _ := bsonraw.Body(doc)
	e, _, ok := bsonraw.Next(b)
	switch string(e.Name) {
	case "$and", "$or", "$nor", "$comment":
		return false
	}
	return ok && len(e.Name) > 0 && e.Name[0] == '$'
}
