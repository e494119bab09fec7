package query

import (
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

const maxDepth = 80

type parser struct{ Query }

// place is a position in a filter: text for errors, and the path of fields, which $elemMatch
// extends.
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

func (at place) below(name string) place {
	at = at.in(fmt.Sprintf("%q", name))
	if at.inside {
		name = at.path + "." + name
	}
	at.path, at.inside = name, true
	return at
}

func (at place) refuse(format string, args ...any) error {
	where := "filter"
	if at.text != "" {
		where += " at " + at.text
	}
	return fmt.Errorf("%s: %s", where, fmt.Sprintf(format, args...))
}

func checkBytes(filter bson.Raw) error {
	if !sound(filter, bsonraw.MaxDepth) {
		return place{}.refuse("it is not a valid BSON document")
	}
	return nil
}

// sound reports whether a document, all values in it and scopes of code are well-formed and not
// nested too deeply. So values that are compared with an operand are not either.
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
		n, err := read(name, e.View, at)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	return all(nodes), nil
}

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

func logicalNames() []string { return []string{"$and", "$or", "$nor", "$comment"} }

func (p *parser) documents(v value, at place) ([]node, error) {
	if !v.IsArray() {
		return nil, at.refuse("it needs a list of filters, not %s", describe(v))
	}
	var nodes []node
	for e := range bsonraw.Fields(v.Value) {
		in := at
		in.text = fmt.Sprintf("%s[%d]", at.text, len(nodes))
		if e.Type != bson.TypeEmbeddedDocument {
			return nil, in.refuse("it needs a filter, not %s", describe(e.View))
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

func (p *parser) condition(v value, at place) (leaf, error) {
	switch {
	case v.Type == bson.TypeRegex:
		return p.regexValue(v, at)
	case v.IsDocument() && startsWithDollar(v.Value):
		return p.operators(v.Value, at)
	}
	return p.comparison(opEq, v, at)
}

func startsWithDollar(doc []byte) bool {
	b, _ := bsonraw.Body(doc)
	e, _, ok := bsonraw.Next(b)
	return ok && len(e.Name) > 0 && e.Name[0] == '$'
}

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
			l, err = p.regexOperator(doc, e.View, at.in(name))
		} else {
			l, err = p.operator(name, e.View, at.in(name))
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
	return fmt.Sprintf("%s is not an operator here; %s", name, known)
}

func describe(v value) string {
	return fmt.Sprintf("%s %s", v.Type, bsonraw.Text(bsonraw.FromRaw(bson.RawValue{Type: v.Type, Value: v.Value}), 80))
}
