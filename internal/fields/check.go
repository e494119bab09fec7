package fields

import (
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// check refuses rules that overlap. Claims are of the source, outputs of the result. A claim of a
// value that stays in place is an output, too.
func (m *Map) check() error {
	for _, c := range []func() error{m.checkKept, m.checkClaims, m.checkOutputs, m.checkReplaced} {
		if err := c(); err != nil {
			return err
		}
	}
	return nil
}

func (m *Map) checkKept() error {
	for i, p := range m.keep {
		for _, q := range m.keep[:i] {
			if p.overlaps(q) {
				return place("keep").refuse("%q and %q overlap; write the one that is meant", q.text, p.text)
			}
		}
	}
	if !m.keeps {
		return nil
	}
	for i := range m.claims {
		if c := &m.claims[i]; !m.kept(c.path) {
			return c.at.refuse("%q is not kept as a whole; add it to keep", c.path.text)
		}
	}
	return nil
}

func (m *Map) kept(p path) bool {
	return slices.ContainsFunc(m.keep, p.within)
}

func (m *Map) checkClaims() error {
	for i := range m.claims {
		for j := range m.claims[:i] {
			c, d := &m.claims[j], &m.claims[i]
			if !c.path.overlaps(d.path) {
				continue
			}
			pair := c.places() != d.places() && c.what != "drop" && d.what != "drop"
			if c.path.text != d.path.text || !pair {
				return overlap(c.at, d.at,
					"a path may have one rule of its value and one of its place, and no rule above or below it")
			}
		}
	}
	return nil
}

func overlap(a, b place, why string) error {
	return place("").refuse("%s and %s overlap: %s; leave one of them out", a, b, why)
}

type named struct {
	path path
	at   place
}

func (m *Map) names() []named {
	var out []named
	for i := range m.outputs {
		out = append(out, named{m.outputs[i].path, m.outputs[i].at})
	}
	for i := range m.claims {
		c := &m.claims[i]
		switch {
		case c.what == "rename":
			out = append(out, named{path{c.to, []string{c.to}}, c.at})
		case !c.places() && m.placed(c.path) == nil:
			out = append(out, named{c.path, c.at})
		}
	}
	return out
}

func (m *Map) placed(p path) *claim {
	for i := range m.claims {
		if c := &m.claims[i]; c.places() && c.path.text == p.text {
			return c
		}
	}
	return nil
}

func (m *Map) checkOutputs() error {
	all := m.names()
	for i := range all {
		for j := range all[:i] {
			if all[i].path.overlaps(all[j].path) {
				return overlap(all[j].at, all[i].at, "both write "+shorter(all[i].path, all[j].path))
			}
		}
	}
	return nil
}

func shorter(p, q path) string {
	if len(p.text) < len(q.text) {
		return `"` + p.text + `"`
	}
	return `"` + q.text + `"`
}

// checkReplaced refuses rules of what an output replaces: they would have no effect.
func (m *Map) checkReplaced() error {
	for _, o := range m.names() {
		for i := range m.claims {
			c := &m.claims[i]
			if c.what == "drop" && c.path.within(o.path) && c.path.text != o.path.text {
				return overlap(o.at, c.at, "the first replaces all of "+`"`+o.path.text+`"`)
			}
		}
		for _, k := range m.keep {
			if k.within(o.path) && m.placed(k) == nil && m.isOutput(o) {
				return overlap(o.at, place("keep").key(k.text), "the first replaces what is kept")
			}
		}
	}
	return nil
}

func (m *Map) isOutput(o named) bool {
	return !slices.ContainsFunc(m.claims, func(c claim) bool { return !c.places() && c.at == o.at })
}

// Index maps an index specification (as in listIndexes) to the mapped collection. Without a rule for
// its fields it is unchanged. Renamed fields get their new names in the key and
// partialFilterExpression; the index keeps its name. An index on a field under HMAC stays, even a
// unique one, as equal values stay equal. Any other is left out, and why gives the reason.
func (m *Map) Index(spec bson.Raw) (mapped bson.Raw, why string) {
	x := indexer{m: m}
	out, start := bsonraw.OpenDocument(make([]byte, 0, len(spec)+64))
	for e, ok := range bsonraw.Fields(spec) {
		if !ok {
			return nil, "its specification is not valid BSON"
		}
		if out, why = x.option(out, e, spec); why != "" {
			return nil, why
		}
	}
	if !x.changed {
		return spec, ""
	}
	return bsonraw.CloseDocument(out, start), ""
}

type indexer struct {
	m       *Map
	changed bool
}

func (x *indexer) option(dst []byte, e bsonraw.Element, spec bson.Raw) ([]byte, string) {
	switch name := string(e.Name); {
	case e.Type == bson.TypeEmbeddedDocument && name == "key":
		_, expires := bsonraw.Field(spec, "expireAfterSeconds")
		return x.key(dst, e, expires)
	case e.Type == bson.TypeEmbeddedDocument && name == "partialFilterExpression":
		return x.filter(bsonraw.AppendHeader(dst, e.Type, e.Name), e.Value)
	case e.Type == bson.TypeEmbeddedDocument && (name == "weights" || name == "wildcardProjection"):
		for w, ok := range bsonraw.Fields(e.Value) {
			if _, f := x.m.fateOf(string(w.Name)); !ok || f.why != "" || f.renamed || f.hashed {
				return nil, fmt.Sprintf("%s names %q, which a rule is about", name, w.Name)
			}
		}
	case e.Type == bson.TypeString && name == "language_override":
		if text := textOf(e.View); x.m.TouchesPath(text) {
			return nil, fmt.Sprintf("the language stands in %q, which a rule is about", text)
		}
	}
	return append(dst, e.Raw...), ""
}

func (x *indexer) key(dst []byte, e bsonraw.Element, expires bool) ([]byte, string) {
	dst, start := bsonraw.OpenDocument(bsonraw.AppendHeader(dst, e.Type, e.Name))
	for k, ok := range bsonraw.Fields(e.Value) {
		if !ok {
			return nil, "its key is not valid BSON"
		}
		name, f := x.m.fateOf(string(k.Name))
		special := k.Type == bson.TypeString && textOf(k.View) != "hashed"
		switch {
		case f.why != "":
			return nil, f.why
		case f.hashed && (expires || special):
			return nil, fmt.Sprintf("%q is masked, and the index needs its values", k.Name)
		}
		x.changed = x.changed || f.renamed
		dst = append(bsonraw.AppendHeader(dst, k.Type, name), k.Value...)
	}
	return bsonraw.CloseDocument(dst, start), ""
}

func (x *indexer) filter(dst, doc []byte) ([]byte, string) {
	dst, start := bsonraw.OpenDocument(dst)
	for e, ok := range bsonraw.Fields(doc) {
		if !ok {
			return nil, "its partialFilterExpression is not valid BSON"
		}
		name := string(e.Name)
		if strings.HasPrefix(name, "$") {
			var why string
			if dst, why = x.logical(dst, e); why != "" {
				return nil, why
			}
			continue
		}
		name, f := x.m.fateOf(name)
		if f.hashed {
			f.why = fmt.Sprintf("%q is masked", e.Name)
		}
		if f.why != "" {
			return nil, "its partialFilterExpression is on a field that is another on the target: " + f.why
		}
		x.changed = x.changed || f.renamed
		dst = append(bsonraw.AppendHeader(dst, e.Type, name), e.Value...)
	}
	return bsonraw.CloseDocument(dst, start), ""
}

func (x *indexer) logical(dst []byte, e bsonraw.Element) ([]byte, string) {
	name := string(e.Name)
	if e.Type != bson.TypeArray || name != "$and" && name != "$or" && name != "$nor" {
		return nil, "its partialFilterExpression has " + name + ", which is not looked into"
	}
	dst, start := bsonraw.OpenDocument(bsonraw.AppendHeader(dst, e.Type, e.Name))
	for c, ok := range bsonraw.Fields(e.Value) {
		if !ok || c.Type != bson.TypeEmbeddedDocument {
			return nil, "its partialFilterExpression is not a valid filter"
		}
		var why string
		if dst, why = x.filter(bsonraw.AppendHeader(dst, c.Type, c.Name), c.Value); why != "" {
			return nil, why
		}
	}
	return bsonraw.CloseDocument(dst, start), ""
}

type indexFate struct {
	renamed, hashed bool
	why             string // it is another on the target, or none
}

func (m *Map) fateOf(text string) (string, indexFate) {
	base := strings.TrimSuffix(text, ".$**")
	if base == "$**" || base == "_id" || strings.HasPrefix(base, "_id.") || base == "_fts" || base == "_ftsx" {
		return text, indexFate{}
	}
	p := path{base, strings.Split(base, ".")}
	var f indexFate
	top, tail, dotted := strings.Cut(text, ".")
	for i := range m.claims {
		c := &m.claims[i]
		switch {
		case !c.path.overlaps(p):
		case c.what == "rename":
			f.renamed, top = true, c.to
		case c.rule != nil && c.rule.kind == maskSum && c.path.text == text:
			f.hashed = true
		default:
			f.why = fmt.Sprintf("%q is another on the target, or not there: %s", text, c.at)
			return text, f
		}
	}
	if dotted {
		top += "." + tail
	}
	switch at, replaced := m.replaces(p); {
	case m.keeps && !m.kept(p):
		f.why = fmt.Sprintf("%q is not kept", text)
	case replaced && !f.renamed:
		f.why = fmt.Sprintf("%q is replaced on the target: %s", text, at)
	}
	return top, f
}

func (m *Map) replaces(p path) (place, bool) {
	for i := range m.outputs {
		if m.outputs[i].path.overlaps(p) {
			return m.outputs[i].at, true
		}
	}
	for i := range m.claims {
		if c := &m.claims[i]; c.what == "rename" && c.to == p.names[0] {
			return c.at, true
		}
	}
	return "", false
}

// Schema returns definitions of a JSON Schema for editors; "fields" are the rules of a collection.
// What Parse takes is valid. Parse may still refuse what is valid: rules that overlap, expressions,
// unreadable keys.
func Schema() map[string]any {
	properties := schema{}
	for _, s := range sections() {
		properties[s.name] = s.schema
	}
	return map[string]any{"fields": schema{"type": "object", "description": "how the fields of documents are mapped",
		"properties": properties, "additionalProperties": false, "not": schema{"required": []string{"keep", "drop"}}}}
}

type schema = map[string]any

// nameForm is a name that rules may be about: not empty, without a leading dollar, not all digits.
const nameForm = `(?:[^.$0-9][^.]*|[0-9]+[^.0-9][^.]*)`

func pathSchema() schema {
	return schema{"type": "string", "pattern": "^" + nameForm + `(?:\.` + nameForm + ")*$",
		"not": schema{"pattern": `^_id(\.|$)`}}
}

// wholePath is one that may be _id.
func wholePath() schema { return either(pathSchema(), schema{"const": "_id"}) }

func topLevel() schema {
	return schema{"type": "string", "pattern": "^" + nameForm + "$", "not": schema{"const": "_id"}}
}

func either(forms ...any) schema { return schema{"anyOf": forms} }

func pathsSchema(path schema, about string) schema {
	return schema{"type": "array", "minItems": 1, "items": path, "description": about}
}

func each(name, rule schema, about string) schema {
	return schema{"type": "object", "minProperties": 1, "propertyNames": name, "additionalProperties": rule,
		"description": about}
}

func optionSchema(required string, all schema) schema {
	out := schema{"type": "object", "properties": all, "additionalProperties": false}
	if required != "" {
		out["required"] = []string{required}
	}
	return out
}

func otherwiseSchema(keep bool) schema {
	return schema{"enum": append(anyOf(otherwiseNames(keep)), nil), "default": otherwiseNames(keep)[0],
		"description": "what becomes of a value that does not fit"}
}

func anyOf(names []string) (out []any) {
	for _, name := range names {
		out = append(out, name)
	}
	return out
}
