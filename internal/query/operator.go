package query

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

func (p *parser) operator(name string, v value, at place) (leaf, error) {
	if !slices.Contains(operatorNames(), name) {
		return nil, at.refuse("%s", unsupported(name, listed(operatorNames())+" are"))
	}
	if op, ok := comparisonOf(name); ok {
		if v.Type == bson.TypeRegex && op != opEq {
			return nil, at.refuse("a regex has no order; use $regex, $in or $not")
		}
		return p.comparison(op, v, at)
	}
	switch name {
	case "$ne":
		if v.Type == bson.TypeRegex {
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
	i := slices.Index([]string{"$eq", "$lt", "$lte", "$gt", "$gte"}, name) // in the order of the constants
	return comparison(max(i, 0)), i >= 0
}

func negate(l leaf, err error) (leaf, error) {
	if err != nil {
		return nil, err
	}
	return notLeaf{l}, nil
}

func (p *parser) comparison(op comparison, v value, at place) (leaf, error) {
	p.texts = p.texts || hasText(v)
	switch {
	case v.Type == bson.TypeUndefined:
		return nil, at.refuse("nothing can be compared with undefined; use null, or {$type: \"undefined\"}")
	case renumbered(v):
		return nil, at.refuse("%s", errRenumbered)
	case v.Type == bson.TypeMinKey || v.Type == bson.TypeMaxKey:
		return &boundLeaf{op, v}, nil
	case v.Type == bson.TypeNull && (op == opLt || op == opGt):
		return never{}, nil
	case v.Type == bson.TypeNull:
		return nullLeaf{}, nil
	case op == opEq && isText(v):
		return &textLeaf{string(v.Text())}, nil
	}
	return &compareLeaf{op, ClassOf(v.Type), v}, nil
}

func hasText(v value) bool {
	switch v.Type {
	case bson.TypeString, bson.TypeSymbol, bson.TypeCodeWithScope:
		return true
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		for e := range bsonraw.Fields(v.Value) {
			if hasText(e.View) {
				return true
			}
		}
	}
	return false
}

const errRenumbered = "the elements of an array have other names than 0, 1 and so on"

// renumbered reports an array, in a value at any depth, whose elements are not named by their
// indexes. Newer servers rename them, older ones do not.
func renumbered(v value) bool {
	if !v.IsArray() && !v.IsDocument() {
		return false
	}
	i := 0
	for e := range bsonraw.Fields(v.Value) {
		if v.IsArray() && string(e.Name) != strconv.Itoa(i) || renumbered(e.View) {
			return true
		}
		i++
	}
	return false
}

func (p *parser) in(v value, at place) (leaf, error) {
	if !v.IsArray() {
		return nil, at.refuse("it needs a list, not %s", describe(v))
	}
	l := &inLeaf{}
	for e := range bsonraw.Fields(v.Value) {
		v := e.View
		switch {
		case v.Type == bson.TypeUndefined:
			return nil, at.refuse("nothing can be compared with undefined; use null")
		case renumbered(v):
			return nil, at.refuse("%s", errRenumbered)
		case v.IsDocument() && startsWithDollar(v.Value):
			return nil, at.refuse("the list holds values, not operators; use $or")
		case v.Type == bson.TypeNull:
			l.null = true
		case v.Type == bson.TypeRegex:
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

func (p *parser) not(v value, at place) (leaf, error) {
	switch {
	case v.Type == bson.TypeRegex:
		return negate(p.regexValue(v, at))
	case v.IsDocument() && startsWithDollar(v.Value):
		return negate(p.operators(v.Value, at))
	}
	return nil, at.refuse("it needs operators or a regex, not %s; for a value use $ne", describe(v))
}

func exists(v value) leaf {
	if truth(v) {
		return existsLeaf{}
	}
	return notLeaf{existsLeaf{}}
}

func truth(v value) bool {
	switch {
	case v.Type == bson.TypeBoolean:
		return v.Value[0] != 0
	case ClassOf(v.Type) == ClassNumber:
		return compareNumbers(v, value{Type: bson.TypeInt32, Value: make([]byte, 4)}) != 0
	}
	return !v.IsNull()
}

func size(v value, at place) (leaf, error) {
	n, ok := argument(v)
	if !ok || n < 0 {
		return nil, at.refuse("it needs a whole number that is not negative, not %s", describe(v))
	}
	return sizeLeaf{n}, nil
}

func argument(v value) (int64, bool) {
	if v.Type == bson.TypeDouble {
		return bsonraw.ExactInt(v.Double())
	}
	return v.Int()
}

// mod reads $mod. Servers of 4.2 keep 32 bits of its arguments, and differ in fractions.
func (p *parser) mod(v value, at place) (leaf, error) {
	var n []int64
	if v.IsArray() {
		for e := range bsonraw.Fields(v.Value) {
			i, ok := argument(e.View)
			if !ok || i != int64(int32(i)) {
				return nil, at.refuse("divisor and remainder must be whole numbers of 32 bits, not %s", describe(e.View))
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

func (p *parser) all(v value, at place) (leaf, error) {
	if !v.IsArray() {
		return nil, at.refuse("it needs a list, not %s", describe(v))
	}
	var leaves allLeaves
	matches := 0
	for e := range bsonraw.Fields(v.Value) {
		v := e.View
		inner, is := onlyElemMatch(v)
		var l leaf
		var err error
		switch {
		case is:
			matches++
			l, err = p.elemMatch(inner, at.in("$elemMatch"))
		case v.IsDocument() && startsWithDollar(v.Value):
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

func onlyElemMatch(v value) (value, bool) {
	if !v.IsDocument() {
		return value{}, false
	}
	b, _ := bsonraw.Body(v.Value)
	e, rest, ok := bsonraw.Next(b)
	return e.View, ok && len(rest) == 0 && string(e.Name) == "$elemMatch"
}

func (p *parser) elemMatch(v value, at place) (leaf, error) {
	if !v.IsDocument() {
		return nil, at.refuse("it needs a document, not %s", describe(v))
	}
	if onElement(v.Value) {
		l, err := p.operators(v.Value, at)
		if err != nil {
			return nil, err
		}
		return &elementLeaf{l}, nil
	}
	before := len(p.deps)
	n, err := p.document(v.Value, at)
	if err != nil {
		return nil, err
	}
	if len(p.deps) == before { // {$elemMatch: {}}: on what sort of elements there are
		p.deps = append(p.deps, newDependency(at.path))
	}
	return &documentLeaf{n}, nil
}

func onElement(doc []byte) bool {
	b, _ := bsonraw.Body(doc)
	e, _, ok := bsonraw.Next(b)
	switch string(e.Name) {
	case "$and", "$or", "$nor", "$comment":
		return false
	}
	return ok && len(e.Name) > 0 && e.Name[0] == '$'
}

func typeOf(v value, at place) (leaf, error) {
	l := &typeLeaf{}
	list := []value{v}
	if v.IsArray() {
		list = nil
		for e := range bsonraw.Fields(v.Value) {
			list = append(list, e.View)
		}
	}
	for _, v := range list {
		types := typesOf(v)
		if types == nil {
			return nil, at.refuse("%s is not a type; use a name such as \"string\" or \"number\", or its number", describe(v))
		}
		for _, t := range types {
			l.types[t] = true
		}
	}
	if len(list) == 0 {
		return nil, at.refuse("the list is empty; give it one type at least")
	}
	return l, nil
}

func typesOf(v value) []bson.Type {
	if v.Type == bson.TypeString {
		return typesNamed(string(v.Text()))
	}
	n, ok := argument(v)
	if !ok || n != -1 && n != 127 && (n < 1 || n > 19) {
		return nil
	}
	return []bson.Type{bson.Type(n)}
}

func typesNamed(name string) []bson.Type {
	if name == "number" {
		return []bson.Type{bson.TypeDouble, bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128}
	}
	for t, n := range typeNames() {
		if n != "" && n == name {
			return []bson.Type{bson.Type(t)}
		}
	}
	return nil
}

func typeNames() []string {
	return []string{
		bson.TypeDouble: "double", bson.TypeString: "string", bson.TypeEmbeddedDocument: "object", bson.TypeArray: "array",
		bson.TypeBinary: "binData", bson.TypeUndefined: "undefined", bson.TypeObjectID: "objectId", bson.TypeBoolean: "bool",
		bson.TypeDateTime: "date", bson.TypeNull: "null", bson.TypeRegex: "regex", bson.TypeDBPointer: "dbPointer",
		bson.TypeJavaScript: "javascript", bson.TypeSymbol: "symbol", bson.TypeCodeWithScope: "javascriptWithScope",
		bson.TypeInt32: "int", bson.TypeTimestamp: "timestamp", bson.TypeInt64: "long", bson.TypeDecimal128: "decimal",
		bson.TypeMaxKey: "maxKey", bson.TypeMinKey: "minKey",
	}
}

// maxMask bounds a mask in bytes: no document holds more bits.
const maxMask = 16 << 20

func bitsOf(name string, v value, at place) (leaf, error) {
	mask, ok := maskOf(v)
	if !ok {
		return nil, at.refuse("it needs a whole number that is not negative, a list of bit positions, or binary data, not %s",
			describe(v))
	}
	return &bitsLeaf{
		mask: mask,
		all:  name == "$bitsAllSet" || name == "$bitsAllClear",
		set:  name == "$bitsAllSet" || name == "$bitsAnySet",
	}, nil
}

func maskOf(v value) ([]byte, bool) {
	switch {
	case v.Type == bson.TypeBinary:
		return bytes.Clone(binaryBits(v)), true
	case v.IsArray():
		return maskOfPositions(v.Value)
	}
	n, ok := argument(v)
	return binary.LittleEndian.AppendUint64(nil, uint64(n)), ok && n >= 0
}

func maskOfPositions(array []byte) ([]byte, bool) {
	var mask []byte
	for e := range bsonraw.Fields(array) {
		n, ok := argument(e.View)
		if !ok || n < 0 || n >= maxMask*8 {
			return nil, false
		}
		if grow := int(n/8) + 1 - len(mask); grow > 0 {
			mask = append(mask, make([]byte, grow)...)
		}
		mask[n/8] |= 1 << (n % 8)
	}
	return mask, true
}
