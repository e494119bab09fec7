package fields

import (
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

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
