package query

import (
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// maxDepth is how deep conditions may be nested. Servers refuse a depth of more than
// 100.
const maxDepth = 80

// parser reads a filter and notes what the result depends on.
type parser struct {
	deps  []dependency
	texts bool
	mods  bool
	regs  bool
}

// place is where in a filter something stands: what is written on the way there, for
// errors; and the path of the fields on the way, which $elemMatch makes longer.
type place struct {
	text   string
	path   string
	inside bool // there is a path, which may be ""
	depth  int
}

func (at place) in(name string) place {
	if at.text != "" {
		name = at.text + " → " + name
	}
	at.text = name
	at.depth++
	return at
}

// below is the place of conditions on a field: inside is of paths below it.
func (at place) below(name string) place {
	at = at.in(fmt.Sprintf("%q", name))
	if at.inside {
		name = at.path + "." + name
	}
	at.path, at.inside = name, true
	return at
}

// refuse says what is wrong, where, and what to do.
func (at place) refuse(format string, args ...any) error {
	where := "filter"
	if at.text != "" {
		where += " at " + at.text
	}
	return fmt.Errorf("%s: %s", where, fmt.Sprintf(format, args...))
}

func checkBytes(filter bson.Raw) error {
	if !sound(filter, bsonraw.MaxDepth) {
		return place{}.refuse("it is no valid BSON document")
	}
	return nil
}

// sound reports whether the bytes of a document and of all values in it, also of the scope of
// code, are well-formed and not nested too deeply. So no value that is compared with an operand
// is nested too deeply either.
func sound(doc []byte, depth int) bool {
	if depth == 0 {
		return false
	}
	for e, ok := range bsonraw.Fields(doc) {
		inner := e.Value
		switch {
		case !ok:
			return false
		case e.Type == bson.TypeCodeWithScope:
			if _, inner, ok = cutScope(e.Value); !ok {
				return false
			}
		case e.Type != bson.TypeEmbeddedDocument && e.Type != bson.TypeArray:
			continue
		}
		if !sound(inner, depth-1) {
			return false
		}
	}
	return true
}

// document reads conditions on the fields of a document.
func (p *parser) document(doc []byte, at place) (node, error) {
	if at.depth > maxDepth {
		return nil, at.refuse("conditions are nested deeper than %d; write it flatter", maxDepth)
	}
	var nodes []node
	for e := range bsonraw.Fields(doc) {
		name := string(e.Name)
		if name == "$comment" {
			continue
		}
		read := p.field
		if strings.HasPrefix(name, "$") {
			read = p.logical
		}
		n, err := read(name, valueOf(e), at)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	return all(nodes), nil
}

// logical reads an operator that stands where fields do.
func (p *parser) logical(name string, v value, at place) (node, error) {
	in := at.in(name)
	switch name {
	case "$and", "$or", "$nor":
	default:
		return nil, in.refuse("%s", unsupported(name, "here stand names of fields, "+listed(logicalNames())))
	}
	nodes, err := p.documents(v, in)
	switch {
	case err != nil:
		return nil, err
	case name == "$and":
		return all(nodes), nil
	case name == "$or":
		return anyOf(nodes), nil
	}
	return negated{anyOf(nodes)}, nil
}

// logicalNames stand where names of fields do.
func logicalNames() []string { return []string{"$and", "$or", "$nor", "$comment"} }

// documents reads the list of a logical operator.
func (p *parser) documents(v value, at place) ([]node, error) {
	if !v.isArray() {
		return nil, at.refuse("it needs a list of filters, not %s", describe(v))
	}
	var nodes []node
	for e := range bsonraw.Fields(v.data) {
		in := at
		in.text = fmt.Sprintf("%s[%d]", at.text, len(nodes))
		if e.Type != bson.TypeEmbeddedDocument {
			return nil, in.refuse("it needs a filter, not %s", describe(valueOf(e)))
		}
		n, err := p.document(e.Value, in)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	if len(nodes) == 0 {
		return nil, at.refuse("the list is empty; give it one filter at least")
	}
	return nodes, nil
}

// field reads the condition on a path.
func (p *parser) field(name string, v value, at place) (node, error) {
	in := at.below(name)
	if strings.Contains("."+name+".", "..") && name != "" {
		return nil, in.refuse("a name on the path is empty: servers have rules of their own for that")
	}
	l, err := p.condition(v, in)
	if err != nil {
		return nil, err
	}
	if dependsOnWhole(l) {
		p.deps = append(p.deps, newDependency(in.path))
	}
	return bind(parsePath(name), l), nil
}

// condition reads what stands beside a path: a value that it equals, a regex, or
// operators.
func (p *parser) condition(v value, at place) (leaf, error) {
	switch {
	case v.typ == bson.TypeRegex:
		return p.regexValue(v, at)
	case v.isObject() && startsWithDollar(v.data):
		return p.operators(v.data, at)
	}
	return p.comparison(opEq, v, at)
}

func startsWithDollar(doc []byte) bool {
	b, _ := bsonraw.Body(doc)
	e, _, ok := bsonraw.Next(b)
	return ok && len(e.Name) > 0 && e.Name[0] == '$'
}

// operators reads {$gt: 1, $lt: 5}: all of them hold.
func (p *parser) operators(doc []byte, at place) (leaf, error) {
	if at.depth > maxDepth {
		return nil, at.refuse("conditions are nested deeper than %d; write it flatter", maxDepth)
	}
	var leaves allLeaves
	for e := range bsonraw.Fields(doc) {
		name := string(e.Name)
		if name == "$options" {
			if _, ok := bsonraw.Field(doc, "$regex"); !ok {
				return nil, at.in(name).refuse("it belongs to a $regex, and there is none")
			}
			continue
		}
		var l leaf
		var err error
		if name == "$regex" {
			l, err = p.regexOperator(doc, valueOf(e), at.in(name))
		} else {
			l, err = p.operator(name, valueOf(e), at.in(name))
		}
		if err != nil {
			return nil, err
		}
		leaves = append(leaves, l)
	}
	if len(leaves) == 1 {
		return leaves[0], nil
	}
	return leaves, nil
}

// unsupported says of an operator that is not known, or not taken, why.
func unsupported(name, known string) string {
	switch name {
	case "$expr", "$where", "$function", "$jsonSchema", "$text", "$sampleRate":
		return fmt.Sprintf(
			"%s is not supported: millrace evaluates filters itself, as exactly as servers do; use comparisons, $and, $or, "+
				"$elemMatch and so on", name)
	case "$near", "$nearSphere", "$geoWithin", "$geoIntersects", "$within", "$geoNear":
		return fmt.Sprintf("%s is not supported: filters know nothing of places; use comparisons", name)
	case "$ref", "$id", "$db":
		return fmt.Sprintf("%s is not supported here; for a DBRef compare its fields by their paths, such as \"owner.$id\"",
			name)
	}
	return fmt.Sprintf("%s is no operator here; %s", name, known)
}

// describe shows a value that should be another one.
func describe(v value) string {
	return fmt.Sprintf("%s %s", v.typ, bsonraw.Text(bsonraw.FromRaw(bson.RawValue{Type: v.typ, Value: v.data}), 80))
}
