// Package fields maps the fields of documents by rules, on raw BSON. Rules keep or leave out fields,
// change their names, places and values, and add fields.
//
// It talks to nobody, keeps no state and decodes nothing into maps. A Map is immutable and safe for
// concurrent use.
//
// The page docs/reference/rules.md lists the rules: keep, drop, rename, move, set, from, convert, mask
// and compute.
//
// # What they mean
//
// Rules are declarative: all paths name the source document, so their order does not matter and
// nothing is chained. A path may have one rule for its value (convert, mask) and one for its place
// (rename, move), and then no rule is above or below it. Under keep, rules apply to kept paths and
// those below them. The field _id is always kept and never mapped.
//
// The name of an output belongs to its rule. A source field of that name is left out, even where
// the rule yields no value: a field of the result depends on its rule's sources alone.
//
// # Where fields stand
//
// Fields in place keep their order. Outputs that are not in place (set, from, compute, move) stand
// right after _id, in the order of the rules' text. An output with a dotted path, such as
// "meta.tenant", comes first in the source's field meta if that stays in place. Else it comes in a new
// document at the place of the first rule that needs it. A null in the way becomes
// a document. Any other value, and an array, is a Misfit. Without values nothing is made.
//
// # Arrays
//
// The rules drop, keep, convert and mask apply to the documents of arrays, and of arrays in
// arrays, as $unset and $project do. keep leaves out other elements. At its end a path stands for
// the complete value, also an array. An array on the path of move and from is a Misfit, as there
// are many values or none.
//
// # Values
//
// A missing field stays missing. Convert keeps null. The HMAC is SHA-256 over the type's byte and
// the value's bytes, in hex. The masks first and last keep that many characters of a text and write
// a star for each other; of a text that is not longer they keep none. A value of another type under
// first, last, year, month or day (in UTC) becomes null.
//
// Convert gives what $convert gives (TestServer asks servers), with these exceptions. A double that
// differs from the six digits that servers write becomes the shortest text that reads back as it. A
// text with more digits than a decimal has does not fit, where servers round; nor does a signed
// hexadecimal number, which servers read. Dates as text have to be ISO 8601. NaN has one form.
//
// # Expressions
//
// The variable doc is the source document. Both int and long are int, and a result of that type
// is a long. Types that CEL lacks (ObjectIDs, decimals, regexes and others) pass unchanged and
// can be compared with their kind. The call double(doc.price) reads a decimal, string(doc.ref)
// an ObjectID. A map in braces is refused, as it has no order. The steps of an expression are
// bounded. An update of fields that it does not read leaves its result alone.
//
// # Duplicate names
//
// If a document has a name twice, rules of fields in place apply to each. A moved value is read
// from the first, and all are removed.
package fields

import (
	"bytes"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
)

// Meta is what an event adds to its document.
type Meta struct {
	Namespace   string         // on the source
	Operation   string         // as $operation is to read, such as "insert"
	ClusterTime bson.Timestamp // when it happened; servers put their own time for a zero
}

// Map is a parsed set of rules.
type Map struct {
	text     string
	root     *node
	claims   []claim
	outputs  []output
	keep     []path
	keeps    bool       // there is a keep
	reads    [][]string // paths, without names the document
	volatile []output
}

// Misfit reports a value that the rules cannot take. It contains nothing of the value.
type Misfit struct {
	Path string // of the rule
	Why  string
}

func (e *Misfit) Error() string { return "the value of field " + e.Path + ": " + e.Why }

var errBadDocument = errors.New("the document is not valid BSON")

// String is the canonical text of the rules, by which a job is known. It has references of secrets
// only.
func (m *Map) String() string { return m.text }

// Volatile lists the top-level fields of the result that depend on when and by what a document was
// written: a later read of the source cannot reproduce them.
func (m *Map) Volatile() []string {
	var out []string
	for i := range m.volatile {
		out = append(out, m.volatile[i].path.text)
	}
	return out
}

// Strip appends a mapped document without the Volatile fields.
func (m *Map) Strip(dst []byte, doc bson.Raw) ([]byte, error) {
	if len(m.volatile) == 0 {
		return append(dst, doc...), nil
	}
	dst, start := bsonraw.OpenDocument(dst)
	for e, ok := range bsonraw.Fields(doc) {
		if !ok {
			return nil, errBadDocument
		}
		if !m.isVolatile(e.Name) {
			dst = append(dst, e.Raw...)
		}
	}
	return bsonraw.CloseDocument(dst, start), nil
}

func (m *Map) isVolatile(name []byte) bool {
	return slices.ContainsFunc(m.volatile, func(o output) bool { return o.path.text == string(name) })
}

