package fields

import (
	"bytes"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
)

// TouchesPath reports whether a rule may change the value at a path between the source and the
// result. That is so if the value, or something above or in it, is mapped, left out, taken away
// or replaced.
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

// read is a path of the source on which an output depends; without names all of the
// document.
type read struct{ names []string }

// readsOf notes what the outputs read, and which of them are volatile.
func (m *Map) readsOf() {
	for i := range m.outputs {
		o := &m.outputs[i]
		switch mk := &o.make; {
		case mk.volatile():
			m.volatile = append(m.volatile, *o)
		case mk.kind == makeComputed:
			m.reads = append(m.reads, mk.expr.reads...)
		case mk.kind == makeCopied, mk.kind == makeMoved:
			m.reads = append(m.reads, read{mk.from.names})
		}
	}
}

// Careful returns the same mapping for a caller that continues when a document cannot be
// mapped. An update that may concern the cause is State: the document may fit after it, or not.
func (m *Map) Careful() *Map {
	c := *m
	c.reads = slices.Clip(c.reads)
	for i := range m.claims {
		if m.claims[i].fails() {
			c.reads = append(c.reads, read{m.claims[i].path.names})
		}
	}
	for i := range m.outputs {
		// What fields are put into is looked at, too.
		if o := &m.outputs[i]; len(o.path.names) > 1 {
			c.reads = append(c.reads, read{o.path.names})
		}
	}
	return &c
}

// MayFail reports that there may be documents which cannot be mapped.
func (m *Map) MayFail() bool {
	into := func(o output) bool { return len(o.path.names) > 1 || o.make.mayFail() }
	return slices.ContainsFunc(m.claims, claim.fails) || slices.ContainsFunc(m.outputs, into)
}

// touched reports that an update may change what an output reads.
func (m *Map) touched(d delta.Delta) bool {
	return slices.ContainsFunc(m.reads, func(r read) bool {
		if d.Kind() == delta.Modifiers {
			return r.byPaths(d.Raw())
		}
		e, ok := bsonraw.Field(d.Raw(), "diff")
		return !ok || r.byObject(e.Value, r.names)
	})
}

// byObject says whether the diff of an object changes something on the path, of which
// names are still to go.
func (r read) byObject(diff []byte, names []string) bool {
	if len(names) == 0 {
		return true
	}
	for section, ok := range bsonraw.Fields(diff) {
		if !ok || len(section.Name) == 0 || len(section.Name) == 1 && section.Name[0] == 'a' {
			return true // of an array: another element, or another length
		}
		if section.Name[0] == 's' {
			if string(section.Name[1:]) == names[0] && r.byObject(section.Value, names[1:]) {
				return true
			}
			continue
		}
		if _, found := bsonraw.Field(section.Value, names[0]); found {
			return true
		}
	}
	return false
}

// byPaths is for {$set, $unset}.
func (r read) byPaths(o []byte) bool {
	for section, ok := range bsonraw.Fields(o) {
		if !ok {
			return true
		}
		if section.Type != bson.TypeEmbeddedDocument {
			continue
		}
		for e, ok := range bsonraw.Fields(section.Value) {
			if !ok || r.byPath(e.Name) {
				return true
			}
		}
	}
	return false
}

// byPath says whether a path is, or is above or below, the one that is read. A number
// may be the index of an element.
func (r read) byPath(text []byte) bool {
	for i, name := range r.names {
		first, below, more := bytes.Cut(text, []byte("."))
		if i > 0 && isIndex(first) {
			return true
		}
		if string(first) != name {
			return false
		}
		if !more {
			return true
		}
		text = below
	}
	return true
}

// Translates reports that Update never needs the document's state: the rules are about
// whole fields at the top level, and about nothing that is in others.
func (m *Map) Translates() bool {
	top := func(p path) bool { return len(p.names) == 1 }
	return len(m.volatile) == 0 && len(m.reads) == 0 &&
		!slices.ContainsFunc(m.keep, func(p path) bool { return !top(p) }) &&
		!slices.ContainsFunc(m.claims, func(c claim) bool { return !top(c.path) || c.rule != nil }) &&
		!slices.ContainsFunc(m.outputs, func(o output) bool { return !top(o.path) || o.make.kind != makeConstant })
}
