package fields

import (
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

type path struct {
	text  string
	names []string
}

func (p path) within(above path) bool {
	return strings.HasPrefix(p.text, above.text) && (len(p.text) == len(above.text) || p.text[len(above.text)] == '.')
}

func (p path) overlaps(q path) bool { return p.within(q) || q.within(p) }

type place string

func (at place) in(name string) place {
	if at != "" {
		name = string(at) + " → " + name
	}
	return place(name)
}

func (at place) key(name string) place { return at.in(fmt.Sprintf("%q", name)) }

func (at place) refuse(format string, args ...any) error {
	where := "fields"
	if at != "" {
		where += " at " + string(at)
	}
	return fmt.Errorf("%s: %s", where, fmt.Sprintf(format, args...))
}

const maxNames = 100 // of a path

// readPath reads a path of the source or of an output, which may be _id with id.
func readPath(text string, id bool, at place) (path, error) {
	p := path{text, strings.Split(text, ".")}
	switch {
	case text == "":
		return p, at.refuse("the path is empty; write the name of a field")
	case len(p.names) > maxNames:
		return p, at.refuse("the path has more than %d names", maxNames)
	case p.names[0] == "_id" && (!id || len(p.names) > 1):
		return p, at.refuse("_id is always kept as it is, and no rule can be about it; leave it out")
	}
	for _, name := range p.names {
		switch {
		case name == "":
			return p, at.refuse("a name on the path %q is empty; write names with one dot between them", text)
		case name[0] == '$':
			return p, at.refuse("the name %q begins with a dollar; no rule can be about such a field", name)
		case bsonraw.IsIndex(name):
			return p,
				at.refuse(
					"%q could be the index of an element or the name of a field; paths go into all elements of an array without an "+
						"index", name)
		case strings.IndexByte(name, 0) >= 0:
			return p, at.refuse("a name on the path has a zero byte, which no field has")
		}
	}
	return p, nil
}

type claim struct {
	path path
	at   place
	what string // the section
	to   string // rename: the new name
	rule *valueRule
}

func (c *claim) places() bool { return c.rule == nil }

func (c claim) fails() bool {
	return c.rule != nil && c.rule.kind == convertTo && c.rule.otherwise == otherwiseFail
}

type output struct {
	path path
	at   place
	make maker
}

type parser struct {
	secrets func(string) (string, error)
	m       *Map
	compile *compiler // of expressions, when there is one
	keys    map[string]string
}

func (p *parser) document(doc []byte) error {
	seen := map[string]bool{}
	for e := range bsonraw.Fields(doc) {
		name := string(e.Name)
		at := place(name)
		if seen[name] {
			return at.refuse("it stands there twice; write one of them with all in it")
		}
		seen[name] = true
		if err := p.section(name, e.View, at); err != nil {
			return err
		}
	}
	if seen["keep"] && seen["drop"] {
		return place("drop").refuse(
			"keep and drop exclude each other: what is not kept is left out; write keep alone, or drop alone")
	}
	return nil
}

type section struct {
	name    string
	example string
	read    func(p *parser, name string, v value, at place) error // nil is a list of paths
	schema  schema
}

func sections() []section {
	path, top := pathSchema(), topLevel()
	return []section{
		{"keep", "", nil, pathsSchema(wholePath(), "paths of fields; all other fields are left out")},
		{"drop", "", nil, pathsSchema(path, "paths of fields that are left out")},
		{"rename", `{"old": "new"}`, (*parser).rename,
			each(top, top, "other names for fields at the top level, which stay where they stand")},
		{"move", `{"from.path": "to.path"}`, (*parser).move, each(path, path, "other paths for fields")},
		{"set", `{"field": "value"}`, (*parser).set, each(path, schema{}, "constants, by the field that has them")},
		{"from", `{"field": "$namespace"}`, (*parser).from,
			each(path, either(wholePath(), schema{"enum": sources()}),
				"values of other fields, or what is known of the event, by the field that gets them")},
		{"convert", `{"field": {"to": "decimal"}}`, (*parser).convert, each(path, convertSchema(), "other types, by field")},
		{"mask", `{"field": {"last": 4}}`, (*parser).mask, each(path, maskSchema(), "what is hidden of values, by field")},
		{"compute", `{"field": "doc.a + doc.b"}`, (*parser).computed,
			each(path, computeSchema(), "expressions in CEL over doc, by the field that gets the value")},
	}
}

func (p *parser) section(name string, v value, at place) error {
	var names []string
	for _, s := range sections() {
		names = append(names, s.name)
		switch {
		case s.name != name:
		case s.read == nil:
			return p.paths(name, v, at)
		default:
			return p.each(v, at, s.example, func(path string, v value, at place) error { return s.read(p, path, v, at) })
		}
	}
	return place("").refuse("there is no rule %q; there are %s", name, listed(names, "and"))
}

func listed(names []string, word string) string {
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " " + word + " " + names[last]
}

func (p *parser) paths(name string, v value, at place) error {
	if !v.IsArray() {
		return at.refuse(`it needs a list of paths, such as ["status", "customer.name"]`)
	}
	n := 0
	for e := range bsonraw.Fields(v.Value) {
		in := place(fmt.Sprintf("%s[%d]", at, n))
		n++
		if e.Type != bson.TypeString {
			return in.refuse(`it needs a path, a string such as "customer.name"`)
		}
		q, err := readPath(textOf(e.View), name == "keep", in)
		if err != nil {
			return err
		}
		if name == "drop" {
			p.m.claims = append(p.m.claims, claim{path: q, at: at.key(q.text), what: name})
			continue
		}
		p.m.keep = append(p.m.keep, q)
	}
	if n == 0 {
		return at.refuse(`the list is empty; name a field at least, or leave %s out ("keep": ["_id"] keeps _id alone)`, name)
	}
	p.m.keeps = p.m.keeps || name == "keep"
	return nil
}

func (p *parser) each(v value, at place, example string, read func(string, value, place) error) error {
	if !v.IsDocument() {
		return at.refuse("it needs a document, such as %s", example)
	}
	seen := map[string]bool{}
	for e := range bsonraw.Fields(v.Value) {
		name := string(e.Name)
		in := at.key(name)
		if seen[name] {
			return in.refuse("it stands there twice; write one of them")
		}
		seen[name] = true
		if err := read(name, e.View, in); err != nil {
			return err
		}
	}
	if len(seen) == 0 {
		return at.refuse("it is empty; write it as %s, or leave it out", example)
	}
	return nil
}

func (p *parser) rename(name string, v value, at place) error {
	from, to, err := fromTo(name, v, at)
	switch {
	case err != nil:
		return err
	case len(from.names) > 1 || len(to.names) > 1:
		return at.refuse("rename is from top level to top level, and keeps the field's position; for dotted paths write move")
	case from.text == to.text:
		return at.refuse("it has this name already; leave the rule out")
	}
	p.m.claims = append(p.m.claims, claim{path: from, at: at, what: "rename", to: to.text})
	return nil
}

func fromTo(name string, v value, at place) (from, to path, err error) {
	if from, err = readPath(name, false, at); err != nil {
		return from, to, err
	}
	if v.Type != bson.TypeString {
		return from, to, at.refuse("it needs the new path, a string")
	}
	to, err = readPath(textOf(v), false, at)
	return from, to, err
}

func (p *parser) move(name string, v value, at place) error {
	from, to, err := fromTo(name, v, at)
	switch {
	case err != nil:
		return err
	case from.text == to.text:
		return at.refuse("it is there already; leave the rule out")
	}
	p.m.claims = append(p.m.claims, claim{path: from, at: at, what: "move"})
	p.m.outputs = append(p.m.outputs, output{to, at, maker{kind: makeMoved, from: from}})
	return nil
}

func (p *parser) set(name string, v value, at place) error {
	return p.output(name, maker{kind: makeConstant, constant: v}, at)
}

func (p *parser) output(name string, mk maker, at place) error {
	to, err := readPath(name, false, at)
	if err == nil {
		p.m.outputs = append(p.m.outputs, output{to, at, mk})
	}
	return err
}

func (p *parser) from(name string, v value, at place) error {
	if v.Type != bson.TypeString {
		return at.refuse(`it needs $namespace, $operation, $clusterTime or a path of the source document, a string`)
	}
	switch text := textOf(v); text {
	case "$namespace":
		return p.output(name, maker{kind: makeNamespace}, at)
	case "$operation", "$clusterTime":
		if strings.Contains(name, ".") {
			return at.refuse(
				"%s changes with each write, and stands in a field at the top level only; write a name without a dot", text)
		}
		mk := maker{kind: makeOperation}
		if text == "$clusterTime" {
			mk.kind = makeClusterTime
		}
		return p.output(name, mk, at)
	default:
		if strings.HasPrefix(text, "$") {
			return at.refuse("there is no %s; there are %s, and paths without a dollar", text, strings.Join(sources(), ", "))
		}
		q, err := readPath(text, true, at)
		if err != nil {
			return err
		}
		return p.output(name, maker{kind: makeCopied, from: q}, at)
	}
}

// sources are the properties of an event.
func sources() []string { return []string{"$namespace", "$operation", "$clusterTime"} }

func (p *parser) convert(name string, v value, at place) error {
	return p.ruled("convert", name, v, at, p.readConvert)
}

func (p *parser) mask(name string, v value, at place) error {
	return p.ruled("mask", name, v, at, p.readMask)
}

func (p *parser) ruled(what, name string, v value, at place, read func(value, place) (*valueRule, error)) error {
	q, err := readPath(name, false, at)
	if err != nil {
		return err
	}
	rule, err := read(v, at)
	if err == nil {
		p.m.claims = append(p.m.claims, claim{path: q, at: at, what: what, rule: rule})
	}
	return err
}

func optionsOf(v value, at place, known ...string) (map[string]value, error) {
	out := map[string]value{}
	for e := range bsonraw.Fields(v.Value) {
		name := string(e.Name)
		if !slices.Contains(known, name) {
			return nil, at.key(name).refuse("there is no such option; there are %s", strings.Join(known, ", "))
		}
		if _, twice := out[name]; twice {
			return nil, at.key(name).refuse("it stands there twice; write one of them")
		}
		out[name] = e.View
	}
	return out, nil
}

type otherwise uint8

const (
	otherwiseFail otherwise = iota
	otherwiseKeep
	otherwiseNull
	otherwiseDrop
)

func readOtherwise(given map[string]value, at place, keep bool) (otherwise, error) {
	v, ok := given["otherwise"]
	if !ok {
		return otherwiseFail, nil
	}
	known := otherwiseNames(keep)
	text := "null" // as YAML has it without quotes
	if v.Type == bson.TypeString {
		text = textOf(v)
	}
	if v.Type != bson.TypeString && v.Type != bson.TypeNull || !slices.Contains(known, text) {
		return 0, at.in("otherwise").refuse("it needs %s", listed(known, "or"))
	}
	return otherwise(slices.Index(otherwiseNames(true), text)), nil
}

// otherwiseNames are in the order of the constants; keep is not always allowed.
func otherwiseNames(keep bool) []string {
	if keep {
		return []string{"fail", "keep", "null", "drop"}
	}
	return []string{"fail", "null", "drop"}
}