// Parse reads rules. secrets resolves the references of hmac. An error names the place, the problem
// and the right form.
func Parse(rules bson.Raw, secrets func(ref string) (string, error)) (*Map, error) {
	if !bsonraw.Valid(rules, bsonraw.MaxDepth) {
		return nil, place("").refuse("the rules are not a valid BSON document")
	}
	p := parser{secrets: secrets, m: &Map{}}
	if err := p.document(bytes.Clone(rules)); err != nil {
		return nil, err
	}
	if err := p.m.check(); err != nil {
		return nil, err
	}
	text, err := bson.MarshalExtJSON(rules, true, false)
	if err != nil {
		return nil, place("").refuse("the rules cannot be written as JSON: %v", err)
	}
	p.m.text = string(text)
	p.m.build()
	return p.m, nil
}

// NamesNamespace reports that documents depend on their namespace.
func (m *Map) NamesNamespace() bool {
	return slices.ContainsFunc(m.outputs, func(o output) bool { return o.make.kind == makeNamespace })
}

// TouchesPath reports whether the result may differ from the source at a path, above or below it.
func (m *Map) TouchesPath(text string) bool {
	p, err := readPath(text, true, "")
	if err != nil {
		p = path{text, []string{text}}
	}
	if p.names[0] == "_id" {
		return false
	}
	for i := range m.claims {
		c := &m.claims[i]
		if c.path.overlaps(p) || c.what == "rename" && (path{c.to, nil}).overlaps(p) {
			return true
		}
	}
	for i := range m.outputs {
		if m.outputs[i].path.overlaps(p) {
			return true
		}
	}
	return m.keeps && !m.kept(p)
}

func (m *Map) readsOf() {
	for i := range m.outputs {
		o := &m.outputs[i]
		switch mk := &o.make; {
		case mk.volatile():
			m.volatile = append(m.volatile, *o)
		case mk.kind == makeComputed:
			m.reads = append(m.reads, mk.expr.reads...)
		case mk.kind == makeCopied, mk.kind == makeMoved:
			m.reads = append(m.reads, mk.from.names)
		}
	}
}

// Careful returns the mapping for a caller that continues when a document cannot be mapped. An update
// that may concern the cause is State, as the document may fit after it.
func (m *Map) Careful() *Map {
	c := *m
	c.reads = slices.Clip(c.reads)
	for i := range m.claims {
		if m.claims[i].fails() {
			c.reads = append(c.reads, m.claims[i].path.names)
		}
	}
	for i := range m.outputs {
		// the parents of outputs matter, too
		if o := &m.outputs[i]; len(o.path.names) > 1 {
			c.reads = append(c.reads, o.path.names)
		}
	}
	return &c
}

// MayFail reports that some documents may not be mappable.
func (m *Map) MayFail() bool {
	into := func(o output) bool { return len(o.path.names) > 1 || o.make.mayFail() }
	return slices.ContainsFunc(m.claims, claim.fails) || slices.ContainsFunc(m.outputs, into)
}

func (m *Map) touched(d delta.Delta) bool {
	return slices.ContainsFunc(m.reads, func(names []string) bool { return d.Touches(names...) })
}

// Translates reports that Update is never State: all rules are for complete top-level fields.
func (m *Map) Translates() bool {
	top := func(p path) bool { return len(p.names) == 1 }
	return len(m.volatile) == 0 && len(m.reads) == 0 &&
		!slices.ContainsFunc(m.keep, func(p path) bool { return !top(p) }) &&
		!slices.ContainsFunc(m.claims, func(c claim) bool { return !top(c.path) || c.rule != nil }) &&
		!slices.ContainsFunc(m.outputs, func(o output) bool { return !top(o.path) || o.make.kind != makeConstant })
}

// Part is one rule of a Map.
type Part struct {
	Rule string // its place, such as `mask → "mail"`
	Map  *Map
}

// Parts splits rules that Parse takes, so that each can be tried alone.
func Parts(rules bson.Raw, secrets func(ref string) (string, error)) (out []Part, err error) {
	add := func(at place, section string, v value) {
		if err != nil {
			return
		}
		doc := bsoncore.NewDocumentBuilder().AppendValue(section,
			bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value}).Build()
		var m *Map
		if m, err = Parse(bson.Raw(doc), secrets); err == nil {
			out = append(out, Part{string(at), m})
		}
	}
	for e := range bsonraw.Fields(rules) {
		section, v := string(e.Name), e.View
		if section == "keep" { // what it leaves out follows from all of it
			add(place(section), section, v)
			continue
		}
		for one := range bsonraw.Fields(v.Value) {
			if v.IsArray() {
				list := bsoncore.NewArrayBuilder().AppendValue(bsoncore.Value{Type: bsoncore.Type(one.Type),
					Data: one.Value}).Build()
				add(place(section).key(textOf(one.View)), section, value{Type: bson.TypeArray, Value: list})
				continue
			}
			rule := bsoncore.NewDocumentBuilder().AppendValue(string(one.Name),
				bsoncore.Value{Type: bsoncore.Type(one.Type), Data: one.Value}).Build()
			add(place(section).key(string(one.Name)), section, value{Type: bson.TypeEmbeddedDocument, Value: slices.Clone(rule)})
		}
	}
	return out, err
}
